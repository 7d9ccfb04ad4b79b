"""Which batch is due at a node, as its policies decide. In steps."""

from __future__ import annotations

from functools import partial
from math import inf, isnan
from operator import index
from typing import TYPE_CHECKING

from headrace._run.batches.fitting import refusal
from headrace._run.batches.runners import Work, new_lock
from headrace._run.batches.standby import TINY_S
from headrace._run.batches.view import WINDOW, QueueView, places_of, refuse, unread
from headrace._run.contract.policies import BestFit, Greedy, part_of
from headrace._run.requests.entry import NEW, RUNNING, Entry
from headrace._run.steps.box import post
from headrace._texts import error_text
from headrace.errors import ContractError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._run.batches.instance import Instance
    from headrace._run.contract.policies import BatchPolicy, DispatchPolicy
    from headrace._run.node import Node
    from headrace._run.steps.box import Worker
    from headrace.errors import BatchRangeError

_SOONEST_S = 0.0005
"""A policy that names a time that is over is asked again after this time."""
RETURN_PARTS, RETURN_S = 8, 1e-3
"""Callers just answered may come again in this part of a batch's mean time, at most this long."""

SINGLES = 2
"""After so many batches of one request each, callers run requests themselves again."""

_MOST_REASONS = 16
"""How many reasons of its policy a node tells apart."""


