"""One node: queue, instances, and what becomes of a request. In steps, but for some.

An instance is in exactly one place: in `Node.free`, with who runs it, or out of service. Callers
take free ones without a step: see `headrace._run.batches.shortcut`.
"""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.batches import dispatch
from headrace._run.batches.events import Events
from headrace._run.batches.instance import LONG_S, SAMPLED
from headrace._run.batches.shortcut import ShortCut
from headrace._run.batches.standby import Standby
from headrace._run.batches.view import read_traits
from headrace._run.contract.checked import PENDING, largest_size
from headrace._run.records.failures import FailureLog
from headrace._run.records.probes import Probes, Reporter
from headrace._run.records.statistics import Tally
from headrace._run.requests import deadlocks
from headrace._run.requests.entry import (
    DATA_ALONE,
    DONE,
    NEW,
    OUTSIDE,
    QUEUED,
    RUNNING,
    check_weight,
    own_error,
)
from headrace._run.requests.node_request import waiting_for
from headrace._run.requests.pending import Pending
from headrace._run.requests.queue import RequestQueue
from headrace._run.requests.refusals import deadline_error, no_thread_error, unfit_error, withdrawn
from headrace._run.requests.room import Room
from headrace._run.steps.box import ask, main, outside, post
from headrace._run.steps.threads import threads_of, took_token, wake
from headrace.errors import ClosedError, InputError, InstanceLostError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace._run.batches.batch import Errors
    from headrace._run.batches.instance import Instance
    from headrace._run.batches.runners import Work
    from headrace._run.contract.policies import BatchPolicy, DispatchPolicy
    from headrace._run.contract.settings import Limits
    from headrace._run.requests.entry import Entry
    from headrace._run.steps.box import Box, Worker


