"""The codings of bodies, gzip and deflate: of answers, and of what clients send, which waits for its turn in a queue with shares."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from typing import TYPE_CHECKING

from headrace.errors import InputError, OverloadedError
from headrace_formats import listed, quality
from headrace_serve.errors import BodyTooLargeError, CodingError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["WINDOWS", "Unpacking", "coding_for", "codings_of", "pack", "unpack"]

WINDOWS = {"gzip": 31, "deflate": 15}
_MOST_CODINGS = 2
_MOST_MEMBERS = 1 << 16  # of gzip: an empty one takes as long as a much longer one
_PIECE_BYTES = 16 << 10
"""So many bytes are decompressed at a time: zlib copies what lies behind the end of a member."""

_AT_A_TIME = 4
"""The most bodies that are decompressed at a time. Each meanwhile takes the room of the largest body, so with more of
them other requests would be refused.
"""
_MOST_INSIDE = 64
"""The most bodies that wait or are decompressed. One client may have half of them, and all but one of those that run."""


class Unpacking:
    """The queue of bodies that are decompressed."""

    def __init__(self) -> None:
        self._running = asyncio.Semaphore(_AT_A_TIME)
        self._of_client: dict[str, asyncio.Semaphore] = {}
        self._inside: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait until a body of a client may be decompressed, and hold its place until the block ends.

        Args:
            client: The name of its key, or its address.

        Raises:
            OverloadedError: Too many bodies wait, of all clients or of this one.
        """
        waiting = self._inside.total()
        if waiting >= _MOST_INSIDE or self._inside[client] >= _MOST_INSIDE // 2:
            problem = "too many compressed bodies wait"
            raise OverloadedError(problem, queue_size=_MOST_INSIDE, waiting=waiting)
        own = self._of_client.setdefault(client, asyncio.Semaphore(_AT_A_TIME - 1))
        self._inside[client] += 1
        try:
            async with own, self._running:
                yield
        finally:
            self._inside[client] -= 1
            if not self._inside[client]:
                del self._inside[client], self._of_client[client]


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
