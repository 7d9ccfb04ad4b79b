"""The codings of bodies, gzip and deflate: of answers, and of what clients send."""

from __future__ import annotations

import zlib

from headrace.errors import InputError
from headrace_formats import listed, quality
from headrace_serve.errors import BodyTooLargeError, CodingError

__all__ = ["WINDOWS", "coding_for", "codings_of", "pack", "unpack"]

WINDOWS = {"gzip": 31, "deflate": 15}
_MOST_CODINGS = 2
_MOST_MEMBERS = 1 << 16  # of gzip: an empty one takes as long as a much longer one
_PIECE_BYTES = 16 << 10
"""So many bytes are decompressed at a time: zlib copies what lies behind the end of a member."""


def coding_for(accepted: str) -> str:
    """Return the coding of an answer that ``Accept-Encoding`` wants most; ``""`` where it is to have none."""
    wanted = _known(accepted)
    best = max(WINDOWS, key=lambda coding: quality(wanted, coding))
    least = quality(wanted, "identity") if "identity" in wanted else 0.0
    return best if accepted and quality(wanted, best) >= max(least, 0.001) else ""


def codings_of(said: str) -> list[str]:
    """Return the codings of a body by ``Content-Encoding``, in the order in which they were applied.

    Raises:
        CodingError: One is not known.
        InputError: There are too many.
    """
    codings = [coding for coding in listed(_known(said)) if coding != "identity"]
    for coding in codings:
        if coding not in WINDOWS:
            has = ", ".join(WINDOWS)
            raise CodingError(f"content-encoding: this server has {has}, got {coding[:40]!r}")
    if len(codings) > _MOST_CODINGS:
        raise InputError("content-encoding", expected=f"at most {_MOST_CODINGS} codings")
    return codings


def _known(header: str) -> str:
    """Return a header with the usual name of gzip (RFC 9110, 8.4.1.3)."""
    return header.lower().replace("x-gzip", "gzip")


def pack(body: bytes, encoding: str) -> bytes:
    """Return a body in a coding."""
    engine = zlib.compressobj(1, zlib.DEFLATED, WINDOWS[encoding])
    return engine.compress(body) + engine.flush()


def unpack(body: bytes, encoding: str, limit: int) -> bytes:
    """Return a body without a coding. One of gzip may have several members (RFC 1952, 2.2).

    Raises:
        InputError: It is not in this coding.
        BodyTooLargeError: It would have more than ``limit`` bytes.
    """
    rest, parts, size, members = memoryview(body), [], 0, 0
    while rest or not members:
        if members == (_MOST_MEMBERS if encoding == "gzip" else 1):
            raise InputError(f"the body has bytes behind the end of {encoding}")
        engine = zlib.decompressobj(WINDOWS[encoding])
        while not engine.eof:
            if not rest:
                raise InputError(f"the body is no whole {encoding} stream")
            piece, rest = rest[:_PIECE_BYTES], rest[_PIECE_BYTES:]
            try:
                parts.append(engine.decompress(piece, limit + 1 - size))
            except zlib.error as error:
                raise InputError(f"the body is no {encoding}: {error}") from None
            size += len(parts[-1])
            if size > limit:
                raise BodyTooLargeError(f"the body has more than {limit} bytes when decompressed")
        rest = memoryview(body)[len(body) - len(rest) - len(engine.unused_data) :]
        members += 1
    return b"".join(parts)
