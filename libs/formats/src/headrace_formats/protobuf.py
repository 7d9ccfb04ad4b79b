"""Messages of Protocol Buffers, read where they lie: a file of a model may have gigabytes of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Span", "fields", "inner"]

Span = tuple[int, int]
"""Where a field stands: its first byte, and the one behind its last."""

_SIZES = {1: 8, 5: 4}
"""The bytes of a value by its wire type, where that has a fixed size."""


def fields(content: Any, place: Span) -> Iterator[tuple[int, Span | int]]:
    """Yield the number of each field of a message with its place, or with its value where it is a whole number.

    Args:
        content: ``bytes``, or a file that is mapped into memory.
        place: Where the message stands.

    Raises:
        ValueError, IndexError: It is no message.

    Source:
        Encoding of Protocol Buffers, wire types VARINT, I64, LEN and I32.
    """
    at, stop = place
    while at < stop:
        tag, at = _varint(content, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(content, at)
            yield tag >> 3, value
            continue
        if kind == 2:
            size, at = _varint(content, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"there is no wire type {kind}")
        if at + size > stop:
            raise ValueError("a field is longer than its message")
        yield tag >> 3, (at, at + size)
        at += size


def inner(content: Any, place: Span, *numbers: int) -> list[Span]:
    """Return the places of what is reached from a message by these numbers of fields, one below the other.

    Raises:
        ValueError, IndexError: It is no message.
    """
    places = [place]
    for number in numbers:
        values = [value for span in places for n, value in fields(content, span) if n == number]
        places = [value for value in values if isinstance(value, tuple)]
    return places


def _varint(content: Any, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is too long")
