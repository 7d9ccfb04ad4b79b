"""Requests that come while all instances are busy: their callers leave them at the box, and they enter as the next batch ends.

The thread that has run the batch is awake, and takes all of them in. Callers that enter by themselves wake up one by one, each with
the interpreter lock and a cold processor. If no batch ends, the look for circles of calls lets them in.
"""

from __future__ import annotations

from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from headrace._running.batch import batches_run
from headrace._running.box import ask, in_steps, post
from headrace._running.entry import Entry
from headrace._running.runners import withdraw
from headrace._running.threads import calls_run

if TYPE_CHECKING:
    from headrace.keys import Request


def may_leave(node: Any) -> bool:
    """Tell whether this thread may leave a request: a batch that is not its own will end, and the request cannot be refused."""
    if node.free or node.special or not node.watched or not node.short_cut.waits_for_threads:
        return False
    me = get_ident()
    return not (node.box.steps or me in in_steps or me in batches_run or me in calls_run)


def leave(node: Any, step: Any, *args: Any) -> None:
    """Leave a step that lets requests enter; where an instance came free meanwhile, this thread runs it."""
    node.box.arrivals.append((step, args))
    if node.free:
        post(node.box, bool)


class Arrival:
    """A request without a deadline that its caller leaves, and waits for."""

    __slots__ = ("_at", "_entered", "_entry", "_ident", "_lock", "_request")

    def __init__(self, node: Any, request: Request, entered: dict[type, Any] | None) -> None:
        self._request, self._entered = request, entered
        self._at, self._ident = node.clock(), get_ident()
        self._entry: Entry | None = None
        self._lock = Lock()
        self._lock.acquire()

    def run(self, node: Any) -> None:
        """Leave the request, wait, and raise its error."""
        try:
            leave(node, self._enter, node)
            self._lock.acquire()
        except BaseException as raised:
            raised.abandoned = ask(node.box, self._withdraw)  # type: ignore[attr-defined]
            raise
        assert self._entry is not None  # noqa: S101 - it has ended
        self._entry.give_back()
        self._entry.raise_error()

    def _withdraw(self) -> bool:
        return self._entry is not None and withdraw([self._entry])

    def _enter(self, node: Any) -> None:
        self._entry = entry = Entry(self._request, self._end)
        entry.awaited, entry.entered = self._ident, self._entered
        entries = (entry,)
        node.start(entries, self._at)
        node.enter(entries)

    def _end(self, _: Entry) -> None:
        self._lock.release()
