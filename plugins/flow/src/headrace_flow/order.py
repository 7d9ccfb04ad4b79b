"""The rule of order by key: requests of one key run one after the other, those of different keys side by side.

Whoever needs it (`StateFul`, the order of the pictures of one source, ...) holds one `InOrder` for all instances of a node::

    def forward(self, batch):
        outcomes, mine = [None] * len(batch), []
        for place, request in enumerate(batch):
            if self.order.take(request["source"], request, self.context):
                mine.append(place)  # it runs now
            else:
                outcomes[place] = headrace.PENDING  # it comes again when its turn has come
        ...

and calls ``order.leave(key)`` for each that has run, once nothing of it runs any more (``context.at_batch_end``).
No thread waits, and the scheduler knows nothing of it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import headrace
    from headrace.keys import Request

__all__ = ["InOrder"]

_WAITS, _CALLED, _RUNS, _OVER = range(4)


class _Turn:
    """The place of one request in the line of its key: it waits, is called (resumed), runs, or is over."""

    __slots__ = ("request", "resume", "stage")

    def __init__(self, stage: int, request: Request, resume: Callable[[Request], bool]) -> None:
        self.stage = stage
        self.request = request
        self.resume = resume


class InOrder:
    """Lines of requests, one per key; the first of each line has the turn. Any thread may use it.

    A request that waits for its turn, or was called and waits in the queue again, may end otherwise: by its deadline, a
    cancellation, a close. Then it leaves the line, and the one behind it has the turn.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[_Turn]] = {}

    def take(self, key: Hashable, request: Request, context: headrace.InitContext) -> bool:
        """Tell whether it is the turn of a request; if not, it is in the line from now on.

        Args:
            key: Requests of equal keys run one after the other.
            request: A request of the batch that runs.
            context: The context of the backend that runs it.

        Returns:
            True: it runs now, and `leave` has to be called afterwards. False: its outcome has to be `headrace.PENDING`;
            it is resumed, and comes here again, when its turn has come.
        """
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = deque([_Turn(_RUNS, request, context.resume)])
                return True
            first = line[0]
            if first.stage == _CALLED and first.request is request:
                first.stage = _RUNS
                return True
            turn = _Turn(_WAITS, request, context.resume)
            line.append(turn)
        context.on_end(request, lambda _: self._ended(key, turn))
        return False

    def leave(self, key: Hashable) -> None:
        """Give the turn of a key to the next in its line, since the one that ran has ended."""
        with self._lock:
            self._lines[key].popleft().stage = _OVER
            called = self._next(key)
        self._call(key, called)

    def busy(self, key: Hashable) -> bool:
        """Tell whether a request of a key runs or waits."""
        with self._lock:
            return key in self._lines

    def _next(self, key: Hashable) -> _Turn | None:
        """Call the first of a line, under the lock; an empty line is forgotten."""
        line = self._lines[key]
        if not line:
            del self._lines[key]
            return None
        line[0].stage = _CALLED
        return line[0]

    def _call(self, key: Hashable, turn: _Turn | None) -> None:
        """Resume a request; where it has ended meanwhile, the one behind it."""
        while turn is not None and not turn.resume(turn.request):
            with self._lock:
                if turn.stage != _CALLED:
                    return
                turn.stage = _OVER
                self._lines[key].popleft()
                turn = self._next(key)

    def _ended(self, key: Hashable, turn: _Turn) -> None:
        """Take a request that has ended before its turn out of the line."""
        called: _Turn | None = None
        with self._lock:
            if turn.stage == _WAITS:
                self._lines[key].remove(turn)
            elif turn.stage == _CALLED:
                self._lines[key].popleft()
                called = self._next(key)
            else:
                return
            turn.stage = _OVER
        self._call(key, called)

    def statistics(self) -> dict[str, int]:
        """Return how many keys are busy, and how many requests wait for their turn."""
        with self._lock:
            behind = sum(len(line) - 1 for line in self._lines.values())
            return {"busy": len(self._lines), "waiting": behind}
