"""Cutting batches, claiming instances for them, and choosing the thread that runs each."""

from __future__ import annotations

from functools import partial
from math import inf, isnan
from operator import index
from typing import TYPE_CHECKING

from headrace._checked import largest_size
from headrace._portable import error_text
from headrace._scheduling.admission import deadline_error
from headrace._scheduling.assignment import SUSTAINED, Assignment
from headrace._scheduling.batch import refusal, takes
from headrace._scheduling.entry import RUNNING
from headrace._scheduling.own_thread import OwnThread
from headrace._scheduling.threads import Caller, Work
from headrace.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.batch import Errors
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node
    from headrace._scheduling.threads import Worker
    from headrace.errors import BatchRangeError
    from headrace.policies import BatchPolicy, DispatchPolicy


new_work: Callable[..., Work] = tuple.__new__
"""Makes a `Work` of a tuple as the class does, without a call into Python code."""

_SOONEST_S = 0.001
"""The shortest time until a policy is asked again: one that wants to be asked at once would spin."""


class QueueView:
    """The queue as a policy sees it, for one decision: see `headrace.policies.Queue`.

    Args:
        node: The node that the queue belongs to.
        ahead: The entries of a batch that has not begun; they stand before the queue.
    """

    __slots__ = ("_ahead", "_count", "_node", "_rest", "_seen", "closing", "weight")

    def __init__(self, node: Node, ahead: Sequence[Entry] = ()) -> None:
        queue = node.queue
        self._node = node
        self._ahead = ahead
        self._count = queue.count + len(ahead)
        self._rest = iter(queue)
        self.closing = node.refusing is not None
        self._seen = list(ahead)
        self.weight = queue.weight + sum([entry.weight for entry in ahead])

    @property
    def running(self) -> int:
        """How many instances run a batch; the instance of the batch that is ahead does not count."""
        busy = sum([one.holder is not None for one in self._node.instances])
        return busy - bool(self._ahead)

    @property
    def free(self) -> int:
        """How many instances are free; the instance of the batch that is ahead counts as free."""
        return len(self._node.free) + bool(self._ahead)

    @property
    def oldest(self) -> float:
        """When the oldest entry arrived, whatever its priority."""
        queue = self._node.queue
        times = [entry.arrival for entry in self._ahead]
        return min([*times, queue.oldest()] if queue.count else times)

    @property
    def open(self) -> bool:
        """Whether more requests may come: the node is neither closing nor full."""
        return not self.closing and not self._node.full

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> Entry:
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError("queue index out of range")
        while index >= len(self._seen):
            self._seen.append(next(self._rest))
        return self._seen[index]