class Decision:
    """Asks the policies of one node.

    Attributes:
        policy, chooser: The batch policy and the dispatch policy.
        picks: Whether the batch policy names the places of the requests that it takes.
        enough: The weight in the queue below which no batch is due while instances are free.
        returning: The weight in the queue for which an instance waits a moment, since callers just
            answered often come again. 0 for none.
    """

    def __init__(self, node: Node, policy: BatchPolicy, chooser: DispatchPolicy) -> None:
        self._node = node
        self.enough: float = 0
        self._enough: float = 0  # the last `wake_weight` of the batch policy
        self._wake_at, self.returning = inf, 0
        self._answers = 0  # how often callers were waited for
        self._singles = 0  # how many batches in turn had one request
        self._reason, self._reasons = "", set[str]()  # of the last cut; all of the policy
        self.policy, self.chooser = policy, chooser
        self.picks: bool = getattr(policy, "picks", False)
        # These need not be asked where their answer is certain: a full batch, the only instance.
        is_greedy = getattr(policy.cut, "__func__", None) is Greedy.cut
        self._takes_what_is_full = is_greedy and not self.picks
        self._takes_what_waits = self._takes_what_is_full and getattr(
            policy, "takes_what_waits", False
        )
        self._spreads = getattr(policy, "spreads", False)
        self._takes_the_only_one = getattr(chooser.choose, "__func__", None) is BestFit.choose
        self._takes_from_inbox = (
            self._takes_what_waits and self._takes_the_only_one and not node.limits.batch_sizes
        )

    def next_due(self) -> Work | None:
        """Claim an instance and its batch; None where no batch is due."""
        node = self._node
        if self.returning > node.queue.weight + len(node.inbox):
            self.enough = self.returning
            return None
        self.returning = 0
        if self._takes_from_inbox and not node.queue.count and not node.lets_in:
            work = self._take_from_inbox()
            if work is not None:
                return work
        node.take_in()
        offered, wake_at, enough = [*node.free], inf, inf
        while offered and node.queue.count:
            self._enough, self._reason = 0, ""
            answer = self._ask(offered)
            if isinstance(answer, Work):
                return answer
            if answer is None:  # entries have failed, or an instance is gone
                offered, wake_at, enough = [*node.free], inf, inf
                continue
            wake_at, enough = min(wake_at, answer), min(enough, self._enough)
        if node.queue.count:
            self.enough = enough if node.free else 0
            if wake_at < self._wake_at:
                # Noted once the timer has it. Where its thread cannot start, the next look tries.
                node.box.threads.timer.call_at(wake_at, partial(post, node.box, self._note_wake))
                self._wake_at = wake_at
        return None

    def note_answered(self, entries: Sequence[Entry], mean_s: float, worker: Worker) -> None:
        """Let the next batch wait a moment for callers that are answered now, unless it is full.

        Where few more callers come than a batch holds, a batch that begins at once takes the few
        that wait, and those just answered make up the next one: batches of 2, 8, 2, 8 take twice
        the time of 8, 8. In a step.
        """
        node, most = self._node, self._node.max
        if not self._takes_what_waits or self._spreads or node.refusing:
            return
        waiting = node.queue.weight + len(node.inbox)
        back = waiting + sum(
            [entry.weight for entry in entries if entry.waiter is not None or entry.awaited]
        )
        full = back if most is None else min(most, back)
        if full > max(1, waiting):
            self.returning = self.enough = full
            self._answers += 1
            node.set_calls_at()
            wait_s = min(mean_s / RETURN_PARTS, RETURN_S)
            worker.returns = partial(self._wait_for_returns, self._answers, wait_s)

    def _wait_for_returns(self, number: int, wait_s: float, worker: Worker) -> None:
        """Wait for the callers just answered; in the thread of a worker without an instance."""
        node, lock = self._node, new_lock()
        node.lingerer = lock
        if self.returning > node.queue.weight + len(node.inbox) and not node.special:
            lock.acquire(True, wait_s)
        node.lingerer = None
        node.box.work(worker, self._end_return, number)

    def _end_return(self, number: int) -> None:
        """Wait no more for callers, unless others were answered since."""
        if self._answers == number:
            self.returning = 0
        self._node.note_change()

    def _take_from_inbox(self) -> Work | None:
        """Claim an instance for the inbox, past the empty queue; None where that is not possible.

        All of it is equally urgent and weighs 1. So a greedy policy need not be asked.
        """
        node, inbox = self._node, self._node.inbox
        room = node.room
        if (
            not (inbox and node.is_plain)
            or node.special
            or room.outside
            or (room.tickets and room.full)
        ):
            return None
        free = [*node.free]
        instance = free[0] if len(free) == 1 else self._choose(free, len(inbox))
        if instance is None or not instance.living or instance.min > 1:
            return None
        now, most = node.clock(), instance.max
        if self._spreads and len(free) > 1:
            most = min(most or len(inbox), part_of(len(inbox), len(free), 1))
        entries = self._plain_entries(now, most)
        if not entries or not node.claim(instance):
            inbox.extendleft(reversed(entries))
            return None
        full, work = instance.full, Work(node, entries, instance)
        is_full = full is not None and len(entries) >= full
        instance.begin(work, entries, now, "full" if is_full else "idle")
        for entry in entries:
            entry.state = RUNNING
            if entry.ticket is not None:
                entry.ticket.leave(entry)
            if entry.room is not None:
                entry.room()
        node.entered += len(entries)
        if node.crowded or len(entries) > 1:
            self._note_size(len(entries), instance.least_s)
        return work

    def _plain_entries(self, now: float, most: int | None) -> list[Entry]:
        """Take at most so many entries out of the inbox; none where the queue has to judge one."""
        inbox, entries = self._node.inbox, list[Entry]()
        while inbox and len(entries) != most:
            entry = inbox.popleft()
            if entry.state != NEW:  # it was withdrawn
                continue
            late = entry.deadline is not None and entry.deadline <= now
            # Who has just come may not have said yet that not all is plain.
            if late or entry.weight != 1 or entry.priority or entry.node is not self._node:
                inbox.extendleft((entry, *reversed(entries)))
                return []
            entries.append(entry)
        return entries

    def _note_size(self, count: int, least_s: float) -> None:
        """Note the size of a batch: callers run single requests, unless batches gather."""
        node = self._node
        if count > 1:
            node.crowded, self._singles = least_s >= TINY_S, 0
        elif node.crowded:
            self._singles += 1
            node.crowded = self._singles < SINGLES

    def _note_wake(self) -> None:
        """Look at the queue at the time that a policy asked for."""
        self._wake_at = inf
        self._node.note_change()

    def _ask(self, offered: list[Instance]) -> Work | float | None:
        """Ask the policies for one instance and its batch.

        Returns:
            The batch. None to ask anew, else the instance is taken out of ``offered``, and this is
            the time at which to ask again, infinity for never.
        """
        node = self._node
        now = node.clock()
        try:
            instance = self._choose(offered, node.queue.weight)
            if instance is None:
                offered.clear()
                return inf
            if not instance.living:
                if node.claim(instance):
                    node.note_lost(instance)
                return None
            entries, again_at = self._next_entries(instance, now)
        except ContractError as failed:
            # A policy cannot decide: else these entries would wait for ever.
            node.fail_waiting(failed, list(node.queue))
            return None
        late = [e for e in entries or () if e.deadline is not None and e.deadline <= now]
        for entry in late:
            node.fail_late(entry)
        if entries is None or late:
            return None
        if entries:
            weights = [entry.weight for entry in entries]
            refused = refusal(node.name, weights, instance)
            if refused is None:
                return self._claim(instance, entries, sum(weights), now)
            if refused.weight >= instance.min or not self._fits_elsewhere(instance, refused.weight):
                return self._refuse(instance, entries, refused, now)
        offered.remove(instance)
        return again_at if again_at > now else now + _SOONEST_S

    def _next_entries(self, instance: Instance, now: float) -> tuple[list[Entry] | None, float]:
        """Return the entries that an instance takes now, and when to ask again.

        None for entries says that some have failed.
        """
        if self.picks:
            return self._pick(instance, now)
        queue, most = self._node.queue, instance.max
        if queue.weight == queue.count and self._takes_what_is_full:
            if self._takes_what_waits:
                count, free = queue.count, len(self._node.free)
                if self._spreads and free > 1:
                    count = part_of(count, free, instance.min)
                return queue.head(count if most is None else min(most, count)), inf
            if most is not None and most <= queue.count and not self._node.limits.batch_sizes:
                return queue.head(most), inf
        places, again_at = self._ask_policy(QueueView(self._node), instance, now)
        return queue.head(len(places)), again_at

    def _choose(self, offered: Sequence[Instance], weight: int) -> Instance | None:
        """Ask the dispatch policy for an instance; ContractError where it gives another one."""
        if self._takes_the_only_one and len(offered) == 1 and weight >= offered[0].min:
            return offered[0]
        try:
            chosen = self.chooser.choose(weight, [*offered])  # it may change its list
        except BaseException as error:
            raise self._failure(self.chooser, error) from error
        for instance in offered:
            if instance is chosen:
                return instance
        if chosen is None:
            return None
        raise self._failure(self.chooser, f"chose {chosen!r}, which is no free instance")

    def _pick(self, instance: Instance, now: float) -> tuple[list[Entry] | None, float]:
        """Return the entries that a policy with ``picks`` takes, as `_next_entries` does."""
        node = self._node
        window = node.queue.head(WINDOW)
        failed = unread(window, self.policy, node.name)
        if failed:
            refuse(node, failed)
            return None, inf
        places, again_at = self._ask_policy(QueueView(node, window), instance, now)
        return [window[place] for place in places], again_at

    def _ask_policy(
        self, view: QueueView, instance: Instance, now: float
    ) -> tuple[Sequence[int], float]:
        """Ask the batch policy which places it takes, and when to ask again."""
        policy = self.policy
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
            self._reason = getattr(cut, "reason", "")
            if (again_at is not None and isnan(again_at)) or not isinstance(self._reason, str):
                places = None
        except (AttributeError, TypeError):
            places = None
        if places is None:
            takes = "a count (places only with picks = True)"
            if self.picks:
                takes = "places, each once and within the queue"
            expected = f"Cut(take, wake_at), {takes}, a time or None, and a reason that is a text"
            raise self._failure(policy, f"gave {cut!r}: expected {expected}")
        if not places and cut.wake_weight is not None:
            self._enough = cut.wake_weight
        return places, inf if again_at is None else float(again_at)

    def _failure(self, policy: object, problem: str | BaseException) -> ContractError:
        """Make the error of a policy that raised, or whose decision is impossible."""
        if isinstance(problem, BaseException):
            problem = f"raised {error_text(problem)}"
        return ContractError(f"the policy {type(policy).__name__} {problem}", node=self._node.name)

    def _refuse(
        self, instance: Instance, entries: list[Entry], refused: BatchRangeError, now: float
    ) -> Work | None:
        """Fail what no batch holds.

        A request that fits without the others stays, and begins where it is first.
        """
        node, first = self._node, entries[0]
        if instance.max is None or refused.weight <= instance.max:
            entries = [entry for entry in entries if refusal(node.name, [entry.weight], instance)]
        if entries[:1] != [first]:
            return self._claim(instance, [first], first.weight, now)
        node.fail_waiting(refused, entries)
        return None

    def _fits_elsewhere(self, instance: Instance, weight: int) -> bool:
        """Tell whether another instance, busy or free, takes a weight too small for this one."""
        others = (i for i in self._node.instances if i is not instance and i.living)
        return any(i.min <= weight <= (i.full or weight) for i in others)

    def _claim(
        self, instance: Instance, entries: list[Entry], weight: int, now: float
    ) -> Work | None:
        """Take a free instance, and its batch out of the queue; None where a caller was quicker."""
        node = self._node
        if not node.claim(instance):
            return None
        reason, full = self._reason, instance.full
        if reason:
            reason = self._reason_of(reason)
        elif full is not None and weight >= full:
            reason = "full"
        elif node.refusing is not None:
            reason = "closing"
        work = Work(node, entries, instance)
        instance.begin(work, entries, now, reason or "idle")
        node.queue.remove(entries, RUNNING)
        self._note_size(len(entries), instance.least_s)
        return work

    def _reason_of(self, reason: str) -> str:
        """Return the reason of a policy, which may give `_MOST_REASONS` different ones."""
        if len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
        return reason if reason in self._reasons else "other"
