"""A model of the scheduler, driven by hand: no threads, no time but what the test lets pass.

Whatever is submitted, cancelled, finished, failed, expired or closed, in any order: every request
has exactly one outcome, equals keep their order, range and queue bound hold, and nothing that is
due is left waiting beside a free instance.
"""

from __future__ import annotations

import heapq
import itertools

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from headrace._backend import Backend
from headrace._context import InitContext
from headrace._scheduling.entry import DONE, OUTSIDE, QUEUED, RUNNING, Entry
from headrace._scheduling.instance import Instance
from headrace._scheduling.scheduler import Limits, Scheduler
from headrace.errors import ClosedError, HeadraceError
from headrace.policies import BestFit, Greedy
from headrace.testing import FakeClock


class HandAlarm:
    def __init__(self, action):
        self.action = action

    def cancel(self):
        self.action = None


class HandTimer:
    """Calls what is due when the test moves the clock."""

    def __init__(self, clock):
        self.clock = clock
        self.order = itertools.count()
        self.heap = []

    def call_at(self, at, action):
        alarm = HandAlarm(action)
        heapq.heappush(self.heap, (at, next(self.order), alarm))
        return alarm

    def run_due(self):
        while self.heap and self.heap[0][0] <= self.clock():
            _, _, alarm = heapq.heappop(self.heap)
            action, alarm.action = alarm.action, None
            if action is not None:
                action()


class Hand:
    """A thread that does nothing until the test lets it."""

    def __init__(self):
        self.jobs = []
        self.alive = True

    def post(self, run, lost):
        if not self.alive:
            return False
        self.jobs.append((run, lost))
        return True


class Told(Backend):
    """Ends as the test says: an outcome per item, or an error for all."""

    max = None

    def __init__(self):
        self.plan = None
        self.seen = []

    def forward(self, batch):
        self.seen.append(list(batch))
        plan, self.plan = self.plan, None
        if plan == "raise":
            raise ValueError("told to")
        outcomes = []
        for number, request in enumerate(batch):
            fails = plan is not None and number in plan
            outcomes.append(ValueError("told to") if fails else None)
            if not fails:
                request["data"], request["result"] = "changed on the way", request["data"]
        return outcomes


class Owner:
    def __init__(self):
        self.told = 0
        self.entry = None

    def finished(self, entry):
        self.told += 1