class Node:
    """The queue and the instances of one node.

    They are in one object, since each part of its own is a look-up more on the way of a request.

    Attributes:
        box, name, limits, clock: Of its pipeline, its name, its queue keys, what gives seconds.
        instances: The instances.
        free: The instances that nobody runs. Only `give_back` and the short cut put one in.
        aside: The wide instance, while nobody has it and another one runs.
        narrow: How many instances serve, without the wide one.
        special: Whether who puts an instance back has to look here (closing, away, lost).
        min, max, lost: The weights that a living instance takes, and whether none lives.
        inbox: New entries. Any thread puts them in, steps alone take them out.
        queue: The entries that wait for an instance. `room` its bound, and who waits for that.
        token: One item while no worker is on its way to look at the inbox. Who takes it calls one.
        calls_at: From how many entries in the inbox and tickets on a worker is called in any case.
        holds_back: Whether an idle instance waits for more of them than one.
        is_plain: Whether all in the inbox is equally urgent, weighs 1, and no graph leads it.
        lets_in: Whether entries of the inbox are just let into the queue.
        crowded: Whether batches had several requests lately: then a worker takes them all.
        lingerer: The lock of a worker during its wait for callers to come again. None for none.
        pending: The requests that backends keep as PENDING.
        running: How many entries of batches run.
        counts: How many requests have come, and what is counted of those that no instance has run.
        must_have_result: Whether a request that ends without ``result`` has failed.
        refusing: The error of newcomers. None while the node is open.
        probes, events: The probes, and who is told of batches and requests.
        needs: The keys that a request must have.
        standby: The callers that wait as those who have not come yet.
        call: Runs one request for a caller that waits without a deadline.
    """

    def __init__(
        self,
        box: Box,
        name: str,
        instances: Sequence[Instance],
        batch_policy: BatchPolicy,
        dispatch_policy: DispatchPolicy,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.box, self.name, self.limits, self.clock = box, name, limits, clock
        self.events = Events(Tally, FailureLog(name, clock))
        self.instances: list[Instance] = list(instances)
        self.free: list[Instance] = []
        self.aside: list[Instance] = []
        self.narrow = 0
        self.lost = self.special = False
        self.inbox: deque[Entry] = deque()
        self.token: list[None] = [None]
        self.crowded = False
        self.lets_in, self.is_plain = False, True
        self.calls_at: float = 1
        self.holds_back = False
        self.lingerer: Any = None
        self.queue = RequestQueue()
        self.room = Room(self)
        self.tickets = self.room.tickets
        self.pending = Pending(self)
        self.entered = 0
        self.counts = Tally()
        self.must_have_result = True
        self.refusing: ClosedError | None = None
        self.drains = True
        self.dead = False
        self.watched = limits.deadlock_after_s <= 0
        self.probes = Probes()
        self.needs: Sequence[str] = DATA_ALONE
        self.decision: dispatch.Decision = dispatch.Decision(self, batch_policy, dispatch_policy)
        self.set_range(instances)
        self.standby: Standby = Standby(self)
        self.short_cut = ShortCut(self)
        self.call = self.short_cut.call
        ask(box, self._put_into_service)

    def note_change(self) -> None:
        """Have `dispatch` called after the steps."""
        self.box.dirty[self] = None

    # Before a request enters; in any thread.

    def need(self, keys: Sequence[str]) -> None:
        """Set the keys that a request must have."""
        self.needs = DATA_ALONE if keys == DATA_ALONE else keys
        self.short_cut.set_bounds()

    def check_entry(self, request: Any) -> int:
        """Check a request on entry and give its weight; InputError, counted, where it is wrong."""
        try:
            return check_weight(request, self.name, self.needs)
        except InputError as error:
            if isinstance(request, dict):
                request.pop("result", None)
            self.count_refused(request, error)
            raise

    def check_again(self, request: Any) -> int:
        """Return the weight of a request that was checked where it entered, and goes on here."""
        if "request_size" in request or "data" not in request or self.needs is not DATA_ALONE:
            return self.check_entry(request)
        return 1

    def count_refused(self, request: Any, error: BaseException) -> None:
        """Count a request that was refused before it entered."""
        post(self.box, self._count, error, 1)
        now = self.clock()
        outside(self.box, self.events.report_outcome, request, now, now, error)

    def count_late(self, request: Any, error: BaseException) -> None:
        """Count as failed a request that ended well at this node, and failed after it."""
        post(self.box, self._count, error, 0)
        outside(self.box, self.events.report_failure, request, error)

    def _count(self, error: BaseException, entered: int) -> None:
        self.entered += entered
        self.counts.count_failure(code_of(error))

    def start(self, entries: Sequence[Entry], at: float | None = None) -> None:
        """Set the times of new entries, and let the policy read them, in the thread that sends."""
        now, timeout_ms = self.clock() if at is None else at, self.limits.timeout_ms
        for entry in entries:
            entry.arrival, entry.node = now, self
            if timeout_ms is not None:
                ends_at = now + timeout_ms / 1000
                entry.deadline = ends_at if entry.deadline is None else min(ends_at, entry.deadline)
        if self.decision.picks:
            read_traits(entries, self.decision.policy, self)

    # Requests come in.

    def send(self, entries: Sequence[Entry], waits: int = 0) -> None:
        """Put new entries, whose times are set, into the inbox; in any thread, in no step.

        A worker is called for an idle instance, at the bound, or where something has to be looked
        at. Threads put an instance back, and then look at the inbox. This fills the inbox, and then
        looks at the instances. One of them sees the other.

        Args:
            entries: The entries.
            waits: The thread that waits for their outcome. 0 for none.
        """
        if waits and deadlocks.is_endless(self, waits):
            post(self.box, deadlocks.refuse, entries)
            return
        for entry in entries:
            if entry.deadline is not None and entry.node is self:
                error = self.watch_deadline(entry)
                if error is not None:
                    post(self.box, self.fail_waiting, error, (entry,))
        self.inbox.extend(entries)
        for entry in entries:
            if entry.weight != 1 or entry.priority or entry.node is not self:
                self.is_plain = False
        if (
            len(self.inbox) + len(self.tickets) >= self.calls_at
            or (self.free and not (self.holds_back and self.is_plain))
            or (entries[0].node is not self and entries[0].deadline is not None)
        ):
            self.call_worker()

    def set_calls_at(self) -> None:
        """Work out how many entries in the inbox call a worker, though none may be idle."""
        self.holds_back = self.decision.enough > 0
        if self.special or not self.watched or self.room.outside:
            self.calls_at = 1
            return
        queue = self.queue
        self.calls_at = self.limits.queue_size - queue.count + queue.ticketed + 1
        if self.holds_back:
            self.calls_at = min(self.calls_at, self.decision.enough - queue.weight)

    def call_worker(self) -> None:
        """Have a worker look at what waits here, unless one is on its way; in any thread."""
        lock = self.lingerer
        if lock is not None:
            wake(lock)
        elif get_ident() == main:  # which Ctrl-C may hit between any two of these
            post(self.box, self._look_for_batches)
        elif took_token(self.token):
            try:
                thread = self.free[0].thread
            except IndexError:
                thread = None
            self.box.call_worker(self._look_for_batches, thread)

    def _look_for_batches(self) -> None:
        """Let later callers call another worker, and have `dispatch` called."""
        self.token[:] = [None]
        if not self.free:  # in the queue, requests of a graph have their deadlines watched
            self.take_in()
        self.note_change()

    def take_in(self) -> None:
        """Let the entries of the inbox into the queue."""
        if not self.lets_in:  # else a bound was met on the way, and the others come in their turn
            inbox = self.inbox
            self.is_plain = True
            while inbox:
                try:  # who looks sees it there until it is elsewhere
                    self._let_in((inbox[0],))
                finally:
                    inbox.popleft()

    def enter(self, entries: Iterable[Entry]) -> None:
        """Let new entries into the queue, behind those of the inbox. A refused one fails alone."""
        self.take_in()
        self._let_in(entries)

    def _let_in(self, entries: Iterable[Entry]) -> None:
        outer, self.lets_in = self.lets_in, True
        try:
            for entry in entries:
                if entry.ticket is not None:
                    entry.ticket.leave(entry)  # until it waits in the queue
                if entry.node is not self:
                    entry.node.start()  # type: ignore[call-arg]
                elif entry.state == NEW:
                    self._let_one_in(entry)
        finally:
            self.lets_in = outer
        self.set_calls_at()
        if self.queue.weight >= self.decision.enough or self.inbox:
            self.note_change()

    def _let_one_in(self, entry: Entry) -> None:
        self.entered += 1
        error = self._refusal(entry) or unfit_error(self, entry)
        error = error or self.watch_deadline(entry)
        if error is not None:
            self.settle(entry, own_error(error))
        elif self.room.has_room(entry):
            self.queue.add(entry)
            if entry.room is not None:
                entry.room()

    def _refusal(self, entry: Entry) -> BaseException | None:
        """Return why a new entry may not enter; None where it may."""
        if self.refusing is not None:
            goes_on = entry.internal and not self.dead and (self.drains or bool(self.free))
            if not goes_on:
                return self.refusing
        return self.no_instance() if self.lost else None

    def watch_deadline(self, entry: Entry) -> BaseException | None:
        """Have the timer fail an entry in time if its caller does not; give what prevents it."""
        deadline, waiter = entry.deadline, entry.waiter
        if deadline is None or entry.lock is not None:
            return None
        if entry.alarm is None and (waiter is None or waiter.deadline != deadline):
            expire = partial(post, self.box, self.fail_late, entry)
            try:
                entry.alarm = self.box.threads.timer.call_at(deadline, expire)
            except RuntimeError as refusal:
                return no_thread_error(self.name, "watch its deadline", refusal)
        return None

    # Batches begin, and end.

    def dispatch(self) -> None:  # noqa: C901 - once a batch, so it makes few calls
        """Let all batches begin that are due."""
        self.decision.enough = self.decision.returning
        if self.room.outside:
            self.room.put_in()
        if self.special:
            self.collect()
        while self.free and (self.queue.count or self.inbox):
            if self.box.steps:  # who was in the box before the instance came free counts as waiting
                self.note_change()
                return
            work = self.decision.next_due()
            if work is None:
                break
            if self.room.outside:
                self.room.put_in()
            work.assign()
        if self.standby.turns:
            self.standby.call_in()
        if (self.queue.count or self.inbox or self.room.outside) and not self.watched:
            deadlocks.watch(self)
        self.set_calls_at()
        if self.inbox and len(self.inbox) + len(self.tickets) >= self.calls_at:
            self.take_in()  # who came meanwhile has perhaps called nobody
        if self.inbox and self.free and not self.holds_back:
            self.note_change()
        if self.refusing is not None:
            self.box.look_if_quiet()

    def end_batch(self, work: Work, errors: Errors, worker: Worker) -> None:
        """Take the outcomes of a batch, and its instance back."""
        instance, entries, settled = work.instance, work.entries, self.events.settled
        work.entries = []  # nothing of a user's dies here once its caller is woken
        if self.max != 1 and instance.least_s >= LONG_S:
            self.decision.note_answered(entries, instance.mean_s, worker)
        locks = self.box.locks
        for i, entry in enumerate(entries):
            error = None if errors is None else errors[i]
            if (
                error is None
                and entry.lock is not None
                and entry.held is None
                and not settled
                and entry.state == RUNNING
            ):  # as `settle`, for most
                entry.state = DONE
                locks.append(entry.lock)
            elif error is PENDING:
                self.pending.pend(entry, instance)
            elif entry.state == RUNNING:  # else it was settled while the batch ran
                self.settle(entry, error, instance)
            elif error is not None:  # its caller has another one, so the log alone is told
                self.box.later(self.events.failed[0], entry.request, error)
            error = None  # see `Entry.take_error`
        self.give_back(instance)
        waits = self.inbox or self.queue.count or self.standby.turns
        if waits or self.room.outside or self.special:
            self.note_change()

    # Requests are settled: each has one outcome.

    def settle(self, entry: Entry, error: BaseException | None, at: Instance | None = None) -> None:
        """Give an entry its one outcome; ``at`` is the instance that has run it, if any."""
        if entry.alarm is not None:
            entry.alarm.cancel()
        if error is not None:
            if isinstance(error, ClosedError) and error.begun is None:
                error.begun = entry.began
            entry.error = error
            code = None if at is None else entry.code
            (at or self.counts).count_failure(code or code_of(error))
        entry.state = DONE
        if entry.room is not None:
            entry.room()
        if entry.held is not None:
            self.pending.end_entry(entry)
        if self.events.settled or isinstance(error, self.events.hears):
            self.box.later(self.events.report_entry, self, entry, self.clock())
        else:
            self.tell(entry)
        if error is not None and entry.group:
            waiting = [member for member in entry.group if member.waits]
            entry.group.clear()
            self.fail_waiting(CancelledError(), waiting)

    def tell(self, entry: Entry) -> None:
        """Tell the caller of an entry its outcome."""
        then, entry.then, entry.waiter = entry.then, None, None
        if entry.lock is not None:
            self.box.locks.append(entry.lock)
        elif then is not None:
            then(entry)

    def fail_waiting(self, error: BaseException, entries: Iterable[Entry]) -> None:
        """Fail entries that wait, each with an error of its own."""
        for entry in entries:
            self.fail(entry, lambda _, **__: own_error(error))

    def fail(self, entry: Entry, failure: Callable[..., BaseException]) -> bool:
        """Fail an entry wherever it is, unless it is DONE; tell whether a backend goes on with it.

        ``failure(node, running=...)`` makes the error.
        """
        self._find(entry)
        if entry.state == DONE:
            return False
        if entry.state == OUTSIDE:
            self.room.outside.pop(entry, None)
        elif entry.state == QUEUED:
            self.queue.remove((entry,))
        elif entry.state == NEW:
            self.entered += 1
            if entry.ticket is not None:
                entry.ticket.leave(entry)
        running = not entry.take_back()
        self.settle(entry, failure(self, running=running))
        self.note_change()
        return running

    def _find(self, entry: Entry) -> None:
        """Take an entry out of the inbox, if it lies there: into the queue, or on an instance."""
        if entry.state == NEW and self.inbox:
            self.take_in()

    def fail_late(self, entry: Entry) -> None:
        """Fail an entry whose deadline has passed, unless it is done."""
        self._find(entry)
        self.fail(entry, partial(deadline_error, begun=not entry.waits))

    def cancel(self, entry: Entry) -> bool:
        """Withdraw an entry that waits; False when it runs or is done. Nobody is told."""
        self._find(entry)
        if not entry.waits:
            return False
        entry.then = entry.group = None
        self.fail(entry, withdrawn)
        return True

    def waiting_for(self, entry: Entry) -> Sequence[Entry]:
        """Return the entries that wait for an instance or for room for an entry; in any thread."""
        sent = None if entry.held is None else entry.held.away
        if sent is not None:
            return waiting_for(sent.entries)
        return (entry,) if entry.state in (NEW, OUTSIDE, QUEUED) else ()

    def running(self, entry: Entry) -> bool:
        """Tell whether a backend runs on an entry; in any thread."""
        return entry.state == RUNNING and not entry.waits

    def all_open(self) -> list[Entry]:
        """Return all entries without an outcome, but those that callers run past the queue."""
        self.take_in()
        running = [entry for instance in self.instances for entry in instance.entries or ()]
        return [*running, *self.queue, *self.room.outside, *self.pending.open]

    @property
    def quiet(self) -> bool:
        """Whether no request waits, runs or is PENDING."""
        if self.inbox or self.queue.count or self.room.outside or self.pending.open:
            return False
        return not self.busy()

    def listen(self, probes: Probes) -> None:
        """Let these probes, and no others, receive every batch and request from now on."""
        self.probes = probes
        self.events.set_listeners(Reporter(self.name, probes))
        for instance in self.instances:
            instance.sampling, instance.mask = 0 if self.events.each else SAMPLED, 0

    def is_held_by_this_thread(self) -> bool:
        """Tell whether this thread, or one that waits for its call, runs a batch here."""
        mine = threads_of(get_ident())
        return any(instance.ident in mine for instance in self.instances)

    def busy(self) -> bool:
        """Tell whether an instance has a holder."""
        return any(instance.holder is not None for instance in self.instances)

    # Its instances, and which of them are free.

    def set_range(self, living: Sequence[Instance]) -> None:
        """Set the range of the node to the weights that the living instances take."""
        for instance in self.instances:
            instance.limits, instance.events = self.limits, self.events
            instance.full = largest_size(self.limits.batch_sizes, instance.max)
        most = max(
            [inf if instance.full is None else instance.full for instance in living], default=inf
        )
        self.max = None if most == inf else int(most)
        self.min = min((i.min for i in living), default=1)

    def give_back(self, instance: Instance) -> None:
        """Take an instance back from who built or ran it: it is free, unless it is away or lost."""
        instance.entries, instance.ident, instance.reason, instance.holder = None, 0, "idle", None
        liveness, was_away = instance.liveness, instance.away
        instance.away = bool(liveness.parts_away) and liveness.pauses
        if instance.away is not was_away:
            state = "paused" if instance.away else "ready"
            self.box.later(self.probes.instance_changed, self.name, instance.index, state)
        if liveness.lost:
            self.note_lost(instance)
        elif not instance.away:
            instance.returns_to.append(instance)
            if self.aside:
                self.bring_wide()

    def bring_wide(self) -> None:
        """Put the wide instance before the free ones where no other runs; in any thread."""
        if len(self.free) >= self.narrow:
            with suppress(IndexError):  # another thread was quicker
                self.free[:0] = map(
                    list.pop, (self.aside,)
                )  # one step, as no interrupt may lose it

    def collect(self) -> None:
        """Take out of the free instances those that are away or lost, and let in who has come."""
        self.take_in()
        for instance in [*self.free]:
            serves = instance.serves and instance.living
            if not serves and self.claim(instance):
                self.give_back(instance)

    def claim(self, instance: Instance) -> bool:
        """Take a free instance; False where a caller was quicker."""
        try:
            self.free.remove(instance)
        except ValueError:
            return False
        return True

    def note_lost(self, instance: Instance) -> None:
        """Take a lost instance out of service; entries that no other instance takes fail."""
        self.special = True
        self.box.later(self.probes.instance_changed, self.name, instance.index, "lost")
        self.pending.let_go([instance])
        self.take_in()
        living = [instance for instance in self.instances if instance.living]
        self.set_range(living)
        self._count_narrow()
        self.lost = not living
        entries = [*self.queue, *self.room.outside]
        if living:
            most = inf if self.max is None else self.max
            entries = [entry for entry in entries if entry.weight > most]
        self.fail_waiting(self.no_instance(), entries)

    def no_instance(self) -> InstanceLostError:
        """Make the error of requests for which no living instance is left."""
        why = "no instance that could take the request is left: it was lost"
        return InstanceLostError(why, node=self.name, hint="Build the pipeline again.")

    def _put_into_service(self) -> None:
        """Let the instances serve, and note when one is away or lost; some may be already."""
        for instance in self.instances:
            instance.liveness.node = self
            instance.liveness.changed = partial(ask, self.box, self._look_at, instance)
            instance.returns_to = self.aside if instance.wide else self.free
        self._count_narrow()
        for instance in self.instances:
            self.give_back(instance)
        self.special = not self.is_usual

    def _count_narrow(self) -> None:
        """Count the instances that serve beside the wide one, which serves where there are none."""
        self.narrow = sum(i.serves and i.living and not i.wide for i in self.instances)
        self.bring_wide()

    def _look_at(self, instance: Instance) -> None:
        """Take an instance out of service, or back into it, after its `Liveness` has changed."""
        self.special = True
        if instance.away and instance.holder is None:
            self.give_back(instance)
        self.collect()
        self._count_narrow()
        self.special = not self.is_usual
        self.note_change()

    @property
    def is_usual(self) -> bool:
        """Whether who puts an instance back has nothing to look at but the queue."""
        return self.refusing is None and all(instance.serves for instance in self.instances)
