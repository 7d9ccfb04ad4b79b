"""The scheduler of one node: what callers, graphs and the engine ask of it.

A caller that finds the node idle takes the short cut (`headrace._scheduling.shortcut`). Every other request goes through the
queue: its caller waits (`call_many`), and may run batches meanwhile; or its owner is notified (`enqueue`).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from functools import partial
from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._portable import is_abandoned
from headrace._scheduling.cycles import cycle_of, held_here, waiting
from headrace._scheduling.dispatch import Dispatcher
from headrace._scheduling.entry import (
    DATA_ALONE,
    DONE,
    NEW,
    NOBODY,
    OUTSIDE,
    QUEUED,
    RUNNING,
    WAITING,
    Entry,
    checked_weight,
)
from headrace._scheduling.instance import SAMPLED, Counts, summary
from headrace._scheduling.node import Node, Section, Waiter
from headrace._scheduling.probes import Reporter
from headrace._scheduling.queue import RequestQuota
from headrace._scheduling.refusals import endless_wait, interrupted, left_open, unfit, withdrawn
from headrace._scheduling.shortcut import ShortCut
from headrace._scheduling.threads import (
    Signal,
    calls_run,
    helpers,
    reentrant,
    refuse_inside,
    reset,
    withdrawn_by,
)
from headrace._scheduling.view import read_traits
from headrace.errors import ClosedError, InputError, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.batch import Work
    from headrace._scheduling.entry import Quota
    from headrace._scheduling.instance import Instance, Limits
    from headrace._scheduling.probes import Probes
    from headrace._scheduling.timer import Timer
    from headrace.keys import Request
    from headrace.policies import BatchPolicy, DispatchPolicy


class Scheduler:
    """The queue and the instances of one node; every method may be called from any thread, at any moment.

    Attributes:
        name: The name of the node.
        node: The state behind the lock.
        dispatcher: Decides which batch is due, and which thread runs it.
        needs: The keys that a request must have.
        call: Runs one request for a caller that waits without a deadline, see `ShortCut.call`.
    """

    def __init__(
        self,
        name: str,
        instances: Sequence[Instance],
        batch_policy: BatchPolicy,
        dispatch_policy: DispatchPolicy,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        timer: Timer | None = None,
    ) -> None:
        """Make the scheduler of instances that are built and warm.

        Args:
            name: The name of the node.
            instances: Its instances.
            batch_policy: Decides when a batch is cut.
            dispatch_policy: Decides which instance takes it.
            limits: The queue keys of the node.
            clock: Gives seconds; a fake one in tests.
            timer: Calls functions at times of the clock; None for that of the process.
        """
        self.name = name
        self.dispatcher: Dispatcher
        self.node = Node(name, instances, limits, clock, lambda: self.dispatcher.dispatch())
        self.dispatcher = Dispatcher(self.node, (batch_policy, dispatch_policy), timer)
        self.needs: Sequence[str] = DATA_ALONE
        self._short_cut = ShortCut(self.node, self.dispatcher, self)
        self.call = self._short_cut.call
        with self.node.section:
            self.node.watch()

    @property
    def instances(self) -> Sequence[Instance]:
        """The instances in service."""
        return self.node.instances

    # Requests on entry.

    def need(self, keys: Sequence[str]) -> None:
        """Set the keys that a request must have."""
        self.needs = DATA_ALONE if keys == DATA_ALONE else keys
        self._short_cut.checks_all = self.needs is not DATA_ALONE and bool(self.needs)

    def result_required(self, value: bool) -> None:
        """Set whether a request that ends without ``result`` has failed; it has not before an ``or``."""
        self.node.must_have_result = value

    def checked(self, request: Any) -> int:
        """Check a request on entry and give its weight; InputError, which is counted, where it is wrong."""
        try:
            return checked_weight(request, self.name, self.needs)
        except InputError as error:
            if isinstance(request, dict):
                request.pop("result", None)
            self.count_refused(request, error)
            raise

    def checked_again(self, request: Any) -> int:
        """Return the weight of a request that was checked where it entered, and goes on here."""
        if "request_size" in request or "data" not in request or self.needs is not DATA_ALONE:
            return self.checked(request)
        return 1

    @reentrant()
    def count_refused(self, request: Any, error: BaseException) -> None:
        """Count a request that was refused before it entered."""
        node, code = self.node, code_of(error)
        with node.section:
            node.entered += 1
            node.counts.failed(code)
        node.failures.note(error, request)
        reporter = node.reporter
        if reporter is not None:
            reporter.refused(request, error)

    @reentrant()
    def count_late(self, error: BaseException) -> None:
        """Count as failed a request that ended without an error at this node, but failed after it."""
        code = code_of(error)
        with self.node.section:
            self.node.counts.failed(code)
        self.node.failures.note(error, {})

    def new_quota(self, *, entered: bool = True) -> Quota:
        """Return the quota that counts all waits of a request which enters here, at any node, as one wait.

        Args:
            entered: Whether the entry of the request here is counted by the queue itself.
        """
        return RequestQuota(self.node.quota, entered=entered)

    # Requests of a caller that waits: several, or with a deadline, or in the queue.

    def wait_for(self, entries: Sequence[Entry], *, internal: bool = False) -> None:
        """Run entries for the calling thread and wait for them; each entry then holds its outcome."""
        node, fresh = self.node, []
        now, waiter = node.clock(), Waiter(get_ident(), node)
        for entry in entries:
            if entry.state == NEW:
                fresh.append(entry)
                self._set_times(entry, now)
                waiter.runs = waiter.runs and entry.deadline is None
        if self.dispatcher.picks:
            read_traits(fresh, self.dispatcher.policies[0], node)
        self._wait(waiter, fresh, partial(self._arrive, waiter, fresh, internal=internal))
        for entry in fresh:
            entry.give_back()

    @reentrant(later=lambda scheduler, *_: refuse_inside(scheduler.name))
    def wait_kept(
        self, instance: Instance, request: Request, data: Any, weight: int, home: Scheduler | None
    ) -> BaseException | None:
        """Wait for a request that its caller has run, and whose outcome is PENDING; give its error.

        Args:
            instance: The instance that the caller holds.
            request: The request.
            data: The caller's object under ``data``.
            weight: Its weight.
            home: Where it has entered; None for here.
        """
        waiter = Waiter(get_ident(), self.node)
        quota = None if home is None else home.new_quota()
        with self.node.section:
            entry = self.node.pending.adopted(instance, request)
            entry.owner, entry.data, entry.weight, entry.quota = waiter, data, weight, quota
            entry.scheduler, waiter.pending = self, 1
        self._wait(waiter, (entry,), partial(self._keep, waiter, entry, instance))
        entry.give_back()
        return entry.take_error()

    def _keep(self, waiter: Waiter, entry: Entry, instance: Instance) -> Work | None:
        """Keep an entry that its caller has run; give the batch that the caller is to run, None for none."""
        node = self.node
        with node.section:
            node.pending.pend(entry, instance)
            node.give_back(instance)
            work = self.dispatcher.dispatch(waiter)
            waiter.parked = work is None and waiter.pending > 0
            return work

    call_many = reentrant(later=lambda scheduler, *_, **__: refuse_inside(scheduler.name))(wait_for)

    def _set_times(self, entry: Entry, now: float) -> None:
        entry.arrival = now
        entry.scheduler = self
        timeout_ms = self.node.limits.timeout_ms
        if timeout_ms is not None:
            own = now + timeout_ms / 1000
            entry.deadline = own if entry.deadline is None else min(own, entry.deadline)

    def _wait(
        self, waiter: Waiter, entries: Sequence[Entry], begin: Callable[[], Work | None]
    ) -> None:
        """Let the entries of a caller in, and wait until all have their outcome; run batches meanwhile."""
        node, dispatcher, me = self.node, self.dispatcher, waiter.ident
        outer = waiting.get(me)
        waiting[me] = waiter
        if me in calls_run:
            withdrawn_by(partial(self._withdraw, entries))
        try:
            work = begin()
            while True:
                if work is not None:
                    dispatcher.drive(work, waiter)
                elif waiter.parked:
                    left_s = None if waiter.runs else _next_deadline(entries) - node.clock()
                    waiter.signal.sleep(left_s)
                if not (waiter.parked or waiter.pending or waiter.work or waiter.nudged):
                    return
                work = self._look(waiter, entries)
        except BaseException:  # a backend raised what is no Exception
            self._withdraw(entries)
            for entry in entries:
                entry.give_back()
            raise
        finally:
            reset(waiting, me, outer)

    def _arrive(self, waiter: Waiter, entries: Sequence[Entry], *, internal: bool) -> Work | None:
        """Let the entries of a caller in; give the batch that the caller is to run, None for none."""
        with self.node.section:
            for entry in entries:
                if entry.state == NEW:  # else it was withdrawn a moment ago
                    entry.owner = waiter
                    waiter.pending += 1
            self._enter(entries, internal=internal, waits=True)
            work = None
            if self.node.free or self.node.idle:  # else nothing can begin
                work = self.dispatcher.dispatch(waiter)
            waiter.parked = work is None and waiter.pending > 0
            if waiter.parked and cycle_of(waiter) is not None:
                self._refuse_endless(entries)
            return work

    def _look(self, waiter: Waiter, entries: Sequence[Entry]) -> Work | None:
        """Return the batch that a caller who is awake is to run next, None for none."""
        node, dispatcher = self.node, self.dispatcher
        with node.section:
            work, waiter.work, waiter.parked = waiter.work, None, False
            if work is not None:
                dispatcher.begin(work, waiter)
                if node.queue.count and node.free:
                    dispatcher.dispatch()
            elif waiter.nudged:
                waiter.nudged = False
                work = dispatcher.dispatch(waiter)
            elif not waiter.runs and dispatcher.fail_late(entries, node.clock()):
                dispatcher.dispatch()
            waiter.parked = work is None and waiter.pending > 0
            return work

    def _withdraw(self, entries: Sequence[Entry]) -> bool:
        """Take back entries for which nobody waits any more; True if a backend still runs on any of them."""
        with self.node.section:
            left = [self.node.fail(entry, interrupted) for entry in entries]
            self.dispatcher.dispatch()
        return any(left)

    def _enter(self, entries: Sequence[Entry], *, internal: bool, waits: bool) -> None:
        node = self.node
        refused = None
        if waits and not (node.free or node.idle) and held_here(node):
            refused = endless_wait(self.name)
        node.enter(entries, refused, internal=internal)

    def _refuse_endless(self, entries: Sequence[Entry]) -> None:
        stuck = [one for one in entries if one.state in (QUEUED, OUTSIDE)]
        self.node.fail_waiting(endless_wait(self.name), stuck)

    # Owners that do not wait in the calling thread: futures, coroutines, graphs.

    def enqueue(
        self,
        *entries: Entry,
        waits_for_room: Callable[[], object] | None = None,
        internal: bool = False,
        waits: bool = False,
    ) -> None:
        """Let in entries whose owners are notified.

        Args:
            entries: The entries.
            waits_for_room: Return only when each entry is in the queue, or done. The function tells whether this
                thread holds what they wait for, so that it would wait for ever. None: do not wait.
            internal: Whether they come from another node.
            waits: Whether the calling thread waits for their outcome, as an event loop inside a backend does.
        """
        node, dispatcher = self.node, self.dispatcher
        now = node.clock()
        for entry in entries:
            self._set_times(entry, now)
        if dispatcher.picks:
            read_traits(entries, dispatcher.policies[0], node)
        outside: list[Entry] = []
        with node.section:
            self._enter(entries, internal=internal, waits=waits)
            for entry in entries:
                if entry.deadline is not None and entry.state != DONE:
                    entry.alarm = dispatcher.timer.call_at(
                        entry.deadline, partial(self.expire, entry)
                    )
            if waits_for_room is not None and node.outside:
                outside = [entry for entry in entries if entry.state == OUTSIDE]
                for entry in outside:
                    entry.room = Signal()
            if len(entries) == 1:
                dispatcher.arrived(entries[0])
            else:
                dispatcher.dispatch()
        if outside and waits_for_room is not None and waits_for_room():
            with node.section:
                self._refuse_endless([entry for entry in outside if entry.state == OUTSIDE])
        for entry in outside:
            entry.room.sleep()  # type: ignore[union-attr]

    submit = reentrant()(enqueue)

    def expire(self, entry: Entry) -> None:
        """Fail an entry whose deadline has passed, unless it is done."""
        with self.node.section:
            self.dispatcher.expire(entry)
            self.dispatcher.dispatch()

    @reentrant(later=lambda scheduler, entry: helpers.run(scheduler.cancel, entry))
    def cancel(self, entry: Entry) -> bool:
        """Withdraw an entry that waits, or has not come yet; False when it runs or is done."""
        return cancel_all([(entry, self)])

    @reentrant()
    def cancel_together(self, entries: Sequence[Entry]) -> None:
        """Withdraw those of the entries that wait; none of them begins in place of another."""
        with self.node.section:
            for entry in entries:
                if entry.state in WAITING:
                    if isinstance(entry.owner, Waiter):
                        self.node.fail(entry, withdrawn)
                    else:
                        self.take_back(entry)
            self.dispatcher.dispatch()

    def take_back(self, entry: Entry) -> bool:
        """End an entry whose owner wants no outcome; True if a backend still runs on it. In a section."""
        entry.owner, entry.group = NOBODY, None
        return self.node.fail(entry, withdrawn)

    @reentrant(later=lambda _, entry: entry.state == RUNNING)
    def abandon(self, entry: Entry) -> bool:
        """Drop an entry whose owner was freed; True when a backend still runs on its request."""
        with self.node.section:
            if entry.state == RUNNING:
                return self.take_back(entry)
        reporter = self.node.reporter
        return (reporter is not None and entry in reporter.returning) or is_abandoned(entry.error)

    @reentrant()
    def end(self, entry: Entry, error: BaseException) -> None:
        """End an entry with an error, wherever it is, unless it is DONE."""

        def failure(_: object, *, running: bool) -> BaseException:
            error.abandoned = running  # type: ignore[attr-defined]
            return error

        with self.node.section:
            self.node.fail(entry, failure)
            self.dispatcher.dispatch()

    # New instances in place of the old ones.

    def exchange(self, new: Scheduler, retired: Signal, *, keeps_policies: bool) -> list[Instance]:
        """Put the instances and the keys of ``new`` in place of those of this scheduler.

        Args:
            new: The scheduler of the new instances, which is not used any more.
            retired: Is woken whenever the last batch of an old instance has ended.
            keeps_policies: Whether the policies, which may have state, stay.

        Returns:
            The old instances.
        """
        node = self.node
        with node.section:
            old, node.special = node.instances, True
            node.collect()
            for instance in old:
                home = instance in node.free or (instance.away and instance.holder is None)
                instance.retired, instance.over = retired, home
            node.pending.let_go(old)
            node.retiring = [*node.retiring, *old]
            node.instances = list(new.instances)
            node.watch()
            node.every = [*node.instances, *node.retiring]
            node.free = [one for one in node.instances if not one.away]
            node.limits = new.node.limits
            node.lost = False
            node.measure(node.instances)
            if not keeps_policies:
                self.dispatcher.use(new.dispatcher.policies)
            self._short_cut.measure()
            for entry in [*node.queue, *node.outside]:
                error = unfit(node, entry)
                if error is not None:
                    node.fail_waiting(error, [entry])
            self.dispatcher.dispatch()
            if node.reporter is not None:
                for state, instances in (("retired", old), ("ready", node.instances)):
                    node.afterwards.append(partial(node.reporter.changed, state, instances))
            return old

    def take_retired(self, among: Sequence[Instance]) -> list[Instance]:
        """Return the old instances whose last batch has ended, each once; the node keeps their counts."""
        node = self.node
        with node.section:
            ended = [one for one in node.retiring if one in among and (one.over or not one.living)]
            for instance in ended:
                node.counts.absorb(instance)
            node.retiring = [one for one in node.retiring if one not in ended]
            node.every = [*node.instances, *node.retiring]
            self.dispatcher.end_surplus()
            node.special = not node.is_usual
            return ended

    # The end.

    @reentrant()
    def refuse(self, error: ClosedError, *, drain: bool) -> None:
        """Refuse newcomers; fail the entries that wait for room, and without ``drain`` those that wait at all."""
        node = self.node
        with node.section:
            node.special = True
            node.collect()
            node.refusing = node.refusing or error
            self._short_cut.measure()
            node.drains &= drain
            kept = () if drain else (*node.queue, *node.pending.waiting)
            node.fail_waiting(error, [*node.outside, *kept])
            self.dispatcher.dispatch()

    def refusal(self, request: Request) -> ClosedError | None:
        """Return the error of a request that nothing lets in, as ``each`` over an empty list; None while open."""
        if self.node.refusing is None:
            return None
        error = self.node.refusing._passing(passes=False)
        error.begun = False
        self.count_refused(request, error)
        return error

    @reentrant()
    def wait_quiet(self, until: float) -> bool:
        """Wait until no request waits or runs; False when ``until`` came first."""
        return self.node.closers.wait(self.is_quiet, until)

    @reentrant()
    def is_quiet(self) -> bool:
        """Tell whether no request waits, runs or is PENDING."""
        with self.node.section:
            return self.node.quiet

    @reentrant()
    def fail_open(self, error: ClosedError, retire: Callable[[], object]) -> None:
        """Fail all entries that are still open; ``retire()`` is called when the batch of an instance ends later."""
        node = self.node
        with node.section:
            node.dead, node.retire = True, retire
            node.fail_waiting(error, [*node.queue, *node.outside])
            running = [entry for instance in node.every for entry in instance.entries or ()]
            for entry in [*running, *node.pending.open]:
                node.fail(entry, partial(left_open, error.args[0]))
            for instance in node.every:
                if instance.holder is not None:
                    node.afterwards.extend(instance.liveness.killers)

    @reentrant()
    def stop_workers(self) -> None:
        """End the workers that sleep; the others end after their batch."""
        with self.node.section:
            self.dispatcher.stop_workers()

    def after_fork(self, error: ClosedError) -> None:
        """Refuse every request in a child process, where no thread of this node runs."""
        node = self.node
        node.section = Section(node)
        node.refusing, node.dead, node.special = error, True, True
        self._short_cut.measure()
        if (
            node.pending.open
        ):  # a helper tells their holders: owners have locks that the parent's threads held
            node.quota.lock = threading.Lock()
            helpers.run(self.fail_open, error, bool)

    # Looking.

    @reentrant()
    def listen(self, probes: Probes) -> None:
        """Let these probes, and no others, hear of every batch and request from now on."""
        node = self.node
        with node.section:
            if node.reporter is not None:
                node.reporter.probes = probes
            if not probes.listening:
                node.reporter = None
            elif node.reporter is None:
                node.reporter = Reporter(self.name, node.clock, probes)
            self._short_cut.keeps_main_away = node.reporter is not None and not probes.reentrant
            for instance in node.every:
                instance.sampling, instance.mask = 0 if probes.reports else SAMPLED, 0

    def held_by_this_thread(self) -> bool:
        """Tell whether the calling thread, or one that waits for it, runs a batch here or is inside a probe."""
        reporter = self.node.reporter
        return held_here(self.node) or (reporter is not None and reporter.holds(get_ident()))

    def busy(self) -> bool:
        """Tell whether an instance has a holder."""
        return any(instance.holder is not None for instance in self.node.every)

    @reentrant(later=lambda scheduler: scheduler._statistics())
    def statistics(self) -> dict[str, Any]:
        """Return what ``stats()`` shows of the node: the counts are exact, the times sampled."""
        with self.node.section:
            return self._statistics()

    def _statistics(self) -> dict[str, Any]:
        node, total, running = self.node, Counts(), 0
        total.absorb(node.counts)
        for instance in node.every:
            unqueued, holder = instance.unqueued, instance.holder  # in one step, as they are set
            total.absorb(instance, unqueued=unqueued)
            if holder is not None:
                entries = instance.entries
                running += 1 if entries is None else sum([one.state == RUNNING for one in entries])
        waits = node.queue.count + len(node.outside) + len(node.pending.open)
        submitted = total.unqueued + node.entered
        counts = summary(total, submitted=submitted, waiting=waits, running=running)
        counts["instances"] = [instance.statistics() for instance in node.instances]
        return counts


def _next_deadline(entries: Sequence[Entry]) -> float:
    """Return the next deadline of entries that are not done; another thread may settle them meanwhile."""
    times = [one.deadline for one in entries if one.deadline is not None and one.state != DONE]
    return min(times, default=inf)


def cancel_all(places: Sequence[tuple[Entry, Scheduler]]) -> bool:
    """Withdraw all entries, each at its scheduler, or none of them, when one runs or is done."""
    schedulers = {id(scheduler): scheduler for _, scheduler in places}
    with ExitStack() as stack:
        # The only place where a thread in the section of a node enters that of another: in one order.
        for _, scheduler in sorted(schedulers.items()):
            stack.enter_context(scheduler.node.section)
        if not all(entry.state in WAITING for entry, _ in places):
            return False
        for entry, scheduler in places:
            scheduler.take_back(entry)
        for scheduler in schedulers.values():
            scheduler.dispatcher.dispatch()
    for entry, _ in places:
        if entry.held is not None:  # a backend has changed its dict
            entry.give_back()
    return True
