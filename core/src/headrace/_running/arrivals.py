"""Requests that come while all instances are busy: their callers put them aside, and they enter as the next batch ends.

The thread that has run the batch is awake, and takes all of them in. If each caller let its own request in, it would do that with the
interpreter lock, on a processor that has just woken up. If no batch ends, the look for circles of calls lets them in. So no request
with a deadline is put aside.
"""

from __future__ import annotations

from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from headrace._running.batch import batches_run
from headrace._running.box import ask, in_steps, post
from headrace._running.entry import Entry
from headrace._running.runners import withdraw
from headrace._running.threads import calls_run, check_stack

if TYPE_CHECKING:
    from headrace.keys import Request


def may_put_aside(node: Any) -> bool:
    """Tell whether this thread may put a request aside: a batch that is not its own will end, and the queue refuses nobody."""
    if node.free or node.special or not node.watched or not node.short_cut.puts_aside:
        return False
    me = get_ident()
    return not (node.box.steps or me in in_steps or me in batches_run or me in calls_run)


def put_aside(node: Any, step: Any, *args: Any) -> None:
    """Put a step aside that lets requests enter; where perhaps no batch will end, this thread runs it.

    It looks after it has put the step aside. Where all instances are busy then, and nothing is special, the next batch that ends
    finds the step. Where the last instance was lost meanwhile, or the pipeline has closed, this thread sees that.
    """
    node.box.arrivals.append((step, args))
    if node.free or node.special or not node.watched:
        post(node.box, bool)


class Arrival:
    """A request without a deadline that its caller puts aside, and waits for."""

    __slots__ = ("_at", "_entered", "_entry", "_ident", "_lock", "_request")

    def __init__(self, node: Any, request: Request, entered: dict[type, Any] | None) -> None:
        check_stack()
        self._request, self._entered = request, entered
        self._at, self._ident = node.clock(), get_ident()
        self._entry: Entry | None = None
        self._lock = Lock()
        self._lock.acquire()

    def run(self, node: Any) -> None:
        """Put the request aside, wait, and raise its error."""
        try:
            put_aside(node, self._send, node)
            self._lock.acquire()
        except BaseException as raised:
            raised.abandoned = ask(node.box, self._withdraw)  # type: ignore[attr-defined]
            raise
        assert self._entry is not None  # noqa: S101 - it has ended
        self._entry.give_back()
        self._entry.raise_error()

    def _withdraw(self) -> bool:
        return self._entry is not None and withdraw([self._entry])

    def _send(self, node: Any) -> None:
        self._entry = entry = Entry(self._request, self._end)
        entry.awaited, entry.entered = self._ident, self._entered
        entries = (entry,)
        node.start(entries, self._at)
        node.enter(entries)

    def _end(self, _: Entry) -> None:
        self._lock.release()
