"""Answers that come later: requests that a backend keeps as PENDING, and what it may ask for them.

The outcome PENDING takes an entry out of its batch. From then on no thread runs it and none is held for it: it is in
`Pending.open` of its node, counts there as waiting, and leaves by `resume` (into the queue again, at its front), by `finish`
(with its outcome), or as every entry that waits does: deadline, cancel, close. Its holder is told of every end.

**What is asked too early**, while ``forward`` still runs, is noted and done once the outcome is known: a request that is
resumed is in the queue again before another batch is cut, so it loses no place to those that wait. A request that its caller
runs past the queue has no entry; it gets one when something is asked for it (`Pending.of`), or when its outcome is PENDING.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace._portable import nearest, shown, without_locals
from headrace._scheduling.cycles import held_here
from headrace._scheduling.entry import (
    DONE,
    PENDED,
    RUNNING,
    UNCOUNTED,
    Entry,
    own_error,
    refuses_change,
)
from headrace._scheduling.parts import parts_of
from headrace._scheduling.queue import RequestQuota
from headrace._scheduling.refusals import unfit
from headrace._scheduling.threads import helpers, reentrant
from headrace.errors import ContractError, InputError, InstanceLostError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace._backend import Backend
    from headrace._scheduling.entry import Quota
    from headrace._scheduling.instance import Instance
    from headrace.keys import Request

    Node: TypeAlias = Any
    Scheduler: TypeAlias = Any
    """Of `headrace._scheduling.node` and `scheduler`, which import this module."""

_log = logging.getLogger("headrace.scheduling")

AGAIN: Any = object()
"""Stands for what was asked for: the request is to be queued again at its own node."""


class Held:
    """What is known of a request that a backend keeps, or may keep.

    Attributes:
        instance: The instance whose backend has kept it last.
        asked: What was asked for while ``forward`` ran, `AGAIN` to be queued here again; None for nothing. All but these
            two need no instance of this node: it is an answer, or another node is to run the request.
        functions: Who is told of its end.
        quota: Counts it while it is PENDING.
        since: When it was last put into the queue, in seconds on the clock of the node.
        away: Its entry at another node, with the scheduler there; None while it is here.
        own: What the backend keeps with it.
    """

    __slots__ = ("asked", "away", "functions", "instance", "own", "quota", "since")

    def __init__(self) -> None:
        self.instance: Instance | None = None
        self.asked: Callable[[], object] | None = None
        self.functions: list[Callable[[Request], object]] = []
        self.quota: Quota = UNCOUNTED
        self.since = 0.0
        self.away: tuple[Scheduler, Entry] | None = None
        self.own: dict[Any, Any] = {}


class Pending:
    """The requests of one node that backends keep; every method is called in a section of the node.

    Attributes:
        open: The entries that are PENDING, being answered, or at another node.
        known: All entries that a backend has asked something for, by the identity of the request, until they end.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.open: dict[Entry, None] = {}
        self.known: dict[int, Entry] = {}

    @property
    def waiting(self) -> list[Entry]:
        """The entries that are PENDING."""
        return [entry for entry in self.open if entry.state == PENDED]

    def find(self, request: Request) -> Entry | None:
        """Return the entry of a request that is kept here, or runs here in a batch; None for none. Also without the lock."""
        entry = self.known.get(id(request))
        if entry is not None and entry.request is request:
            return entry
        batches = [[*(one.entries or ())] for one in self._node.every]
        return next((one for batch in batches for one in batch if one.request is request), None)

    def of(self, request: Request) -> Entry | None:
        """Return the entry of a request, which from now on is known; one that its caller runs gets an entry."""
        entry = self.find(request)
        if entry is None:
            for instance in self._node.every:
                if instance.holder is request:
                    entry = instance.adopted = self.adopted(instance, request)
                    self._node.special = True  # who gives the instance back looks here
        return entry if entry is None or entry.state == DONE else self._know(entry)

    def _know(self, entry: Entry) -> Entry:
        if entry.held is None:
            entry.held = Held()
        self.known[id(entry.request)] = entry
        return entry

    def adopted(self, instance: Instance, request: Request) -> Entry:
        """Return the entry of a request that its caller runs; an instance has at most one."""
        entry, instance.adopted = instance.adopted, None
        self._node.special = not self._node.is_usual
        if entry is None:
            entry = Entry(request)
            entry.state, entry.arrival = RUNNING, self._node.clock()
        return self._know(entry)

    def left(self, instance: Instance) -> None:
        """Let the entry of a request go that its caller has run to its end."""
        node, entry = self._node, instance.adopted
        instance.adopted = None
        if entry is not None:
            entry.state = DONE
            self.ended(entry)
        node.special = not node.is_usual

    def pend(self, entry: Entry, instance: Instance) -> None:
        """Keep an entry whose outcome is PENDING, unless its node or its instance keeps nothing any more.

        The last batch of an old instance counts: what was asked while it ran is done, unless a new instance is to go on.
        """
        node = self._node
        self._know(entry)
        held: Held = entry.held
        held.instance = instance
        if node.refusing is not None and (node.dead or not node.drains):
            node.settle(entry, own_error(node.refusing))
        elif instance.liveness.lost or (
            instance.retired is not None and (held.asked is None or held.asked is AGAIN)
        ):
            node.settle(entry, gone(node))
        elif held.asked is AGAIN:
            self._queue(entry)
        else:
            entry.state = PENDED
            self.open[entry] = None
            held.quota = entry.quota or RequestQuota(node.quota, entered=True)
            held.quota.began(entry, node.evict)
            if held.asked is not None:
                node.afterwards.append(held.asked)
        held.asked = None

    def _leave(self, entry: Entry) -> None:
        if entry in self.open:
            del self.open[entry]
            enqueue = entry.held.quota.ended(entry)
            if enqueue is not None:
                self._node.afterwards.append(enqueue)

    def queue_again(self, entry: Entry) -> bool:
        """Put an entry that is PENDING into the queue again; False where it is not PENDING."""
        if entry.state != PENDED:
            return False
        self._queue(entry)
        self._node.dispatch()
        return True

    def _queue(self, entry: Entry) -> None:
        """Put an entry into the queue again, or fail one that no instance takes. Call `dispatch` next."""
        node = self._node
        error = node.no_instance() if node.lost else unfit(node, entry)
        if error is not None:
            node.settle(entry, error)
        else:
            self._leave(entry)
            entry.held.since = node.clock()
            node.queue.push(entry)

    def ended(self, entry: Entry) -> None:
        """Let go of an entry that has its outcome, and have its holder told."""
        held: Held = entry.held
        self._leave(entry)
        self.known.pop(id(entry.request), None)
        if held.away is not None:
            scheduler, other = held.away
            self._node.afterwards.append(partial(scheduler.cancel, other))
            held.away = None
        for function in held.functions:
            self._node.afterwards.append(partial(_tell_later, function, entry.request))
        held.functions = []

    def let_go(self, instances: Sequence[Instance]) -> None:
        """Fail what instances that serve no more have kept, whether it is PENDING or in the queue again."""
        node = self._node
        queued: Iterable[Entry] = [one for one in self.known.values() if one not in self.open]
        for entry in [*self.waiting, *(one for one in queued if one.state not in (RUNNING, DONE))]:
            if entry.held.instance in instances:
                node.fail_waiting(gone(node), [entry])


