"""Blocks of headers: what one means is remembered by its bytes, as long as the table of the client is the same."""

from __future__ import annotations

import re
from typing import Any, Final

from hpack import Decoder, OversizedHeaderListError

from headrace_serve.http2.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    ConnectionFaultError,
)

__all__ = ["Head", "Heads", "block_of"]

_MOST_FIELDS: Final = 1024
_MOST_KNOWN: Final = 64
_LONGEST_KNOWN: Final = 4096
_MORE_BYTES: Final = 3
_OVERHEAD_BYTES: Final = 32
"""What a field counts beside its name and its value (RFC 9113, 6.5.2)."""

_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_WRONG_VALUE: Final = re.compile(rb"[\0\r\n]")
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_OF_CONNECTIONS: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)


class Head:
    """The headers of a request, or those behind its body.

    Attributes:
        fields: Names and values in their order, without the pseudo-headers.
        pseudo: The pseudo-headers, as ``:path``.
        size_bytes: The bytes of all names and values.
        wrong: Why this is no request (RFC 9113, 8.2 and 8.3). Empty: it is one.
        length: The value of ``content-length``. None without it.
        plan: Whatever the protocol above remembers of these headers.
    """

    __slots__ = ("fields", "length", "plan", "pseudo", "size_bytes", "wrong")

    def __init__(self, fields: list[tuple[bytes, bytes]]) -> None:
        self.pseudo: dict[bytes, bytes] = {}
        self.fields: list[tuple[bytes, bytes]] = []
        self.size_bytes = sum(len(name) + len(value) for name, value in fields)
        self.length: int | None = None
        self.plan: Any = None
        self.wrong = ""
        for name, value in fields:
            self._add(bytes(name), bytes(value))

    def _add(self, name: bytes, value: bytes) -> None:
        if name.startswith(b":"):
            if self.fields or name in self.pseudo or name not in _PSEUDO:
                self.wrong = "a pseudo-header that is not known, twice there, or behind others"
            self.pseudo[name] = value
        elif not _NAME.fullmatch(name):
            self.wrong = "a name of a header that is none"
        elif name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            self.wrong = "a header about the connection"
        elif name == b"content-length":
            if not value.isdigit() or self.length not in (None, int(value[:20])):
                self.wrong = "a content-length that is none"
            else:
                self.length = int(value[:20])
        if _WRONG_VALUE.search(value):
            self.wrong = "a value of a header that is none"
        if not name.startswith(b":"):
            self.fields.append((name, value))

    @property
    def wrong_as_request(self) -> str:
        """Why these are no headers of a request."""
        pseudo = self.pseudo
        if not self.wrong and not (
            pseudo.get(b":method") and pseudo.get(b":scheme") and pseudo.get(b":path")
        ):
            return "a pseudo-header is missing"
        return self.wrong

    @property
    def wrong_as_trailers(self) -> str:
        """Why these are no headers behind a body."""
        return self.wrong or ("pseudo-headers behind a body" if self.pseudo else "")


class Heads:
    """Reads the blocks of one client.

    Args:
        most_bytes: The most bytes of the names and values of one block. Blocks of up to twice as many are read, so that the
            protocol above can refuse them with a reason.
    """

    def __init__(self, most_bytes: int) -> None:
        # Who sends more loses the connection: its table is not known any more.
        self._decoder = Decoder(2 * most_bytes + _OVERHEAD_BYTES * _MOST_FIELDS)
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Return the headers of a block.

        Raises:
            ConnectionFaultError: It cannot be read, or has too much.
        """
        head = self._known.get(block)
        if head is not None:
            return head
        changes = _changes_table(block)
        try:
            head = Head(self._decoder.decode(block, raw=True))  # type: ignore[arg-type]
        except OversizedHeaderListError as error:
            raise ConnectionFaultError(ENHANCE_YOUR_CALM, "too many bytes of headers") from error
        except Exception as error:
            raise ConnectionFaultError(COMPRESSION_ERROR, "headers cannot be read") from error
        if changes:  # what the known blocks mean may be another thing from now on
            self._known.clear()
        elif len(block) <= _LONGEST_KNOWN and len(self._known) < _MOST_KNOWN:
            self._known[block] = head
        return head


def _changes_table(block: bytes) -> bool:
    """Return whether a block changes the table of its client, after a look at its structure (RFC 7541, 6).

    `hpack` copies what is left of a block at each literal, and has no bound for numbers: so both are bounded here.

    Raises:
        ConnectionFaultError: The block ends too early, or has too many fields.
    """
    place, end, fields, changes = 0, len(block), 0, False
    while place < end and fields <= _MOST_FIELDS:
        first = block[place]
        fields += 1
        if first > 0x80 and first != 0xFF:
            place += 1
            continue
        if first >= 0x80:
            _, place = _number(block, place, 0x7F)
            continue
        changes = changes or first >= 0x20
        if 0x20 <= first < 0x40:
            _, place = _number(block, place, 0x1F)
            continue
        index, place = _number(block, place, 0x3F if first >= 0x40 else 0x0F)
        for _ in range(1 if index else 2):
            size, place = _number(block, place, 0x7F)
            place += size
    if fields > _MOST_FIELDS:
        raise ConnectionFaultError(ENHANCE_YOUR_CALM, "too many headers")
    if place > end:
        raise ConnectionFaultError(COMPRESSION_ERROR, "a block of headers ends too early")
    return changes


def _number(block: bytes, place: int, mask: int) -> tuple[int, int]:
    """Return a number of HPACK (RFC 7541, 5.1), and the place behind it."""
    rest = block[place : place + 2 + _MORE_BYTES]
    if not rest:
        raise ConnectionFaultError(COMPRESSION_ERROR, "a block of headers ends too early")
    value = rest[0] & mask
    if value < mask:
        return value, place + 1
    for count, byte in enumerate(rest[1:]):
        value += (byte & 0x7F) << 7 * count
        if byte < 0x80:
            return value, place + 2 + count
    raise ConnectionFaultError(COMPRESSION_ERROR, "a number in a block of headers is too long")


def block_of(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return a block of headers as literals, which change no table.

    Args:
        fields: Names and values. ``:status`` comes first.
    """
    return b"".join(
        [b"\0" + _text_size(name) + name + _text_size(value) + value for name, value in fields]
    )


def _text_size(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,))
    size -= 0x7F
    written = bytearray(b"\x7f")
    while size >= 0x80:
        written.append(size & 0x7F | 0x80)
        size >>= 7
    written.append(size)
    return bytes(written)
