"""What a message becomes once it is parsed: counted by its tags, so that one that becomes too much is never parsed.

A field of two bytes may become an object of three hundred. Small messages are not walked: what the largest of these becomes
is gone before the next one is parsed.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import InputError
from headrace_serve.errors import BodyTooLargeError

__all__ = ["SMALL_BYTES", "price_of"]

SMALL_BYTES: Final = 4096
"""Messages up to so many bytes cost nothing."""

_MOST_FIELDS: Final = 16384
"""So many fields are parsed in some ten milliseconds."""

_FIELD_BYTES: Final = 350
"""What an input, a parameter or another field takes at most, beside its bytes."""

_ELEMENT_BYTES: Final = 96
"""What an element of BYTES takes at most, beside its bytes."""

_CONTENTS: Final = object()
_MAP: Final[dict[int, Any]] = {}
_SCHEMA: Final[dict[int, Any]] = {
    3: _MAP,
    4: _MAP,
    5: {4: _MAP, 5: _CONTENTS},
    6: {2: _MAP},
}
"""The messages in a ``ModelInferRequest``, by the numbers of their fields. 3 is a map of a request for a load."""

_PER_BYTE: Final = {6: 10, 7: 6}
"""What a byte of ``fp32_contents`` and ``fp64_contents`` becomes: a number in the message, in a list, and an object."""

_PER_BYTE_OF_NUMBERS: Final = 48
_BYTES_CONTENTS: Final = 8
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def price_of(data: bytes, most: int, elements: int | None) -> int | None:
    """Return about how many bytes a message of inference becomes, beside its own.

    Args:
        data: The message.
        most: The most bytes that it may become.
        elements: The most elements of BYTES in ``bytes_contents`` that are counted: each takes a microsecond. None: all.

    Returns:
        The bytes. None: it has more elements.

    Raises:
        BodyTooLargeError: It becomes more.
        InputError: It has too many fields.
    """
    walk = _Walk(data, most, elements)
    walk.message(0, len(data), _SCHEMA)
    return None if walk.is_long else walk.price


class _Walk:
    """Adds up the fields of a message. What is malformed ends the walk: the parser says so."""

    def __init__(self, data: bytes, most: int, elements: int | None) -> None:
        self._data, self._most, self._elements = data, most, elements
        self._fields = self.price = 0
        self.is_long = False

    def message(self, place: int, end: int, schema: dict[int, Any]) -> None:
        """Add the fields between two places."""
        while 0 <= place < end:
            number, kind, start, place = self._field(place, end)
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise InputError(f"the message has more than {_MOST_FIELDS} fields")
            self._add(_FIELD_BYTES)
            inner = schema.get(number) if kind == _BYTES else None
            if inner is _CONTENTS:
                self._contents(start, min(place, end))
            elif inner is not None:
                self.message(start, min(place, end), inner)
            elif number == 3 and kind == _BYTES and schema is not _SCHEMA:
                self._add(8 * (place - start))  # a shape

    def _contents(self, place: int, end: int) -> None:
        while 0 <= place < end:
            number, kind, start, stop = self._field(place, end)
            if number == _BYTES_CONTENTS and kind == _BYTES:
                self._add(_ELEMENT_BYTES + stop - start)
                if self._elements is not None:
                    self._elements -= 1
                    if self._elements < 0:
                        self.is_long = True
                        return
            elif kind == _BYTES:
                self._add((stop - start) * _PER_BYTE.get(number, _PER_BYTE_OF_NUMBERS))
            else:  # one number after the other, each with its tag
                self._add((end - place) * _PER_BYTE_OF_NUMBERS // 2)
                return
            place = stop

    def _add(self, size: int) -> None:
        self.price += size
        if self.price > self._most:
            raise BodyTooLargeError(
                f"the message becomes more than {self._most} bytes of objects, the limit"
            )

    def _field(self, place: int, end: int) -> tuple[int, int, int, int]:
        """Return number and kind of a field, and the places where its content begins and ends. Below 0: it is none."""
        tag, place = self._number(place)
        number, kind = tag >> 3, tag & 7
        if kind == _BYTES:
            size, place = self._number(place)
            stop = place + size if 0 <= place <= end - size else -1
            return number, kind, place, stop
        if kind == _VARINT:
            _, stop = self._number(place)
            return number, kind, place, stop
        sizes = {_FIXED64: 8, _FIXED32: 4}
        return number, kind, place, place + sizes.get(kind, 0)

    def _number(self, place: int) -> tuple[int, int]:
        """Return a varint, and the place behind it. Below 0: there is none."""
        if place < 0:
            return 0, -1
        data = self._data
        if place < len(data) and data[place] < 0x80:
            return data[place], place + 1
        value = 0
        for count, byte in enumerate(data[place : place + 10]):
            value |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return value, place + count + 1
        return 0, -1
