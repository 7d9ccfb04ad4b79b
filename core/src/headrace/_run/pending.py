"""Answers that come later: requests that a backend keeps as PENDING, and what it may ask for them.

The outcome PENDING takes an entry out of its batch. From then on no thread runs it and none is held for it. What is known of it is
one record, `Kept`, in the table of its node, from the first word of a backend about the request until it has its outcome:

| the entry is | and the request |
|---|---|
| RUNNING | runs: what is asked now is noted, and done once the outcome is known to be PENDING |
| PENDED | waits for its backend: `finish` ends it, `resume` queues it again |
| QUEUED | waits for its next batch |
| RUNNING, with `Kept.away` | is at another node, whose outcome will be its own |

Deadline, cancel and close end it as every entry that waits. Its holder is told of every end. A backend that asks says so in its
class, by `keeps`. So at its node no caller runs a request past the queue, where it would have no entry.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace._run.entry import (
    DONE,
    PENDED,
    QUEUED,
    RUNNING,
    Entry,
    own_error,
    refuses_change,
)
from headrace._run.node_request import Sent
from headrace._run.refusals import unfit_error
from headrace._run.room import Ticket
from headrace.errors import InstanceLostError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.instance import Instance
    from headrace._run.node import Node
    from headrace._run.node_request import Called
    from headrace.keys import Request

_log = logging.getLogger("headrace.scheduling")


class Kept:
    """What is known of a request that a backend keeps, or may keep.

    Attributes:
        instance: The instance whose backend has kept it last. None while none has.
        asked: The step that was asked for while ``forward`` ran.
        functions: Who is told of its end.
        since: When it was last put into the queue, in seconds on the clock of the node.
        away: The request at another node, which a backend here has sent it to. None while it is here.
        goes_on_at: The node at which the graph is to go on with the request. None for those linked after this one.
        own: What the backend keeps with it.
    """

    __slots__ = ("asked", "away", "functions", "goes_on_at", "instance", "own", "since")

    def __init__(self) -> None:
        self.instance: Instance | None = None
        self.asked: Callable[[Entry], object] | None = None
        self.functions: list[Callable[[Request], object]] = []
        self.since = 0.0
        self.away: Sent | None = None
        self.goes_on_at: str | None = None
        self.own: dict[Any, Any] = {}


class Pending:
    """The requests of one node that backends keep. All but `find` are steps.

    Attributes:
        known: The entries that have a record, by the identity of the request.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.known: dict[int, Entry] = {}

    @property
    def open(self) -> list[Entry]:
        """The entries that are PENDING, or at another node."""
        known = self.known.values()
        return [entry for entry in known if entry.state == PENDED or entry.held.away is not None]

    @property
    def waiting(self) -> list[Entry]:
        """The entries that are PENDING."""
        return [entry for entry in self.known.values() if entry.state == PENDED]

    def find(self, request: Request) -> Entry | None:
        """Return the entry of a request that is kept here, or runs here in a batch; None for none. In any thread."""
        entry = self._record_of(request)
        if entry is not None:
            return entry
        for instance in self._node.instances:
            for running in instance.entries or ():
                if running.request is request:
                    return running
        return self._record_of(request)  # it may have left its batch meanwhile

    def _record_of(self, request: Request) -> Entry | None:
        entry = self.known.get(id(request))
        return None if entry is None or entry.request is not request else entry

    # The record of a request begins, and ends.

    def of(self, request: Request) -> Entry | None:
        """Return the entry of a request, which from now on is known."""
        entry = self.find(request)
        return entry if entry is None or entry.state == DONE else self._know(entry)

    def _know(self, entry: Entry) -> Entry:
        if entry.held is None:
            entry.held = Kept()
        self.known[id(entry.request)] = entry
        return entry

    def pend(self, entry: Entry, instance: Instance) -> None:
        """Keep an entry whose outcome is PENDING, unless its node or its instance keeps nothing any more."""
        node = self._node
        if entry.state != RUNNING:  # it has ended while the batch ran
            return
        held: Kept = self._know(entry).held
        held.instance = instance
        asked, held.asked = held.asked, None
        if node.refusing is not None and (node.dead or not node.drains):
            node.settle(entry, own_error(node.refusing))
        elif instance.liveness.lost:
            node.settle(entry, holder_lost_error(node.name))
        else:
            entry.state = PENDED
            if entry.ticket is None:
                entry.ticket = Ticket(node)
            entry.ticket.waits(entry)
            if asked is not None:
                asked(entry)

    def end_entry(self, entry: Entry) -> None:
        """Let go of an entry that has its outcome, and have its holder told."""
        held: Kept = entry.held
        if entry.ticket is not None:
            entry.ticket.leave(entry)
        self.known.pop(id(entry.request), None)
        sent, held.away = held.away, None
        if sent is not None:
            sent.give_up()
        functions, held.functions = held.functions, []
        for function in functions:
            self._tell_later(function, entry.request)

    def let_go(self, instances: Sequence[Instance]) -> None:
        """Fail what instances that serve no more have kept, whether it is PENDING or in the queue again."""
        for entry in [*self.known.values()]:
            if entry.held.instance in instances and entry.state in (PENDED, QUEUED):
                self._node.fail_waiting(holder_lost_error(self._node.name), [entry])

    # What a backend asks.

    def asks(self, request: Request, step: Callable[[Entry], object]) -> bool:
        """Do what a backend has asked for a request, now or once its ``forward`` is over; False where it has ended."""
        entry = self._record_of(request) or self.of(request)
        if entry is None or entry.state == DONE:
            return False
        held: Kept = entry.held
        if entry.state == PENDED:
            step(entry)
            return True
        if entry.state != RUNNING or held.away is not None or held.asked is not None:
            return False
        held.asked = step
        return True

    def on_end(self, request: Request, function: Callable[[Request], object]) -> None:
        """Have a holder told of the end of a request."""
        entry = self.of(request)
        if entry is not None and entry.state != DONE:
            entry.held.functions.append(function)
        else:
            self._tell_later(function, request)

    def queue_again(self, entry: Entry) -> None:
        """Put an entry that is PENDING into the queue again, or fail one that no instance takes."""
        node = self._node
        error = node.no_instance() if node.lost else unfit_error(node, entry)
        if error is not None:
            node.settle(entry, error)
            return
        entry.ticket.leave(entry)
        entry.held.since, entry.trait_of = node.clock(), None  # it is not what it was
        node.queue.add(entry)
        node.note_change()

    def answer(self, error: BaseException | None, outcome: Any, entry: Entry) -> None:
        """Give an entry that is PENDING its outcome."""
        if error is None:
            try:
                entry.request["result"] = outcome
            except Exception as refusal:  # noqa: BLE001 - the caller's own dict may raise anything
                error = refuses_change(refusal)
        self.settle(entry, error)

    def settle(self, entry: Entry, error: BaseException | None) -> None:
        """Give an entry its outcome, unless it has one."""
        if entry.state != DONE:
            if error is not None:
                entry.code = code_of(error)
            self._node.settle(entry, error)
            self._node.note_change()

    def send(self, there: Called, entry: Entry) -> None:
        """Let another node run the request, whose outcome there is its outcome here."""

        def back(error: BaseException | None) -> None:
            entry.held.away = None
            self.settle(entry, error)

        entry.state = RUNNING  # there
        entry.held.away = sent = Sent(there, entry.request, entry, back)
        sent.start()

    def go_on(self, name: str, there: Called, entry: Entry) -> None:
        """Let the graph go on with the request at another node; where none leads it, that node answers it."""
        if entry.ticket is not None and entry.ticket.walks:
            entry.held.goes_on_at = name
            self.settle(entry, None)
        else:
            self.send(there, entry)

    def _tell_later(self, function: Callable[[Request], object], request: Request) -> None:
        self._node.box.later(self._node.box.threads.pool.run, tell, function, request)


def holder_lost_error(node: str) -> InstanceLostError:
    """Make the error of a request whose holder was lost."""
    what = "the instance that kept the request as PENDING serves no more"
    return InstanceLostError(what, node=node, hint="Send the request again.")


def tell(function: Callable[[Request], object], request: Request) -> None:
    """Tell a holder of an end; in a thread of the pool."""
    try:
        function(request)
    except BaseException as error:  # noqa: BLE001 - the request has ended all the same
        _log.error("a function of context.request.on_end raised", exc_info=error)
