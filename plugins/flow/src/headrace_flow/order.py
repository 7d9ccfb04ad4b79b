"""The rule of order by key: requests of one key run one after the other, requests of different keys side by side.

A backend that needs it (`StateFul`, the order of the pictures of one source, ...) holds one `InOrder` for all instances of
a node::

    enter = staticmethod(arrival)

    def forward(self, batch):
        outcomes = [None] * len(batch)
        turns = self.order.take(batch, self.context)
        mine = [place for place, turn in enumerate(turns) if turn]
        for place, turn in enumerate(turns):
            if not turn:
                outcomes[place] = headrace.PENDING  # it comes again when its turn has come
        ...

and calls ``order.leave(key)`` for each that has run, once nothing of it runs any more (``context.batch.at_end``).
No thread waits, and the scheduler knows nothing of it.

**Several instances.** Of two batches formed one after the other, the second may come here first. So `arrival` numbers
requests as they come in, and `take` also looks at the batches of other instances: an earlier request of the same key that
has not been here yet goes first.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import headrace
    from headrace.keys import Request

__all__ = ["InOrder", "arrival"]

_WAITS, _CALLED, _RUNS, _OVER = range(4)


_numbers = itertools.count(1)


def arrival(request: Request) -> int:
    """Return the number of a request that comes in: the ``enter`` of a backend that holds an `InOrder`."""
    return next(_numbers)


class _Turn:
    """The place of one request in the line of its key: it waits, is called (resumed), runs, or is over."""

    __slots__ = ("context", "handle", "number", "stage")

    def __init__(self, number: int, handle: Any, context: headrace.InitContext, stage: int) -> None:
        self.number = number
        self.handle = handle
        self.context = context
        self.stage = stage


class InOrder:
    """Lines of requests, one per key. The first of each line has the turn. Any thread may use it.

    A request that waits for its turn, or was called and waits in the queue again, may end otherwise: by its deadline, a
    cancellation, a close. Then it leaves the line, and the one behind it has the turn.

    Args:
        key_of: Returns the key of a request. Where it raises, the request is none of a line.
    """

    def __init__(self, key_of: Callable[[Request], Hashable]) -> None:
        self._key_of = key_of
        self._lock = threading.Lock()
        self._lines: dict[Hashable, deque[_Turn]] = {}

    def take(self, requests: Sequence[Request], context: headrace.InitContext) -> list[bool]:
        """Tell of each request whether it is its turn. If not, it is in the line of its key from now on.

        Args:
            requests: Requests of the batch that runs, each with a key.
            context: The context of the backend that runs them.

        Returns:
            True: it runs now, and `leave` has to be called afterwards. False: its outcome has to be `headrace.PENDING`.
            It is resumed, and comes here again, when its turn has come.
        """
        elsewhere: dict[Hashable, list[tuple[int, Any]]] = {}
        for other, number in context.request.alongside():
            with suppress(Exception):  # a dict of a user may raise anything
                key = self._key_of(other.request)
                elsewhere.setdefault(key, []).append((number or 0, other))
        return [self._take(request, context, elsewhere) for request in requests]

    def _take(
        self,
        request: Request,
        context: headrace.InitContext,
        elsewhere: dict[Hashable, list[tuple[int, Any]]],
    ) -> bool:
        key, number = self._key_of(request), context.request.entered(request) or 0
        handle = context.request.keep(request)
        with self._lock:
            line = self._lines.setdefault(key, deque())
            earlier = [
                other
                for before, other in elsewhere.get(key, ())
                if before < number and all(turn.handle != other for turn in line)
            ]
            called = bool(line) and line[0].stage == _CALLED and line[0].handle == handle
            before_it: _Turn | None = None
            if called:
                turn = line[0]
                turn.stage = _WAITS if earlier else _RUNS
                if not earlier and any(t.number < turn.number for t in line):
                    # It was called before an earlier one had come here, which has come meanwhile.
                    ordered = sorted(line, key=lambda t: t.number)
                    line.clear()
                    line.extend(ordered)
                    turn.stage = _WAITS
                    before_it = self._next(key)
            else:
                turn = _Turn(number, handle, context, _WAITS)
                place = len(line)
                while place and line[place - 1].stage == _WAITS and line[place - 1].number > number:
                    place -= 1
                line.insert(place, turn)
                if not place and not earlier:
                    turn.stage = _RUNS
            if turn.stage == _RUNS:
                return True
        self._call(key, before_it)
        for other in earlier:
            if not context.request.on_end(other, lambda _: self._look(key)):
                self._look(key)
        if not called and not context.request.on_end(handle, lambda _: self._ended(key, turn)):
            self._ended(key, turn)
        return False

    def _look(self, key: Hashable) -> None:
        """Call the first of a line, where none has the turn: another request, for which it waited, has ended."""
        with self._lock:
            line = self._lines.get(key)
            called = self._next(key) if line and line[0].stage == _WAITS else None
        self._call(key, called)

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
        while turn is not None and not turn.context.request.resume(turn.handle):
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
                line = self._lines[key]
                line.remove(turn)
                if not line:
                    del self._lines[key]
                elif line[0].stage == _WAITS:
                    called = self._next(key)
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