class Dispatcher(Assignment):
    """Cuts batches that are due and claims free instances for them. All runs in a `Section` of the node."""

    _enough: float = 0  # the last `wake_weight` of the batch policy: see `Node.enough`

    def use(self, policies: tuple[BatchPolicy, DispatchPolicy]) -> None:
        """Decide with these policies from now on."""
        self.policies = self._batches, self._dispatches = policies
        self._takes_what_is_full = getattr(self._batches.cut, "takes_what_is_full", False)
        waits = getattr(self._batches, "takes_what_waits", False)
        self._takes_what_waits = self._takes_what_is_full and waits
        takes_the_only_one = getattr(self._dispatches.choose, "takes_the_only_one", False)
        self._has_usual_policies = self._takes_what_is_full and takes_the_only_one

    def go_on(self, work: Work, errors: Errors, me: Caller | Worker | None) -> Work | None:
        """Settle a batch that has ended, and dispatch; return the batch that ``me`` runs next.

        Where a batch is due in any case and no other instance is free, the usual policies have nothing to
        decide: a worker keeps its instance, and takes the first entries of the queue.
        """
        self.settle(work, errors)
        node = self._node
        instance, ended = work
        queue, most = node.queue, instance.max
        if queue.count and instance.thread is not None and instance.thread.wanted:
            me = None  # the other jobs in the inbox of this thread come first
        take = queue.count if most is None else min(most, queue.count)
        if (
            take
            and queue.weight == queue.count
            and (take == most or (self._takes_what_waits and take >= instance.min))
            and not node.free
            and isinstance(me, OwnThread)
            and self._has_usual_policies
            and instance.entries is ended
            and instance.retired is None
            and not instance.presence.gone
            and not node.limits.batch_sizes
        ):
            now = node.clock()
            entries = queue.head(take)
            if not self._fail_late(entries, now):
                work = self._begin(instance, entries, take, now)
                if node.outside:
                    node.admit_outside()
                return work
        self.release(work)
        return self.dispatch(me)

    def dispatch(self, me: Caller | Worker | None) -> Work | None:
        """Let entries in that wait for room, as many as fit, and claim instances for all batches that are due.

        Returns:
            The batch that ``me`` is to run; None for none.
        """
        node = self._node
        queue = node.queue
        mine: Work | None = None
        # An entry that left the queue, or a quota, may have made room. A thread that lowers a quota then
        # looks at `outside`; a thread that has put an entry into `outside` then looks at the quota, here.
        # Either the first thread sees the entry, or the second one sees the room.
        if node.outside:
            node.admit_outside()
        node.enough = 0  # if no entry waits, or no instance is free, the next arrival dispatches
        if queue.count:
            node.collect()
            if node.free:
                try:
                    mine = self._start_due(me)
                except BaseException:  # another thread raised it in this one
                    self._give_claimed()
                    raise
        if node.free and not queue.count:
            if self.pressure:
                self.pressure -= 1
            if node.publishes:
                node.publish()
        if node.closers:
            node.look_if_quiet()
        return mine

    def _start_due(self, me: Caller | Worker | None) -> Work | None:
        """Claim free instances for the batches that are due, and say when the next one may be; see `dispatch`."""
        node = self._node
        queue = node.queue
        mine: Work | None = None
        offered = list(node.free)
        wake_at = enough = inf
        while offered and queue.count:
            if isinstance(me, Caller) and mine is None and self._pass_by(me, offered[0]):
                enough = 0
                break
            self._enough = 0
            outcome = self._next(offered)
            if isinstance(outcome, float):
                wake_at = min(wake_at, outcome)
                enough = min(enough, self._enough)
                continue
            if node.outside:
                node.admit_outside()
            if outcome is not None and mine is None and self._runs(me, outcome):
                mine = outcome
            elif outcome is not None:
                self.give(outcome)
            # A batch has begun, or entries have left the queue and others have moved up: a policy may
            # now cut a batch for an instance that was passed by. And where no thread was found to run
            # a batch, its instance is free again.
            offered, wake_at, enough = list(node.free), inf, inf
        if queue.count:
            if node.free:
                node.enough = enough
            if wake_at < inf:
                self._plan(wake_at, None if mine is not None else me)
        return mine

    # Which batch is due.

    def _next(self, offered: list[Instance]) -> Work | float | None:
        """Ask the policies for one instance, and for a batch that it is to run.

        Returns:
            The batch that was cut; None if entries have failed or the instance is lost. Else the instance
            is passed by: it is taken out of ``offered``, and the time is returned at which to ask again,
            infinity for never.
        """
        node = self._node
        now = node.clock()
        try:
            instance = self._chosen(offered)
            if instance is None:
                offered.clear()
                return inf
            if not instance.living:
                node.lose(instance)
                return None
            take, again_at = self._taken(instance, now)
        except ContractError as failed:
            # The policy cannot decide: if these entries did not fail here, they would wait for ever.
            node.fail_waiting(failed, list(node.queue))
            return None
        if take > 0:
            entries = node.queue.head(take)
            if self._fail_late(entries, now):
                return None
            weights = [entry.weight for entry in entries]
            weight = sum(weights)
            refused = None if takes(instance, weight) else refusal(node.name, weights, instance)
            if refused is None:
                return self._claim(instance, entries, weight, now)
            if weight >= instance.min or not self._fits_elsewhere(instance, weight):
                return self._refuse(instance, entries, refused, now)
        offered.remove(instance)
        return again_at if again_at > now else now + _SOONEST_S

    def _chosen(self, offered: Sequence[Instance]) -> Instance | None:
        policy = self._dispatches
        try:
            chosen = policy.choose(self._node.queue.weight, [*offered])  # it may change its list
        except BaseException as error:
            raise self._failure(policy, error) from error
        if chosen is None:
            return None
        for instance in offered:
            if instance is chosen:
                return instance
        raise self._failure(policy, f"chose {chosen!r}, which is no free instance")

    def _taken(
        self, instance: Instance, now: float, ahead: Sequence[Entry] = ()
    ) -> tuple[int, float]:
        """Give how many entries of the queue an instance takes, and when to ask again, infinity for never.

        Args:
            instance: A free instance, or that of the batch which is ahead.
            now: The time.
            ahead: The entries of a batch that has not begun, which those of the queue join.
        """
        queue, most = self._node.queue, instance.max
        waiting = queue.count
        if queue.weight == waiting and self._takes_what_is_full:
            room = inf if most is None else most - instance.running_weight
            if self._takes_what_waits:
                return int(min(room, waiting)), inf
            if room <= waiting and not ahead and not self._node.limits.batch_sizes:
                return int(room), inf
        take, again_at = self._cut(QueueView(self._node, ahead), instance, now)
        return take - len(ahead), again_at

    def _cut(self, queue: QueueView, instance: Instance, now: float) -> tuple[int, float]:
        """Ask the batch policy; give how many entries it takes and when to ask again, infinity for never."""
        policy = self._batches
        try:
            cut = policy.cut(queue, instance, now)
        except BaseException as error:
            raise self._failure(policy, error) from error
        try:
            take, again_at = index(cut.take), cut.wake_at
            sound = take >= 0 and (again_at is None or not isnan(again_at))
        except (AttributeError, TypeError):
            sound = False
        if not sound:
            what = f"gave {cut!r}: expected Cut(take, wake_at), a count and a time or None"
            raise self._failure(policy, what)
        if not take and cut.wake_weight is not None:
            self._enough = cut.wake_weight
        return min(take, len(queue)), inf if again_at is None else float(again_at)

    def _failure(self, policy: object, what: str | BaseException) -> ContractError:
        """Make the error of a policy that raised, or whose decision is impossible."""
        if isinstance(what, BaseException):
            what = f"raised {error_text(what)}"
        return ContractError(f"the policy {type(policy).__name__} {what}", node=self._node.name)

    def _fail_late(self, entries: Sequence[Entry], now: float) -> bool:
        """Fail the entries whose deadline has passed; tell whether there were any. Call `dispatch` next."""
        late = [entry for entry in entries if entry.deadline is not None and entry.deadline <= now]
        for entry in late:
            self.expire(entry)
        return bool(late)

    def expire(self, entry: Entry) -> None:
        """Fail an entry whose deadline has passed, unless the entry is DONE. Call `dispatch` next."""
        self._node.fail(entry, partial(deadline_error, begun=entry.state == RUNNING))

    def _refuse(
        self, instance: Instance, entries: list[Entry], refused: BatchRangeError, now: float
    ) -> Work | None:
        """Fail what no batch holds; a request that fits without its company stays, and begins where it is first."""
        node = self._node
        if instance.max is None or refused.weight <= instance.max:
            entries = [e for e in entries if refusal(node.name, [e.weight], instance)]
        (first,) = node.queue.head(1)
        if entries[:1] != [first]:
            return self._claim(instance, [first], first.weight, now)
        node.fail_waiting(refused, entries)
        return None

    def _fits_elsewhere(self, instance: Instance, weight: int) -> bool:
        """Tell whether another instance, busy or free, takes a weight that is too small for this one."""
        others = (i for i in self._node.instances if i is not instance and i.living)
        sizes = self._node.limits.batch_sizes
        return any(i.min <= weight <= (largest_size(sizes, i.max) or weight) for i in others)

    def _claim(self, instance: Instance, entries: list[Entry], weight: int, now: float) -> Work:
        instance.holder = entries  # until a thread is found to run the batch
        work = self._begin(instance, entries, weight, now)
        self._node.free.remove(instance)
        return work

    def _begin(self, instance: Instance, entries: list[Entry], weight: int, now: float) -> Work:
        """Make entries the batch of an instance, take them out of the queue, and count the batch."""
        count = len(entries)
        # No call between these, so that an exception finds the whole batch, or the one before.
        instance.entries = entries
        instance.running_weight = weight
        instance.queued += 1
        instance.sizes[count] += 1
        self._node.queue.remove(entries, RUNNING)
        if self.pressure < 2 * SUSTAINED:
            self.pressure += 1
        timed = not instance.queued & instance.mask
        for entry in entries:
            entry.cut = now
            if timed:
                instance.waited.add((now - entry.arrival) * 1000)
        return new_work(Work, (instance, entries))

    def begin(self, work: Work) -> None:
        """Let a thread that has woken up begin a batch; entries that came meanwhile join it where they may."""
        self.top_up(work)
        self._node.admit_outside()
        if self._node.queue.count and self._node.has_idle:
            self.dispatch(None)  # an entry was left for this batch, and could not join it

    def top_up(self, work: Work) -> None:
        """Let entries of the queue join a batch that has not begun, as many as the policy takes.

        While the thread of the batch woke up, the instance was claimed and the queue may have grown.
        After a reload has retired the instance, the queue belongs to the new instances.
        """
        node = self._node
        instance, entries = work
        if not node.queue.count or instance.full or instance.retired is not None:
            return
        now = node.clock()
        try:
            more, _ = self._taken(instance, now, entries)
        except ContractError as failed:
            node.fail_waiting(failed, list(node.queue))
            return
        joining = node.queue.head(more) if more > 0 else []
        weights = [entry.weight for entry in (*entries, *joining)]
        if not joining or refusal(node.name, weights, instance) or self._fail_late(joining, now):
            return
        weight = sum(weights)
        instance.sizes[len(entries)] -= 1
        entries += joining
        instance.sizes[len(entries)] += 1
        instance.running_weight = weight
        node.queue.remove(joining, RUNNING)
        for entry in joining:
            entry.cut = now
