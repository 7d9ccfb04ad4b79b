"""Answers that come later: requests that a backend keeps as PENDING, and what it may ask for them.

The outcome PENDING takes an entry out of its batch. From then on no thread runs it and none is held
for it. What is known of it is one record, `Kept`, from the first word of a backend about the
request until it has its outcome:

| the entry is | and the request |
|---|---|
| RUNNING | runs: what is asked now is noted, and done once the outcome is known to be PENDING |
| PENDED | waits for its backend: `finish` ends it, `resume` queues it again |
| QUEUED | waits for its next batch |
| RUNNING, with `Kept.away` | is at another node, whose outcome will be its own |

Deadline, cancel and close end it as every entry that waits. Its holder is told of every end. A
backend that asks says so in its class, by `keeps`. So at its node no caller runs a request past the
queue, where it would have no entry.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from headrace._run.requests.entry import (
    DONE,
    PENDED,
    QUEUED,
    RUNNING,
    Entry,
    own_error,
    refuses_change,
)
from headrace._run.requests.node_request import Sent
from headrace._run.requests.refusals import unfit_error
from headrace._run.requests.room import Ticket
from headrace.errors import ContractError, InstanceLostError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.batches.instance import Instance
    from headrace._run.contract.settings import Links
    from headrace._run.node import Node
    from headrace.keys import Request

_log = logging.getLogger("headrace.scheduling")


class Kept:
    """What the kernel knows of a request of which a backend has a handle.

    Attributes:
        instance: The instance whose backend has kept it last. None while none has.
        asked: The step that was asked for while ``forward`` ran.
        functions: Who is told of its end, each with what it is called with.
        since: When it was last put into the queue, in seconds on the clock of the node.
        away: The request at another node, which a backend here has sent it to. None while it is
            here.
        goes_on_at: The node at which the graph is to go on. None for those linked after this one.
        notes: What the backend notes with it.
    """

    __slots__ = ("asked", "away", "functions", "goes_on_at", "instance", "notes", "since")

    def __init__(self, since: float = 0.0) -> None:
        self.instance: Instance | None = None
        self.asked: Callable[[Entry], object] | None = None
        self.functions: list[tuple[Callable[[Any], object], Any]] = []
        self.since = since
        self.away: Sent | None = None
        self.goes_on_at: str | None = None
        self.notes: dict[Any, Any] = {}


def record_of(entry: Entry) -> Kept:
    """Return the record of an entry, which begins here if there is none."""
    if entry.held is None:
        entry.held = Kept(entry.arrival)
    record: Kept = entry.held
    return record


class Pending:
    """The requests of one node that backends keep. All but `find` are steps.

    Attributes:
        known: The entries that have a record, in the order in which it began.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.known: dict[Entry, None] = {}

    @property
    def open(self) -> list[Entry]:
        """The entries that are PENDING, or at another node."""
        return [
            entry for entry in self.known if entry.state == PENDED or entry.held.away is not None
        ]

    @property
    def waiting(self) -> list[Entry]:
        """The entries that are PENDING."""
        return [entry for entry in self.known if entry.state == PENDED]

    def find(self, request: Request) -> Entry | None:
        """Return the entry of a request in a batch that runs at the node now; in any thread."""
        batches = [instance.entries or () for instance in self._node.instances]
        return next(
            (entry for batch in batches for entry in batch if entry.request is request), None
        )

    def pend(self, entry: Entry, instance: Instance) -> None:
        """Keep an entry whose outcome is PENDING, unless its node or instance keeps nothing now."""
        node = self._node
        if entry.state != RUNNING:  # it has ended while the batch ran
            return
        record: Kept | None = entry.held
        if record is None:
            self.settle(entry, not_kept_error(instance))
            return
        self.known[entry] = None
        record.instance = instance
        step, record.asked = record.asked, None
        if node.refusing is not None and (node.dead or not node.drains):
            node.settle(entry, own_error(node.refusing))
        elif instance.liveness.lost:
            node.settle(entry, holder_lost_error(node.name))
        else:
            entry.state = PENDED
            if entry.ticket is None:
                entry.ticket = Ticket(node)
            entry.ticket.waits(entry)
            if step is not None:
                step(entry)

    def end_entry(self, entry: Entry) -> None:
        """Let go of an entry that has its outcome, and have its holder told."""
        record: Kept = entry.held
        if entry.ticket is not None:
            entry.ticket.leave(entry)
        self.known.pop(entry, None)
        sent, record.away = record.away, None
        if sent is not None:
            sent.give_up()
        functions, record.functions = record.functions, []
        box = self._node.box
        for function, handle in functions:
            box.later(box.threads.pool.run, tell, function, handle)
        notes, record.notes = record.notes, {}
        if notes:  # in no step: what is noted may have a destructor
            box.later(notes.clear)

    def let_go(self, instances: Sequence[Instance]) -> None:
        """Fail what instances out of service have kept, PENDING or in the queue again."""
        for entry in [*self.known]:
            if entry.held.instance in instances and entry.state in (PENDED, QUEUED):
                self._node.fail_waiting(holder_lost_error(self._node.name), [entry])

    # What a backend asks.

    def asks(self, entry: Entry, step: Callable[[Entry], object]) -> bool:
        """Do what a backend has asked for an entry, now or after ``forward``; False if ended."""
        if entry.state == DONE:
            return False
        record = record_of(entry)
        self.known[entry] = None
        if entry.state == PENDED:
            step(entry)
            return True
        if entry.state != RUNNING or record.away is not None or record.asked is not None:
            return False
        record.asked = step
        return True

    def on_end(self, entry: Entry, function: Callable[[Any], object], handle: object) -> bool:
        """Have a holder told of the end of an entry; False where it has ended."""
        if entry.state == DONE:
            return False
        self.known[entry] = None
        record_of(entry).functions.append((function, handle))
        return True

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
            except Exception as refusal:  # the caller's own dict may raise anything
                error = refuses_change(refusal)
        self.settle(entry, error)

    def settle(self, entry: Entry, error: BaseException | None) -> None:
        """Give an entry its outcome, unless it has one."""
        if entry.state != DONE:
            if error is not None:
                entry.code = code_of(error)
            self._node.settle(entry, error)
            self._node.note_change()

    def send(self, node: Node, links: Links | None, entry: Entry) -> None:
        """Let another node run the request, whose outcome there is its outcome here."""

        def back(error: BaseException | None) -> None:
            entry.held.away = None
            self.settle(entry, error)

        entry.state = RUNNING  # there
        entry.held.away = sent = Sent(node, links, entry.request, entry, back)
        sent.start()

    def go_on(self, node: Node, links: Links | None, entry: Entry) -> None:
        """Let the graph go on with the request at another node; without one, answer."""
        if entry.ticket is not None and entry.ticket.walks:
            entry.held.goes_on_at = node.name
            self.settle(entry, None)
        else:
            self.send(node, links, entry)


def holder_lost_error(node: str) -> InstanceLostError:
    """Make the error of a request whose holder was lost."""
    message = "the instance that kept the request as PENDING serves no more"
    return InstanceLostError(message, node=node, hint="Send the request again.")


def not_kept_error(instance: Instance) -> ContractError:
    """Make the error of a request that is PENDING, and of which its backend has no handle."""
    message = f"{instance.backend._label()} returned PENDING for a request that it does not keep"
    hint = "Call handle = context.request.keep(request) first, and finish(handle, result) later."
    return ContractError(message, node=instance.liveness.node.name, hint=hint)


def tell(function: Callable[[Any], object], handle: object) -> None:
    """Tell a holder of an end; in a thread of the pool."""
    try:
        function(handle)
    except BaseException as error:  # the request has ended all the same
        _log.error("a function of context.request.on_end raised", exc_info=error)
