"""The bytes of parts of answers that wait for clients: what a backend gives next has to find room."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PartBytes", "StreamBytes"]


class PartBytes:
    """What waits in all streams of a server.

    Parts take at most half of the room, so that the bodies of requests find some. A part counts until its client has it:
    while it waits here, and then in the buffer of a connection.

    Args:
        most: `headrace_serve.Limits.max_inflight_bytes`.
        others: Gives the bytes of the parts in buffers of connections, and those of bodies, which use the same room.

    Attributes:
        held: The bytes of the parts that wait here.
        lock: Held to change ``held``: backends give parts in any thread.
    """

    def __init__(self, most: int, others: Callable[[], tuple[int, int]]) -> None:
        self._most, self._others = most, others
        self.held = 0
        self.lock = threading.Lock()

    @property
    def fits(self) -> bool:
        """Whether there is room for more."""
        unsent, bodies = self._others()
        held = self.held + unsent
        return held < self._most // 2 and held + bodies < self._most


class StreamBytes:
    """What waits in one stream."""

    def __init__(self, of: PartBytes) -> None:
        self._of = of
        self._sizes: deque[int] = deque()
        self._is_open = True

    def room(self, part: Any) -> bool:
        """Count a part; tell whether a further one may come before some were sent: ``room`` of ``pipe.stream_async``."""
        size = weigh(part)
        with self._of.lock:
            if self._is_open:
                self._sizes.append(size)
                self._of.held += size
        return self._of.fits

    def sent(self) -> None:
        """Note that the oldest part was sent."""
        with self._of.lock:
            self._of.held -= self._sizes.popleft()

    def end(self) -> None:
        """Note that the stream has ended, even if parts are left."""
        with self._of.lock:
            self._is_open = False
            self._of.held -= sum(self._sizes)
            self._sizes.clear()


def weigh(part: Any) -> int:
    """Return about how many bytes a part holds."""
    size = getattr(part, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(part, (bytes, bytearray, str)):
        return len(part)
    if isinstance(part, Mapping):
        return sum(map(weigh, part.values())) + sum(map(weigh, part))
    if isinstance(part, (list, tuple)):
        return sum(map(weigh, part))
    return sys.getsizeof(part, 64)
