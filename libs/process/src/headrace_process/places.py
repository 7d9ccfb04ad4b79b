"""What differs from one place to another: how bytes move, and how a part is started, ended, and started again."""

from __future__ import annotations

import select
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import socket

__all__ = ["Link", "Place", "Restarts", "await_message"]

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_MINUTE_S = 60.0


class Restarts:
    """After which pause a part elsewhere is started again, and whether it ends too often.

    Args:
        limit: More ends within a minute are too many. None: no number is.
        longest_pause_s: No pause is longer (seconds).

    Attributes:
        count: How often it has ended.
    """

    def __init__(self, limit: int | None = None, longest_pause_s: float = _LONGEST_PAUSE_S) -> None:
        self._limit, self._longest_pause_s = limit, longest_pause_s
        self._ends: deque[float] = deque()
        self._pause_s = self._next_s = 0.0
        self.count = 0

    def pause_s(self, now: float) -> float:
        """Count an end of the part. Return the seconds until the next start.

        The first start comes at once, the second after 0.1 s, and each further one after twice the pause before. After a
        minute in which the part could live and did not end, they begin anew.

        Args:
            now: The time (``time.monotonic()``, seconds).
        """
        if self._ends and now - self._ends[-1] >= self._pause_s + _MINUTE_S:
            self._next_s = 0.0
        while len(self._ends) > 1 and now - self._ends[0] >= _MINUTE_S:
            self._ends.popleft()
        self._ends.append(now)
        self.count += 1
        self._pause_s = min(self._next_s, self._longest_pause_s)
        self._next_s = max(_FIRST_PAUSE_S, 2 * self._pause_s)
        return self._pause_s

    def too_often(self, now: float) -> bool:
        """Return whether the part has ended too often within the last minute."""
        ends = sum(now - end < _MINUTE_S for end in [*self._ends])
        return self._limit is not None and ends > self._limit


class Link(Protocol):
    """How messages of plain values, and buffers beside them, move between a container and its part.

    Both sides have one. Each message is answered before the next is sent, by one thread at a time. A message
    and its buffers are made in turn: `begin`, `put` for each buffer, `send`, and read: `receive`, `take`.

    Attributes:
        awaits: Whether a message was sent whose answer has not been read.
    """

    awaits: bool

    def begin(self) -> None:
        """Begin the buffers of the next message."""

    def put(self, buffer: Any, size: int, kind: type[Any]) -> int:
        """Add a contiguous buffer of ``size`` bytes to the next message. Return its place.

        Args:
            buffer: Anything with the buffer protocol. It is not changed before `send` has returned.
            size: Its size in bytes.
            kind: What `take` makes of it on the other side: ``bytes``, or ``bytearray``.

        Raises:
            OSError: There is no memory for the bytes.
        """

    def take(self, at: int, size: int, kind: type[Any]) -> Any:
        """Return a buffer of the message that was received, as the ``kind`` with which it was put.

        Args:
            at: Its place, as `put` has given it on the other side.
            size: Its size in bytes.
            kind: As the other side has given it to `put`.
        """

    def send(self, message: Any, *, awaits: bool = False) -> None:
        """Send a message of plain values, to which all buffers put since `begin` belong.

        Args:
            message: The message.
            awaits: Whether the other side answers it.

        Raises:
            EOFError: The other side has ended.
            OSError: There is no memory for the message. Nothing was sent.
        """

    def receive(self, timeout_s: float | None = None) -> Any:
        """Wait for a message.

        Raises:
            EOFError: The other side has ended, or has called `end`, or `cut` was called here.
            TimeoutError: No message came within ``timeout_s`` seconds.
        """

    def end(self) -> None:
        """Tell the other side that no message will come any more; any thread may call it."""

    def cut(self) -> None:
        """Let a thread in `receive`, now or later, meet EOFError; any thread may call it."""

    def close(self) -> None:
        """Give back what the link holds; no thread uses it any more."""


def await_message(source: Any, timeout_s: float | None) -> None:
    """Wait until a descriptor, or what has ``fileno()``, can be read. For `Link.receive`.

    Args:
        source: What to read from. Nothing of it lies in a buffer.
        timeout_s: How long to wait (seconds), with None this does not wait.

    Raises:
        TimeoutError: It could not be read within that time.
    """
    if timeout_s is not None:
        poll = select.poll()
        poll.register(source, select.POLLIN)
        if not poll.poll(min(timeout_s * 1000, 2**31 - 1)):  # the most it takes
            raise TimeoutError


class Place(Protocol):
    """One start of a part elsewhere: from its start to its end, with a `Link` of its own."""

    def start(self) -> tuple[Link, socket.socket]:
        """Start what will build the part.

        Returns:
            The link, and a stream socket on which all arrives that is no answer: pairs of a text and of
            bytes, pickled one after the other.

        Raises:
            SetupError: It cannot be started there.
        """

    def wait(self) -> None:
        """Wait until what was started has ended."""

    def kill(self) -> None:
        """End what was started at once, whatever it does; any thread may call it, also a second time."""

    def how_ended(self) -> tuple[str, str | None]:
        """Return how it has ended, as ``"of signal SIGKILL"``, and a hint or None; after `wait`."""

    def close(self) -> None:
        """Give back what `start` has opened besides the link and the socket."""
