"""The frames of HTTP/2, their numbers, and the faults that end a connection or a stream (RFC 9113)."""

from __future__ import annotations

import struct
from typing import Final

__all__ = [
    "ACK", "CANCEL", "COMPRESSION_ERROR", "CONTINUATION", "DATA", "END_HEADERS", "END_STREAM", "ENHANCE_YOUR_CALM", "FLOW_CONTROL_ERROR",
    "FRAME_BYTES", "FRAME_SIZE_ERROR", "GOAWAY", "HEADERS", "INTERNAL_ERROR", "LARGEST_WINDOW",
    "NO_ERROR", "PADDED", "PING", "PREFACE", "PRIORITIZED", "PRIORITY", "PROTOCOL_ERROR", "PUSH_PROMISE", "REFUSED_STREAM",
    "RST_STREAM", "SETTINGS", "STREAM_CLOSED", "WINDOW_UPDATE", "ConnectionFaultError",
    "StreamFaultError", "frame", "goaway", "rst_stream", "window_update",
]  # fmt: skip

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of a client."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)  # fmt: skip

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR = range(4)
STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR = range(5, 10)
ENHANCE_YOUR_CALM: Final = 11

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 1, 1, 4, 8, 32
"""The flags of frames."""

FRAME_BYTES: Final = 16384
"""The most bytes of a frame that every end takes."""

LARGEST_WINDOW: Final = (1 << 31) - 1

_HEAD = struct.Struct(">HBBBI")
_NUMBER = struct.Struct(">I")


class ConnectionFaultError(Exception):
    """The connection ends.

    Attributes:
        code: The code of the error.
        text: What the client did, ASCII.
    """

    def __init__(self, code: int, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(text)


class StreamFaultError(Exception):
    """One stream ends.

    Attributes:
        stream: Its number.
        code: The code of the error.
    """

    def __init__(self, stream: int, code: int, text: str) -> None:
        self.stream, self.code = stream, code
        super().__init__(text)


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    size = len(body)
    return _HEAD.pack(size >> 8, size & 255, kind, flags, stream) + body


def rst_stream(stream: int, code: int) -> bytes:
    """Return the frame that ends a stream."""
    return frame(RST_STREAM, 0, stream, _NUMBER.pack(code))


def window_update(stream: int, more: int) -> bytes:
    """Return the frame that lets the client send ``more`` bytes."""
    return frame(WINDOW_UPDATE, 0, stream, _NUMBER.pack(more))


def goaway(last: int, code: int, text: str = "") -> bytes:
    """Return the frame that ends a connection, after the streams up to ``last``."""
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code) + text.encode("ascii", "replace"))
