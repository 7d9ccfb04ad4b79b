"""Which batch of a node is due, and which thread runs it.

**Who ends a batch cuts the next one**, in the section that settles the old one (`Dispatcher.drive`), and gives it

1. to itself: a worker always, an own thread unless other jobs wait for it, a caller while requests of its own
   wait, or while the backend is fast and the caller's `SAMPLE_BELOW_S` for the batches of others are not over;
2. else to a caller of that batch, who sleeps;
3. else to a worker, a daemon thread of the node, of which there is at most one per instance.

A caller that arrives does the same, so an idle node needs no other thread. A swift backend is done before a thread wakes up: its
free instance is left free, and the oldest caller is woken to look for itself (`_nudged`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from math import inf, isnan
from operator import index
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._checked import PENDING, largest_size
from headrace._portable import caused, error_text
from headrace._scheduling import batch as batches
from headrace._scheduling.batch import Work
from headrace._scheduling.entry import QUEUED, RUNNING, own_error
from headrace._scheduling.instance import INLINE_BELOW_S, OVERTAKE_MAX_S, SAMPLE_BELOW_S
from headrace._scheduling.node import Waiter
from headrace._scheduling.own_thread import OwnThread
from headrace._scheduling.refusals import deadline_error
from headrace._scheduling.threads import Signal
from headrace._scheduling.timer import Timer, shared_timer
from headrace._scheduling.view import WINDOW, QueueView, Window, places_of, unread
from headrace.errors import BackendError, ContractError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from headrace._scheduling.batch import Errors
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace.errors import BatchRangeError
    from headrace.policies import BatchPolicy, DispatchPolicy

    Runner: TypeAlias = "Waiter | Worker | OwnThread"

SUSTAINED = 8
"""While more batches than this were cut since the node was idle, a worker takes those of a slow backend: it goes on with batch
after batch, where callers take turns, and each turn costs a switch of threads."""

_SOONEST_S = 0.001
"""The shortest time until a policy is asked again: one that wants to be asked at once would spin."""

new_work: Any = tuple.__new__
"""Makes a `Work` of a tuple as the class does, without a call into Python code."""


class Worker:
    """A daemon thread that runs batches.

    Attributes:
        ident: Identifier of the thread; 0 before it runs.
        work: A batch that was given to the thread while it slept.
        signal: Wakes the thread.
    """

    __slots__ = ("ident", "signal", "work")

    def __init__(self) -> None:
        self.ident = 0
        self.work: Work | None = None
        self.signal = Signal()


class Dispatcher:
    """Cuts the batches that are due, claims instances for them, and finds the threads that run them.

    All but `drive`, and what threads begin with, runs in a section of the node.

    Attributes:
        policies: The batch policy and the dispatch policy.
        picks: Whether the batch policy names the places of the requests that it takes.
        enough: The weight in the queue below which no batch is due while instances are free.
        pressure: How many batches were cut, less how often the queue was found empty and an instance free;
            between 0 and twice `SUSTAINED`.
    """

    def __init__(
        self, node: Node, policies: tuple[BatchPolicy, DispatchPolicy], timer: Timer | None = None
    ) -> None:
        self.node = node
        self.enough: float = 0
        self.pressure = 0
        self._timer = timer
        self._wake_at = inf  # when the timer looks at the queue
        self._enough: float = 0  # the last `wake_weight` of the batch policy
        self._parked: list[Worker] = []
        # The batches for workers that are about to look for one.
        self._backlog: deque[Work] = deque()
        self._workers = 0
        self._stopped = False
        self.use(policies)

    def use(self, policies: tuple[BatchPolicy, DispatchPolicy]) -> None:
        """Decide with these policies from now on."""
        self.policies = self._batches, self._dispatches = policies
        self.picks: bool = getattr(self._batches, "picks", False)
        marked = getattr(self._batches.cut, "takes_what_is_full", False)
        self._takes_what_is_full = marked and not self.picks
        waits = getattr(self._batches, "takes_what_waits", False)
        self._takes_what_waits = self._takes_what_is_full and waits
        self._takes_the_only_one = getattr(self._dispatches.choose, "takes_the_only_one", False)

    @property
    def timer(self) -> Timer:
        """The timer of the process, or the one that a test has given."""
        return self._timer or shared_timer()

    # Which batch is due.

    def arrived(self, entry: Entry) -> None:
        """Dispatch after an entry has come, unless it cannot make a batch due."""
        node = self.node
        if entry.state != QUEUED or ((node.free or node.idle) and node.queue.weight >= self.enough):
            self.dispatch()

    def dispatch(self, me: Runner | None = None) -> Work | None:
        """Claim free instances for all batches that are due; give the one that ``me`` is to run, None for none."""
        node = self.node
        queue = node.queue
        mine: Work | None = None
        if node.outside:
            node.admit_outside()
        self.enough = 0  # where no entry waits, or no instance is free, the next arrival dispatches
        if node.idle and (queue.count or node.special):
            node.collect()
        if queue.count and node.free:
            mine = self._start_due(me)
        if node.free and not queue.count:
            if self.pressure:
                self.pressure -= 1
            if not node.special:
                node.publish()
        if node.closers:
            node.look_if_quiet()
        return mine

    def _start_due(self, me: Runner | None) -> Work | None:
        node = self.node
        queue = node.queue
        mine: Work | None = None
        offered, wake_at, enough = [*node.free], inf, inf
        while offered and queue.count:
            if type(me) is Waiter and mine is None and self._nudged(me, offered[0]):
                enough = 0
                break
            self._enough = 0
            found = self._next(offered)
            if isinstance(found, float):
                wake_at, enough = min(wake_at, found), min(enough, self._enough)
                continue
            if node.outside:
                node.admit_outside()
            if found is not None and mine is None and self._may_run(me, found):
                mine = found
                found.instance.holder, found.instance.ident = me, me.ident  # type: ignore[union-attr]
            elif found is not None:
                self._give(found)
            # A batch has begun, or entries have left the queue: a policy may cut one now for an instance passed by.
            offered, wake_at, enough = [*node.free], inf, inf
        if queue.count:
            self.enough = enough if node.free else 0
            if wake_at < self._wake_at:
                self._wake_at = wake_at
                self.timer.call_at(wake_at, self._woken)
        return mine

    def _woken(self) -> None:
        """Look at the queue at the time that a policy asked for."""
        with self.node.section:
            self._wake_at = inf
            self.dispatch()

    def _next(self, offered: list[Instance]) -> Work | float | None:
        """Ask the policies for one instance and its batch.

        Returns:
            The batch; None if entries have failed or the instance is lost; else the instance is taken out of
            ``offered``, and this is the time at which to ask again, infinity for never.
        """
        node = self.node
        now = node.clock()
        try:
            instance = self._chosen(offered)
            if instance is None:
                offered.clear()
                return inf
            if not instance.living:
                node.lose(instance)
                return None
            if self.picks:
                entries, again_at = self._picked(instance, now)
            else:
                take, again_at = self._taken(instance, now)
                entries = node.queue.head(take) if take > 0 else []
        except ContractError as failed:
            # A policy cannot decide: else these entries would wait for ever.
            node.fail_waiting(failed, list(node.queue))
            return None
        if entries is None or self.fail_late(entries, now):
            return None
        if entries:
            weights = [entry.weight for entry in entries]
            weight = sum(weights)
            refused = None
            if not batches.takes(instance, weight):
                refused = batches.refusal(node.name, weights, instance)
            if refused is None:
                return self._claim(instance, entries, weight, now)
            if weight >= instance.min or not self._fits_elsewhere(instance, weight):
                return self._refuse(instance, entries, refused, now)
        offered.remove(instance)
        return again_at if again_at > now else now + _SOONEST_S

    def _chosen(self, offered: Sequence[Instance]) -> Instance | None:
        """Ask the dispatch policy for an instance; ContractError where its answer is none of these."""
        policy, weight = self._dispatches, self.node.queue.weight
        if self._takes_the_only_one and len(offered) == 1 and weight >= offered[0].min:
            return offered[0]
        try:
            chosen = policy.choose(weight, [*offered])  # it may change its list
        except BaseException as error:
            raise self._failure(policy, error) from error
        if chosen is None or any(one is chosen for one in offered):
            return chosen  # type: ignore[return-value]
        raise self._failure(policy, f"chose {chosen!r}, which is no free instance")

    def _taken(self, instance: Instance, now: float) -> tuple[int, float]:
        """Return how many entries of the queue an instance takes, and when to ask again."""
        node = self.node
        queue, most = node.queue, instance.max
        if queue.weight == queue.count and self._takes_what_is_full:
            if self._takes_what_waits:
                return queue.count if most is None else min(most, queue.count), inf
            if most is not None and most <= queue.count and not node.limits.batch_sizes:
                return most, inf
        places, again_at = self._cut(QueueView(node), instance, now)
        return len(places), again_at

    def _picked(self, instance: Instance, now: float) -> tuple[list[Entry] | None, float]:
        """Return the entries that a policy puts into a batch, and when to ask again; None where entries have failed."""
        node = self.node
        window = node.queue.head(WINDOW)
        failed = unread(window, self._batches, node.name)
        for entry, error in failed:
            node.fail_waiting(error, [entry])
        if failed:
            return None, inf
        places, again_at = self._cut(Window(node, window), instance, now)
        return [window[place] for place in places], again_at

    def _cut(self, view: QueueView, instance: Instance, now: float) -> tuple[Sequence[int], float]:
        """Ask the batch policy; return the places of the requests that it takes, and when to ask again."""
        policy = self._batches
        try:
            cut = policy.cut(view, instance, now)
        except BaseException as error:
            raise self._failure(policy, error) from error
        places: Sequence[int] | None
        try:
            again_at = cut.wake_at
            if self.picks:
                places = places_of(cut.take, len(view))
            else:
                take = index(cut.take)  # type: ignore[arg-type]
                places = range(min(take, len(view))) if take >= 0 else None
            if again_at is not None and isnan(again_at):
                places = None
        except (AttributeError, TypeError):
            places = None
        if places is None:
            takes = "a count (places only with picks = True)"
            if self.picks:
                takes = "places, each once and within the queue,"
            what = f"gave {cut!r}: expected Cut(take, wake_at), {takes} and a time or None"
            raise self._failure(policy, what)
        if not places and cut.wake_weight is not None:
            self._enough = cut.wake_weight
        return places, inf if again_at is None else float(again_at)

    def _failure(self, policy: object, what: str | BaseException) -> ContractError:
        """Make the error of a policy that raised, or whose decision is impossible."""
        if isinstance(what, BaseException):
            what = f"raised {error_text(what)}"
        return ContractError(f"the policy {type(policy).__name__} {what}", node=self.node.name)

    def _refuse(
        self, instance: Instance, entries: list[Entry], refused: BatchRangeError, now: float
    ) -> Work | None:
        """Fail what no batch holds; a request that fits without its company stays, and begins where it is first."""
        node, first = self.node, entries[0]
        if instance.max is None or refused.weight <= instance.max:
            entries = [one for one in entries if batches.refusal(node.name, [one.weight], instance)]
        if entries[:1] != [first]:
            return self._claim(instance, [first], first.weight, now)
        node.fail_waiting(refused, entries)
        return None

    def _fits_elsewhere(self, instance: Instance, weight: int) -> bool:
        """Tell whether another instance, busy or free, takes a weight that is too small for this one."""
        others = (i for i in self.node.instances if i is not instance and i.living)
        sizes = self.node.limits.batch_sizes
        return any(i.min <= weight <= (largest_size(sizes, i.max) or weight) for i in others)

    def _claim(self, instance: Instance, entries: list[Entry], weight: int, now: float) -> Work:
        """Take a free instance, and the entries of its batch out of the queue."""
        self.node.free.remove(instance)
        instance.holder = instance.entries = entries
        return self._begin(instance, entries, weight, now)

    def _begin(self, instance: Instance, entries: list[Entry], weight: int, now: float) -> Work:
        instance.running_weight = weight
        instance.queued += 1
        instance.sizes[len(entries)] += 1
        self.node.queue.remove(entries, RUNNING)
        if self.pressure < 2 * SUSTAINED:
            self.pressure += 1
        timed = not instance.queued & instance.mask
        for entry in entries:
            entry.cut = now
            if timed:
                since = entry.arrival if entry.held is None else entry.held.since
                instance.waited.add((now - since) * 1000)
        return new_work(Work, (instance, entries))  # type: ignore[no-any-return]

    def fail_late(self, entries: Sequence[Entry], now: float) -> bool:
        """Fail the entries whose deadline has passed; tell whether there were any. Call `dispatch` next."""
        late = [one for one in entries if one.deadline is not None and one.deadline <= now]
        for entry in late:
            self.expire(entry)
        return bool(late)

    def expire(self, entry: Entry) -> None:
        """Fail an entry whose deadline has passed, unless it is DONE. Call `dispatch` next."""
        self.node.fail(entry, partial(deadline_error, begun=entry.state == RUNNING))

    # Which thread runs it.

    def _nudged(self, me: Waiter, instance: Instance) -> bool:
        """Leave the instance of a swift backend free after ``me`` has helped others long enough, and wake the first caller.

        Until that caller is awake a newcomer may claim the instance: given away at once, it would be idle for a
        switch of threads each time. Once the caller has waited for `OVERTAKE_MAX_S` it is given the instance.
        """
        if me.pending or me.foreign_until is None or instance.mean_s >= INLINE_BELOW_S:
            return False
        if time.perf_counter() < me.foreign_until:
            return False
        (oldest,) = self.node.queue.head(1)
        owner: Any = oldest.owner
        if type(owner) is not Waiter or not owner.parked or not owner.runs:
            return False
        if self.node.clock() - oldest.arrival >= OVERTAKE_MAX_S:
            return False
        owner.nudged = True
        owner.wake()
        return True

    def _may_run(self, me: Runner | None, work: Work) -> bool:
        """Tell whether ``me``, the thread that has cut a batch, runs it."""
        instance = work.instance
        if type(me) is not Waiter:
            return me is not None and instance.thread is (None if type(me) is Worker else me)
        if instance.thread is not None or not me.runs:
            return False
        if me.pending and any(entry.owner is me for entry in work.entries):
            return True
        if instance.mean_s >= SAMPLE_BELOW_S:
            return False
        now = time.perf_counter()
        if me.foreign_until is None:
            me.foreign_until = now + SAMPLE_BELOW_S
        return now < me.foreign_until

    def _give(self, work: Work) -> None:
        """Give a batch to the thread that owns the instance, else to a caller that sleeps, else to a worker."""
        instance = work.instance
        thread = instance.thread
        if thread is not None:
            thread.post(partial(self._drive_owned, thread, work))
            return
        if instance.mean_s < SAMPLE_BELOW_S or self.pressure <= SUSTAINED:
            for entry in work.entries:
                owner: Any = entry.owner
                if type(owner) is Waiter and owner.parked and owner.runs:
                    instance.holder, owner.work = owner, work
                    owner.wake()
                    return
        instance.holder = self._backlog
        if self._parked:
            worker = self._parked.pop()
            worker.work = work
            worker.signal.wake()
            return
        self._backlog.append(work)
        if self._workers < len(self.node.every):
            self._workers += 1
            self.node.afterwards.append(self._start_worker)

    def _start_worker(self) -> None:
        try:
            target = partial(self._serve, Worker())
            threading.Thread(target=target, name=f"headrace-{self.node.name}", daemon=True).start()
        except RuntimeError as error:
            what = f"no thread could be started to run the batch: {error}"
            with self.node.section:
                self._workers -= 1
                while self._backlog and not self._workers:
                    failure = caused(BackendError(what, node=self.node.name), error)
                    self.fail_batch(self._backlog.popleft(), failure)
                self.dispatch()

    def _serve(self, worker: Worker) -> None:
        """Run batches in the thread of a worker."""
        worker.ident = get_ident()
        while True:
            with self.node.section:
                work, worker.work = worker.work, None
                if work is None and self._backlog:
                    work = self._backlog.popleft()
                if work is not None:
                    self.begin(work, worker)
                elif self._stopped or self._workers > len(self.node.every):
                    self._workers -= 1
                    return
                else:
                    self._parked.append(worker)
            if work is None:
                worker.signal.sleep()
            else:
                self.drive(work, worker)

    def end_surplus(self) -> None:
        """Wake sleeping workers of which there are more than instances: they end."""
        for _ in range(self._workers - len(self.node.every)):
            if self._parked:
                self._parked.pop().signal.wake()

    def stop_workers(self) -> None:
        """End the workers that sleep; the others end after their batch."""
        self._stopped = True
        while self._parked:
            self._parked.pop().signal.wake()

    def begin(self, work: Work, me: Runner) -> None:
        """Let a thread that has woken up begin a batch."""
        work.instance.holder, work.instance.ident = me, me.ident

    def _drive_owned(self, thread: OwnThread, work: Work) -> None:
        self.begin(work, thread)
        self.drive(work, thread)

    def drive(self, work: Work | None, me: Runner) -> None:
        """Run a batch and those after it in this thread; raises what is no Exception and hit a caller's own batch."""
        node = self.node
        while work is not None:
            reporter = node.reporter
            errors, interrupt = (
                batches.run(work, node) if reporter is None else reporter.run(work, node)
            )
            if interrupt is not None and all(entry.owner is not me for entry in work.entries):
                interrupt = None
            with node.section:
                work = self._go_on(work, errors, me if interrupt is None else None)
                errors = None  # see `Entry.take_error`
            if interrupt is not None:
                raise interrupt

    def _go_on(self, work: Work, errors: Errors, me: Runner | None) -> Work | None:
        """Settle a batch that has ended, give its instance back, and cut the next one for ``me``."""
        node = self.node
        instance, entries = work
        for i, entry in enumerate(entries):
            if entry.state == RUNNING:  # else it was settled while the batch ran
                error = None if errors is None else errors[i]
                if error is PENDING:
                    node.pending.pend(entry, instance)
                else:
                    node.settle(entry, error, instance)
                error = None  # see `Entry.take_error`
        if type(me) is OwnThread and me.wanted:
            me = None  # its other jobs come first
        if node.queue.count and me is not None and type(me) is not Waiter:
            following = self._following(instance)
            if following is not None:
                return following
        node.give_back(instance)
        return self.dispatch(me)

    def _following(self, instance: Instance) -> Work | None:
        """Return the batch with which a worker goes on at once, where the usual policies have nothing to decide: it keeps its instance."""
        node = self.node
        queue, most = node.queue, instance.max
        take = queue.count if most is None else min(most, queue.count)
        if (
            queue.weight != queue.count
            or node.free
            or not self._takes_what_is_full
            or not self._takes_the_only_one
            or not (take == most or (self._takes_what_waits and take >= instance.min))
            or instance.retired is not None
            or not instance.serves
            or node.limits.batch_sizes
        ):
            return None
        now, entries = node.clock(), queue.head(take)
        if self.fail_late(entries, now):
            return None
        instance.entries = entries
        work = self._begin(instance, entries, take, now)
        if node.outside:
            node.admit_outside()
        return work

    def fail_batch(self, work: Work, error: BaseException) -> None:
        """Give back an instance and fail its batch, which did not run to its end. Call `dispatch` next."""
        for entry in work.entries:
            if entry.state == RUNNING:
                self.node.settle(entry, own_error(error), work.instance)
        self.node.give_back(work.instance)