class Model(RuleBasedStateMachine):
    entries = Bundle("entries")

    def __init__(self):
        super().__init__()
        self.made = []
        self.closed = False

    @initialize(
        ranges=st.lists(
            st.sampled_from([(1, 1), (1, 4), (1, 8), (3, 8), (1, None)]), min_size=1, max_size=3
        ),
        size=st.integers(1, 6),
        rule=st.sampled_from(["wait", "reject", "shed_oldest"]),
        timeout_ms=st.sampled_from([None, 50.0]),
        batching_ms=st.sampled_from([0.0, 10.0]),
        sizes=st.sampled_from([(), (1, 4)]),
        pad=st.booleans(),
    )
    def start(self, ranges, size, rule, timeout_ms, batching_ms, sizes, pad):
        self.clock = FakeClock(100.0)
        self.timer = HandTimer(self.clock)
        self.hands = [Hand() for _ in ranges]
        self.instances = []
        for index, (least, most) in enumerate(ranges):
            backend = Told()
            backend._start(None, InitContext())
            self.instances.append(
                Instance(index, backend, least=least, most=most, thread=self.hands[index])
            )
        self.limits = Limits(
            queue_size=size,
            queue_full=rule,
            timeout_ms=timeout_ms,
            batching_timeout_ms=batching_ms,
            batch_sizes=sizes,
            pad=pad,
        )
        options = Greedy.Options(batching_timeout=batching_ms, batch_sizes=sizes or None, pad=pad)
        self.scheduler = Scheduler(
            "model",
            self.instances,
            Greedy(options),
            BestFit(),
            self.limits,
            clock=self.clock,
            timer=self.timer,
        )

    # What users do.

    @rule(
        target=entries,
        weight=st.sampled_from([1, 1, 1, 2, 5, 9]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        after=st.sampled_from([None, None, 0.0, 0.005, 0.03]),
    )
    def submit(self, weight, priority, after):
        deadline = None if after is None else self.clock() + after
        request = {"data": len(self.made), "result": "stale"}
        request.pop("result")
        owner = Owner()
        entry = Entry(request, owner, weight=weight, deadline=deadline, priority=priority)
        owner.entry = entry
        self.made.append(entry)
        self.scheduler.submit(entry)
        if self.closed:
            assert isinstance(entry.error, (ClosedError, HeadraceError))
            assert entry.state == DONE
        return entry

    @rule(entry=entries)
    def cancel(self, entry):
        waits = entry.state in (QUEUED, OUTSIDE)
        assert self.scheduler.cancel(entry) == waits
        if waits:
            entry.owner.told += 1  # who cancels knows
            entry.error = "cancelled"
        assert not self.scheduler.cancel(entry)

    @rule(entry=entries)
    def abandon(self, entry):
        runs = entry.state == RUNNING
        assert self.scheduler.abandon(entry) == runs
        if runs:
            entry.owner.told += 1
            entry.error = "cancelled"

    # What backends do.

    def _end(self, index, plan):
        hand = self.hands[index % len(self.hands)]
        if hand.jobs:
            instance = self.instances[index % len(self.hands)]
            instance.backend.plan = plan
            batch = list(instance.entries or ())
            order = [self.made.index(entry) for entry in batch]
            levels = [entry.priority for entry in batch]
            assert levels == sorted(levels, reverse=True)
            for level in set(levels):
                equals = [
                    n for n, entry in zip(order, batch, strict=True) if entry.priority == level
                ]
                assert equals == sorted(equals)
            run, _ = hand.jobs.pop(0)
            run()

    @rule(index=st.integers(0, 2))
    def finish(self, index):
        self._end(index, None)

    @rule(index=st.integers(0, 2), which=st.sets(st.integers(0, 3)))
    def fail_some(self, index, which):
        self._end(index, which)

    @rule(index=st.integers(0, 2))
    def fail_all(self, index):
        self._end(index, "raise")

    @rule(index=st.integers(0, 2))
    def die(self, index):
        hand = self.hands[index % len(self.hands)]
        if hand.alive and len(self.made) > 6:
            hand.alive = False
            jobs, hand.jobs = hand.jobs, []
            for _, lost in jobs:
                lost()

    @rule(seconds=st.sampled_from([0.001, 0.005, 0.01, 0.05]))
    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.timer.run_due()

    @rule(drain=st.booleans())
    def close(self, drain):
        if len(self.made) > 4:
            self.closed = True
            self.scheduler.refuse(ClosedError(), drain=drain)

    @rule()
    def fail_what_is_open(self):
        if self.closed:
            self.scheduler.fail_open(ClosedError("late"), lambda instance: None)
            assert all(entry.state == DONE for entry in self.made)

    # What holds at any time.

    @invariant()
    def one_outcome(self):
        for entry in self.made:
            assert entry.owner.told == (1 if entry.state == DONE else 0)

    @invariant()
    def data_is_the_callers_and_results_are_there(self):
        for number, entry in enumerate(self.made):
            if entry.state == DONE and entry.error is None:
                assert entry.request["data"] == entry.request["result"] == number
            elif entry.state == DONE and isinstance(entry.error, HeadraceError):  # noqa: SIM102
                if not entry.error.abandoned:
                    assert entry.request == {"data": number}

    @invariant()
    def errors_are_not_shared(self):
        errors = [id(e.error) for e in self.made if isinstance(e.error, HeadraceError)]
        assert len(errors) == len(set(errors))

    @invariant()
    def queue_bound_and_range_hold(self):
        states = [entry.state for entry in self.made]
        assert states.count(QUEUED) <= self.limits.queue_size
        if self.limits.queue_full != "wait":
            assert OUTSIDE not in states
        if states.count(OUTSIDE):
            assert states.count(QUEUED) == self.limits.queue_size
        for instance in self.instances:
            for batch in instance.backend.seen:
                weight = len(batch)
                if all(self._weight(request) == 1 for request in batch):
                    assert instance.max is None or weight <= instance.max
                    assert weight >= instance.min

    def _weight(self, request):
        return next((e.weight for e in self.made if e.request is request), 1)

    @invariant()
    def running_weight_is_within_the_range(self):
        for instance in self.instances:
            if instance.entries is not None:
                weight = sum(entry.weight for entry in instance.entries)
                assert weight == instance.running_weight
                assert instance.max is None or weight <= instance.max
                assert self.limits.pad or weight >= instance.min
                if self.limits.batch_sizes and not self.limits.pad:
                    assert weight in self.limits.batch_sizes

    @invariant()
    def counts_add_up(self):
        counts = self.scheduler.statistics()
        states = [entry.state for entry in self.made]
        assert counts["submitted"] == len(self.made)
        assert counts["waiting"] == states.count(QUEUED) + states.count(OUTSIDE)
        assert counts["ok"] == sum(
            1 for entry in self.made if entry.state == DONE and entry.error is None
        )
        assert sum(counts["failed"].values()) == sum(
            1 for entry in self.made if entry.state == DONE and entry.error is not None
        )

    @invariant()
    def an_idle_node_leaves_nobody_waiting_past_the_batching_timeout(self):
        idle = all(instance.holder is None for instance in self.instances)
        if idle and any(hand.alive for hand in self.hands):
            for entry in self.made:
                if entry.state == QUEUED:
                    over = entry.arrival + self.limits.batching_timeout_ms / 1000
                    assert self.clock() < over
                    assert any(alarm.action for _, _, alarm in self.timer.heap)

    @invariant()
    def nothing_waits_for_the_dead(self):
        if not any(hand.alive for hand in self.hands):
            # The next request, or the loss of a batch, is what finds them out.
            assert all(entry.state != RUNNING for entry in self.made)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.refuse(ClosedError(), drain=True)
        for _ in range(1000):
            busy = [hand for hand in self.hands if hand.jobs]
            if not busy and all(entry.state == DONE for entry in self.made):
                break
            for hand in busy:
                hand.jobs.pop(0)[0]()
            self.clock.advance(0.05)
            self.timer.run_due()
        living = any(hand.alive for hand in self.hands)
        assert not living or all(entry.state == DONE for entry in self.made)
        assert not living or self.scheduler.wait_quiet(0.0)


Model.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestModel = Model.TestCase


# A batch between its cut and its start.


def one_by_hand(*, most=4, **limits):
    hand, backend = Hand(), Told()
    backend._start(None, InitContext())
    instance = Instance(0, backend, least=1, most=most, thread=hand)
    options = Greedy.Options(batch_sizes=limits.get("batch_sizes") or None)
    scheduler = Scheduler("n", [instance], Greedy(options), BestFit(), Limits(**limits))
    return scheduler, hand, backend


def sent(scheduler, count, first=0):
    entries = [Entry({"data": first + k}, Owner()) for k in range(count)]
    for entry in entries:
        scheduler.submit(entry)
    return entries


def test_who_comes_while_a_thread_wakes_up_joins_its_batch_up_to_max():
    scheduler, hand, backend = one_by_hand(most=4)
    entries = sent(scheduler, 6)
    scheduler.cancel(entries[1])
    assert [entry.state for entry in entries] == [RUNNING, DONE] + [QUEUED] * 4
    while hand.jobs:
        hand.jobs.pop(0)[0]()
    assert [[request["result"] for request in batch] for batch in backend.seen] == [
        [0, 2, 3, 4],
        [5],
    ]
    stats = scheduler.statistics()
    assert stats["ok"] == 5
    assert stats["batch_size"]["histogram"] == {"1": 1, "4": 1}


def test_who_comes_while_a_thread_wakes_up_joins_only_what_the_policy_would_cut():
    scheduler, hand, backend = one_by_hand(most=4, batch_sizes=(1, 3))
    entries = sent(scheduler, 2)
    hand.jobs.pop(0)[0]()
    assert [len(batch) for batch in backend.seen] == [1]
    hand.jobs.pop(0)[0]()
    entries += sent(scheduler, 5, first=2)
    while hand.jobs:
        hand.jobs.pop(0)[0]()
    assert [len(batch) for batch in backend.seen] == [1, 1, 3, 1, 1]
    assert all(entry.owner.told == 1 and entry.error is None for entry in entries)