def gone(node: Node) -> InstanceLostError:
    """Make the error of a request whose holder was replaced, or lost."""
    what = "the instance that kept the request as PENDING serves no more"
    return InstanceLostError(what, node=node.name, hint="Send the request again.")


def _tell_later(function: Callable[[Request], object], request: Request) -> None:
    """Have a helper tell a holder of an end: who ends a request may hold a lock for which the holder waits."""
    try:
        helpers.run(_tell, function, request)
    except RuntimeError:  # no thread can be started: the interpreter ends
        _tell(function, request)


def _tell(function: Callable[[Request], object], request: Request) -> None:
    try:
        function(request)
    except BaseException as error:  # noqa: BLE001 - the request has ended all the same
        _log.error("a function of context.on_end raised", exc_info=error)


class Keeping:
    """What the context of a backend offers for requests that it answers later; every method at any moment, in any thread.

    Args:
        backend: The backend.
        nodes: Gives all that is registered in the pipeline: nodes as ``node.NAME``, with ``scheduler`` and ``levels``.
    """

    def __init__(self, backend: Backend, nodes: Callable[[], Mapping[str, Any]]) -> None:
        self._backend, self._nodes = backend, nodes

    def _node(self) -> Node | None:
        liveness = self._backend._liveness
        return None if liveness is None else liveness.node

    def resume(self, request: Request, node: str | None = None) -> bool:
        """Queue a request again: see `headrace.InitContext`."""
        called = None if node is None else self.called(node, "context.resume")
        if called is not None and called.levels:
            what = f"context.resume: node {node!r} has 'each': a request cannot be resumed there"
            raise self._backend._located(ContractError(what))
        if called is None or called.scheduler.node is self._node():
            return self._ask(request)
        return self._ask(request, partial(self._send, called.scheduler))

    def finish(self, request: Request, outcome: Any) -> bool:
        """End a request: see `headrace.InitContext`."""
        return self._ask(request, partial(self._answer, outcome))

    def emit(self, request: Request, part: Any) -> None:
        """Give a part of an answer: see `headrace.InitContext`."""
        parts = parts_of(request, self._node())
        if parts is not None:
            parts.put(part)

    def emitted(self, request: Request) -> bool:
        """Tell whether a part of the answer was given to somebody: then no other run may take its place."""
        parts = parts_of(request, self._node())
        return parts is not None and parts.begun

    def kept(self, request: Request) -> dict[Any, Any]:
        """Return what the backend keeps with a request: see `headrace.InitContext`."""
        node = self._node()
        entry = None if node is None else node.pending.known.get(id(request))
        return {} if entry is None or entry.request is not request else entry.held.own

    def called(self, name: str, asking: str) -> Any:
        """Return the node of a name, a ``NodeCall``, for what ``asking`` says.

        Raises:
            ContractError: There is none.
            TypeError: The name is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"{asking}: a node is named by a text, got {shown(name)}")
        nodes = self._nodes()
        if (called := nodes.get(f"node.{name}")) is not None:
            return called
        names = [one[5:] for one in nodes if one.startswith("node.")]
        near = nearest(name, names)
        hint = f"Did you mean {near!r}?" if near else f"There is {', '.join(names)}."
        error = ContractError(f"{asking}: no node is called {name!r}", hint=hint)
        raise self._backend._located(error)

    def _ask_later(self, request: Request, *answer: Callable[..., bool] | None) -> bool:
        helpers.run(partial(self._ask, request, *answer))
        return True

    @reentrant(later=_ask_later)
    def _ask(self, request: Request, answer: Callable[[Node, Entry], bool] | None = None) -> bool:
        """Queue a request that is PENDING again, or let ``answer`` end it after the section; note it while ``forward`` runs."""
        node = self._node()
        if node is None:
            return False
        with node.section:
            pending: Pending = node.pending
            entry = pending.known.get(id(request))
            if entry is None or entry.request is not request:
                entry = pending.of(request)
            if entry is None or entry.state == DONE:
                return False
            if entry.state == RUNNING and entry not in pending.open:
                held: Held = entry.held
                if held.asked is not None:
                    return False
                held.asked = AGAIN if answer is None else partial(self._ask, request, answer)
                return True
            if answer is None:
                return pending.queue_again(entry)
            if entry.state != PENDED:
                return False
            entry.state = RUNNING  # for this thread alone, until it has the outcome
        return answer(node, entry)

    def _answer(self, outcome: Any, node: Node, entry: Entry) -> bool:
        error: BaseException | None = None
        if isinstance(outcome, BaseException):
            error = self._backend._wrap(without_locals(outcome))  # type: ignore[arg-type]
        else:
            try:
                entry.request["result"] = outcome
            except Exception as refusal:  # noqa: BLE001 - the caller's own dict may raise anything
                error = refuses_change(refusal)
        return _settle(node, entry, error)

    def _send(self, scheduler: Scheduler, node: Node, entry: Entry) -> bool:
        """Let another node run the request, whose outcome there is its outcome here."""
        other = Entry(
            entry.request, _Away(node, entry), 1, entry.deadline, entry.priority, UNCOUNTED
        )
        other.entered = entry.entered
        entry.request.pop("result", None)
        try:
            other.weight = scheduler.checked_again(entry.request)
        except InputError as error:
            return _settle(node, entry, error.with_traceback(None))
        entry.held.away = scheduler, other
        scheduler.enqueue(other, internal=True)
        return True

    def on_end(self, request: Request, function: Callable[[Request], object]) -> None:
        """Have a holder told of the end of a request: see `headrace.InitContext`."""
        if not callable(function):
            raise TypeError(f"context.on_end: a function is told of the end, got {shown(function)}")
        self._told(request, function)

    @reentrant()
    def _told(self, request: Request, function: Callable[[Request], object]) -> None:
        node = self._node()
        if node is not None:
            with node.section:
                entry = node.pending.of(request)
                if entry is not None and entry.state != DONE:
                    entry.held.functions.append(function)
                    return
        _tell_later(function, request)

    def unwanted(self, request: Request) -> bool:
        """Tell whether nobody waits for a request any more: see `headrace.InitContext`."""
        node = self._node()
        if node is None:
            return False
        entry = node.pending.find(request)
        if entry is not None:
            return bool(entry.state == DONE)
        # An item that a container has made is none of the scheduler's; else the request has ended.
        return not held_here(node) and all(one.holder is not request for one in node.every)

    def away(self, *, takes_batches: bool = False) -> None:
        """Say that what the backend computes with is away: see `headrace.InitContext`."""
        if self._backend._liveness is not None:
            self._backend._liveness.away(self, takes_batches=takes_batches)

    def back(self) -> None:
        """Say that it is there again: see `headrace.InitContext`."""
        if self._backend._liveness is not None:
            self._backend._liveness.back(self)

    def alongside(self, cls: type) -> list[tuple[Request, Any]]:
        """Return what other instances of the node run, each with what ``cls.enter`` returned: see `headrace.InitContext`."""
        node, mine = self._node(), self._backend._liveness
        others = [] if node is None else [one for one in node.every if one.liveness is not mine]
        running = [entry for one in others for entry in [*(one.entries or ())]]
        return [
            (one.request, (one.entered or {}).get(cls)) for one in running if one.state == RUNNING
        ]


class _Away:
    """The owner of the entry that a request has at another node."""

    def __init__(self, node: Node, entry: Entry) -> None:
        self._node, self._entry = node, entry

    def finished(self, entry: Entry) -> None:
        """Give the outcome to the request; a second time changes nothing."""
        if self._entry.state != DONE:
            entry.give_back()
            _settle(self._node, self._entry, entry.take_error())


def _settle(node: Node, entry: Entry, error: BaseException | None) -> bool:
    """Give a request that was PENDING its outcome; False where it has one."""
    if error is not None:
        entry.code = code_of(error)
        node.failures.note(error, entry.request)
    with node.section:
        ends = entry.state != DONE
        if ends:
            node.settle(entry, error)
            node.dispatch()
    return ends
