"""A model of the scheduler, driven by hand: no threads, no time but what the test lets pass.

Whatever is submitted, called, cancelled, finished, failed (also by what is called at the end of the
batch), kept as PENDING, resumed, answered later, lost, expired, reloaded or closed, in any order: every
request has exactly one outcome, equals keep their order, range and queue bound hold, nothing that is due
is left waiting beside a free instance, an instance that was taken out of service ends its batch, begins
no other, and is given back once, and who keeps a request is told of its end once.
"""

from __future__ import annotations

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from internals import scheduling
from internals.scheduling import (
    DONE,
    INLINE_BELOW_S,
    NOBODY,
    OUTSIDE,
    PENDED,
    QUEUED,
    RUNNING,
    WAITING,
    Entry,
    Hand,
    HandTimer,
    Instance,
    Limits,
    NodeQuota,
    Owner,
    OwnThread,
    RequestQuota,
    Scheduler,
    Signal,
    Still,
    Waiter,
    free,
    repeated,
    started,
)

from headrace import PENDING, Backend
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ContractError,
    DeadlineExceededError,
    HeadraceError,
    InstanceLostError,
    OverloadedError,
)
from headrace.policies import BestFit, DispatchPolicy, Greedy
from headrace_testing import FakeClock


class Told(Backend):
    """Ends as the test says: an outcome per item, or an error for all.

    Attributes:
        during: Called in the next batch.
        told: The requests that it has kept and that have ended.
        accepted: For all that it asked for in ``forward`` whether it was accepted, and whether it had to be.
    """

    max = None
    told: list
    accepted: list

    def __init__(self):
        self.plan = None
        self.during = None
        self.seen = []
        self.told = []
        self.accepted = []
        self.ended = 0

    def init(self, options, context):
        self.context = context
        context.at_batch_end(self.end)

    def end(self):
        self.ended += 1
        plan, self.plan = self.plan, None
        if plan == "end":
            raise RuntimeError("told to")
        if plan == "lost at the end":
            raise InstanceLostError("told to")

    def forward(self, batch):
        assert not self._liveness.lost
        self.seen.append(list(batch))
        plan = self.plan
        during, self.during = self.during, None
        if during is not None:
            during()
        if plan == "raise":
            raise ValueError("told to")
        if plan == "lost":
            raise InstanceLostError("told to")
        outcomes = []
        whose = [request["data"] for request in batch]
        for number, request in enumerate(batch):
            if isinstance(plan, tuple) and number in plan[1]:
                self.context.on_end(request, self.told.append)
                if plan[0] != "pend":
                    is_copy = whose.index(whose[number]) < number
                    open_still = not is_copy and not self.context.unwanted(request)
                    if plan[0] == "again":
                        accepted = self.context.resume(request)
                    else:
                        accepted = self.context.finish(request, request["data"])
                    self.accepted.append((accepted, open_still))
                    self.accepted.append((self.context.finish(request, "again"), False))
                outcomes.append(PENDING)
                continue
            fails = isinstance(plan, set) and number in plan
            outcomes.append(ValueError("told to") if fails else None)
            if not fails:
                request["data"], request["result"] = "changed on the way", request["data"]
        return outcomes


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with scheduling.no_main_thread():
        yield


RANGES = st.integers(1, 3).map(lambda count: [(1, 8)] * count) | st.lists(
    st.sampled_from([(1, 1), (1, 4), (1, 8), (3, 8), (1, None)]), min_size=1, max_size=3
)
TIMEOUTS_MS = st.sampled_from([None, None, 50.0])
BATCHING_MS = st.sampled_from([0.0, 0.0, 10.0])
SIZES = st.sampled_from([(), (), (1, 4)])


class Model(RuleBasedStateMachine):
    """The scheduler, with instances that own their thread, or are run by runners and callers.

    Attributes:
        made: Every entry that was submitted.
        owners: The owner of each.
        begun: The entries of all batches from the queue, in the order in which they were cut.
        called: How many requests were run by their caller: ``ok`` and ``failed``.
        instances: All instances there ever were.
        hands: Per instance the thread that runs it, or the runner that will.
        old: Instances that were taken out of service and not given back.
        gone: Those that were given back, with the number of batches they had run.
        kept: The entries whose outcome was PENDING, with how often it was so: its holder was told as often, in the end.
    """

    entries = Bundle("entries")

    def __init__(self):
        super().__init__()
        self.made = []
        self.owners = {}
        self.begun = []
        self.called = {"ok": 0, "failed": 0}
        self.instances = []
        self.hands = []
        self.old = []
        self.gone = []
        self.kept = {}
        self.closed = False

    @initialize(
        owned=st.booleans(),
        ranges=RANGES,
        size=st.integers(1, 6),
        rule=st.sampled_from(["wait", "reject", "shed_oldest"]),
        timeout_ms=TIMEOUTS_MS,
        batching_ms=BATCHING_MS,
        sizes=SIZES,
        pad=st.booleans(),
        wanted=st.booleans(),
    )
    def start(self, owned, ranges, size, rule, timeout_ms, batching_ms, sizes, pad, wanted=True):
        self.wanted = wanted
        self.clock = FakeClock(100.0)
        self.timer = HandTimer(self.clock)
        self.owned = owned
        self.queue_keys = {"queue_size": size, "queue_full": rule}
        self.scheduler = self._scheduler(ranges, timeout_ms, batching_ms, sizes, pad)
        scheduling.workers_by_hand(self.scheduler, lambda one, run: self._hand(one).put(run))
        self.begun = scheduling.claims(self.scheduler)

    def _hand(self, instance):
        return self.hands[self.instances.index(instance)]

    def _scheduler(self, ranges, timeout_ms, batching_ms, sizes, pad):
        made = []
        for index, (least, most) in enumerate(ranges):
            backend = started(Told())
            hand = Hand(wanted=self.wanted)
            thread = hand.thread if self.owned else None
            made.append(Still(index, backend, least=least, most=most, thread=thread))
            self.hands.append(hand)
        self.instances += made
        limits = Limits(
            timeout_ms=timeout_ms,
            batching_timeout_ms=batching_ms,
            batch_sizes=sizes,
            pad=pad,
            **self.queue_keys,
        )
        options = Greedy.Options(batching_timeout=batching_ms, batch_sizes=sizes or None, pad=pad)
        return Scheduler(
            "model",
            made,
            Greedy(options),
            BestFit(),
            limits,
            clock=self.clock,
            timer=self.timer,
        )

    @property
    def limits(self):
        return self.scheduler.node.limits

    @property
    def living(self):
        """Whether an instance in service can run a batch."""
        return any(one.living for one in self.scheduler.instances)

    # What users do.

    @rule(
        target=entries,
        weight=st.sampled_from([1, 1, 1, 2, 5, 9]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        after=st.sampled_from([None, None, 0.0, 0.005, 0.03]),
        early=st.sampled_from([None, None, None, None, "cancelled", "interrupted"]),
    )
    def submit(self, weight, priority, after, early=None):
        """Send a request; ``early`` says how it is taken back before it arrives, as a signal handler may do."""
        deadline = None if after is None else self.clock() + after
        request = {"data": len(self.made)}
        owner = Owner()
        entry = Entry(request, owner, weight=weight, deadline=deadline, priority=priority)
        self.owners[entry] = owner
        self.made.append(entry)
        if early == "cancelled":
            self.cancel(entry)
        elif early == "interrupted":
            scheduling.interrupted(self.scheduler, [entry])
            assert isinstance(entry.error, BackendError)
        self.scheduler.submit(entry)
        if self.closed and early is None:
            assert isinstance(entry.error, (ClosedError, HeadraceError))
            assert entry.state == DONE
        return entry

    @rule(
        weights=st.lists(st.sampled_from([1, 1, 1, 1, 2, 4]), min_size=2, max_size=8),
        after=st.sampled_from([None, None, None, 0.005]),
    )
    def submit_many(self, weights, after):
        for weight in weights:
            self.submit(weight, 0, after)

    @precondition(lambda self: self._may_call())
    @rule(
        fails=st.sampled_from([None, None, "early", "raise", "end", "lost at the end"]),
        reloads=st.booleans(),
        ranges=RANGES,
    )
    def call(self, fails, reloads, ranges):
        """A caller that finds an instance free runs its own request."""
        instance = free(self.scheduler)[0]
        instance.backend.child.plan = fails
        if fails == "early":  # its answer is there before it is known that it comes later
            instance.backend.child.plan, fails = ("early", {0}), None
        if reloads:
            instance.backend.child.during = lambda: self.reload(ranges, None, 0.0, (), False)
        request = {"data": "called", "result": "stale"}
        before = len(instance.backend.child.seen)
        try:
            self.scheduler.call(request)
        except HeadraceError:
            assert fails
            assert request == {"data": "called"}
            self.called["failed"] += 1
        else:
            assert not fails
            assert request == {"data": "called", "result": "called"}
            self.called["ok"] += 1
        assert len(instance.backend.child.seen) == before + 1

    def _may_call(self):
        there = free(self.scheduler)
        if not there or not scheduling.short_cut_max(self.scheduler) or self._count(QUEUED):
            return False
        if self._count(PENDED) >= self.limits.queue_size:
            return False
        return not self.limits.batching_timeout_ms or len(there) == len(self.scheduler.instances)

    @rule(entry=entries)
    def cancel(self, entry):
        waits = entry.state in WAITING
        assert self.scheduler.cancel(entry) == waits
        if waits:
            self._is_cancelled(entry)
        assert not self.scheduler.cancel(entry)

    @precondition(lambda self: self._count(QUEUED) > 1)
    @rule(which=st.sets(st.integers(0, 3), min_size=2))
    def cancel_together(self, which):
        some = [one for k, one in enumerate(e for e in self.made if e.state != DONE) if k in which]
        waiting = [entry for entry in some if entry.state in WAITING]
        self.scheduler.cancel_together(some)
        for entry in waiting:
            self._is_cancelled(entry)

    def _is_cancelled(self, entry):
        assert entry.state == DONE
        self.owners[entry].notified += 1  # who cancels knows
        entry.error = "cancelled"

    @rule(entry=entries)
    def abandon(self, entry):
        runs = entry.state == RUNNING
        left_behind = getattr(entry.error, "abandoned", False) is True
        assert self.scheduler.abandon(entry) == (runs or left_behind)
        if runs:
            self.owners[entry].notified += 1
            entry.error = "cancelled"

    # What backends do.

    def _busy(self):
        return [hand for hand in self.hands if hand.jobs]

    def _end(self, index, plan, during=None):
        busy = self._busy()
        hand = busy[index % len(busy)]
        instance = self.instances[self.hands.index(hand)]
        instance.backend.child.plan, instance.backend.child.during = plan, during
        levels = [entry.priority for entry in instance.entries or ()]
        assert levels == sorted(levels, reverse=True)
        hand.work()

    @precondition(lambda self: self._busy())
    @rule(index=st.integers(0, 5))
    def finish(self, index):
        self._end(index, None)

    @precondition(lambda self: self._busy())
    @rule(
        index=st.integers(0, 5), plan=st.sets(st.integers(0, 3)) | st.sampled_from(["raise", "end"])
    )
    def fail(self, index, plan):
        self._end(index, plan)

    @precondition(lambda self: self._busy())
    @rule(
        index=st.integers(0, 5),
        which=st.sets(st.integers(0, 3), min_size=1),
        plan=st.sampled_from(["pend", "early", "again"]),
    )
    def pend(self, index, which, plan="pend"):
        """Keep requests; ``early`` answers them before that is known, and ``again`` has them queued again."""
        self._pend(index, which, plan)

    @precondition(lambda self: self._busy() and not self.closed)
    @rule(index=st.integers(0, 5), ranges=RANGES, plan=st.sampled_from(["pend", "early", "again"]))
    def pend_while_it_is_reloaded(self, index, ranges, plan):
        self._pend(index, {0, 1}, plan, lambda: self.reload(ranges, None, 0.0, (), False))

    def _pend(self, index, which, plan, during=None):
        busy = self._busy()
        instance = self.instances[self.hands.index(busy[index % len(busy)])]
        backend = instance.backend.child
        batches = len(backend.seen)
        self._end(index, (plan, which), during)
        if len(backend.seen) > batches:
            batch = [*enumerate(backend.seen[batches])]
            for entry in self.made:
                if any(number in which and entry.request is one for number, one in batch):
                    self.kept[entry] = self.kept.get(entry, 0) + 1

    @precondition(lambda self: self._count(PENDED))
    @rule(which=st.integers(0, 5), how=st.sampled_from(["resume", "finish", "fail"]))
    def answer(self, which, how):
        pended = [entry for entry in self.made if entry.state == PENDED]
        entry = pended[which % len(pended)]
        context = self.instances[0].backend.child.context
        assert not context.unwanted(entry.request)
        queued = [one for one in self.made if one.state == QUEUED]
        if how == "resume":
            assert context.resume(entry.request)
            if entry.state == QUEUED:  # it goes before those that have not begun
                ahead = [*self.scheduler.node.queue].index(entry)
                later = [one for one in queued if one.priority == entry.priority]
                later = [one for one in later if one.state == QUEUED and one not in self.kept]
                assert all([*self.scheduler.node.queue].index(one) > ahead for one in later)
                assert not context.resume(entry.request)
                assert not context.finish(entry.request, "too late")
        else:
            assert context.finish(
                entry.request, ValueError("told to") if how == "fail" else entry.request["data"]
            )
            assert entry.state == DONE
            assert (entry.error is None) == (how == "finish")
            assert not context.finish(entry.request, "again")

    @rule(entry=entries)
    def nobody_answers_what_is_over(self, entry):
        context = self.instances[0].backend.child.context
        if entry.state == DONE:
            assert not context.resume(entry.request)
            assert not context.finish(entry.request, "too late")
            assert context.unwanted(entry.request)

    @precondition(lambda self: self._busy() and len(self.made) > 6)
    @rule(index=st.integers(0, 5), plan=st.sampled_from(["lost", "lost at the end"]))
    def lose(self, index, plan):
        self._end(index, plan)

    @precondition(lambda self: self._busy() and not self.closed)
    @rule(index=st.integers(0, 5), ranges=RANGES)
    def finish_while_it_is_reloaded(self, index, ranges):
        self._end(index, None, lambda: self.reload(ranges, None, 0.0, (), False))

    @rule(seconds=st.sampled_from([0.001, 0.005, 0.01, 0.05]))
    def pass_time(self, seconds):
        self.clock.advance(seconds)
        self.timer.run_due()

    # What those who run the pipeline do.

    @precondition(lambda self: not self.closed and len(self.instances) < 12)
    @rule(
        ranges=RANGES,
        timeout_ms=TIMEOUTS_MS,
        batching_ms=BATCHING_MS,
        sizes=SIZES,
        pad=st.booleans(),
    )
    def reload(self, ranges, timeout_ms, batching_ms, sizes, pad):
        new = self._scheduler(ranges, timeout_ms, batching_ms, sizes, pad)
        before = list(self.scheduler.instances)
        old = self.scheduler.exchange(new, Signal(), keeps_policies=False)
        assert old == before
        assert self.scheduler.instances == new.instances
        self.old.append(list(old))

    @precondition(lambda self: self.old)
    @rule(which=st.integers(0, 3))
    def take_retired(self, which):
        retirement = self.old[which % len(self.old)]
        for instance in self.scheduler.take_retired(retirement):
            assert instance.holder is None
            retirement.remove(instance)
            self.gone.append((instance, len(instance.backend.child.seen)))
        for instance in retirement:
            assert instance.holder is not None
        self.old = [one for one in self.old if one]

    @precondition(lambda self: len(self.made) > 12)
    @rule(drain=st.booleans())
    def close(self, drain):
        self.closed = True
        self.scheduler.refuse(ClosedError(), drain=drain)

    @precondition(lambda self: self.closed)
    @rule()
    def fail_what_is_open(self):
        self.scheduler.fail_open(ClosedError("late"), lambda: None)
        assert all(entry.state == DONE for entry in self.made)

    # What holds at any time.

    def _count(self, state):
        return sum(1 for entry in self.made if entry.state == state)

    @invariant()
    def one_outcome(self):
        for entry in self.made:
            assert self.owners[entry].notified == (1 if entry.state == DONE else 0)
            assert entry.owner is (NOBODY if entry.state == DONE else self.owners[entry])

    @invariant()
    def data_is_the_callers_and_results_are_there(self):
        for number, entry in enumerate(self.made):
            if entry.state == DONE and entry.error is None:
                assert entry.request["data"] == entry.request["result"] == number
            elif entry.state == DONE and isinstance(entry.error, HeadraceError):  # noqa: SIM102
                if not entry.error.abandoned:
                    assert entry.request == {"data": number}

    @invariant()
    def who_keeps_a_request_is_told_of_its_end_once(self):
        told = [id(one) for instance in self.instances for one in instance.backend.child.told]
        for entry, times in self.kept.items():
            assert told.count(id(entry.request)) == (times if entry.state == DONE else 0)

    @invariant()
    def an_answer_is_accepted_once_while_somebody_waits_for_it(self):
        for instance in self.instances:
            for accepted, open_still in instance.backend.child.accepted:
                assert accepted == open_still

    @invariant()
    def errors_are_not_shared(self):
        errors = [id(e.error) for e in self.made if isinstance(e.error, HeadraceError)]
        assert len(errors) == len(set(errors))

    @invariant()
    def equals_begin_in_the_order_in_which_they_came(self):
        for entry in set(self.begun):
            assert self.begun.count(entry) <= 1 + self.kept.get(entry, 0)
        first = [one for one in dict.fromkeys(self.begun) if one in self.owners]  # not of a caller
        for level in (-1, 0, 1):
            equals = [self.made.index(one) for one in first if one.priority == level]
            assert equals == sorted(equals)

    @invariant()
    def queue_bound_and_range_hold(self):
        if not hasattr(self, "scheduler"):
            return
        begun = sum(1 for entry in self.kept if entry.state == QUEUED)
        # What a backend keeps waits also where the queue is full; a newcomer takes the place of one that is shed.
        made_way = sum(1 for entry in self.kept if isinstance(entry.error, OverloadedError))
        assert self._count(QUEUED) - begun - made_way <= self.limits.queue_size
        if self.limits.queue_full != "wait":
            assert not self._count(OUTSIDE)
        if self._count(OUTSIDE):
            waiting = self._count(QUEUED) + self._count(PENDED)
            assert waiting >= self.limits.queue_size
            assert waiting == self.limits.queue_size or self.kept
        for instance in self.instances:
            for batch in instance.backend.child.seen:
                weight = len(batch)
                if all(self._weight(request) == 1 for request in batch):
                    assert instance.max is None or weight <= instance.max
                    assert weight >= instance.min

    def _weight(self, request):
        return next((e.weight for e in self.made if e.request is request), 1)

    @invariant()
    def nobody_waits_for_an_instance_that_is_not_there(self):
        if hasattr(self, "scheduler") and self.living:
            most = self.scheduler.node.max
            for entry in self.made:
                if entry.state in (QUEUED, OUTSIDE):
                    assert most is None or entry.weight <= most

    @invariant()
    def running_weight_is_within_the_range(self):
        for instance in self.instances:
            if instance.entries is not None:
                weight = sum(entry.weight for entry in instance.entries)
                limits = instance.limits
                assert weight == instance.running_weight
                assert instance.max is None or weight <= instance.max
                if limits.pad:
                    weights = [entry.weight for entry in instance.entries]
                    fillers = repeated(weights, instance, limits.batch_sizes)
                    weight += sum(instance.entries[k].weight for k in fillers)
                assert weight >= instance.min
                assert instance.max is None or weight <= instance.max
                assert not limits.batch_sizes or weight in limits.batch_sizes

    @invariant()
    def a_batch_that_ran_has_one_end(self):
        for instance in self.instances:
            assert instance.backend.child.ended == len(instance.backend.child.seen)

    @invariant()
    def nobody_waits_once_all_are_lost(self):
        if hasattr(self, "scheduler") and all(i.liveness.lost for i in self.scheduler.instances):
            assert not self._count(QUEUED)
            assert not self._count(OUTSIDE)
            assert not self._count(PENDED)
            assert all(instance.holder is None for instance in self.scheduler.instances)

    @invariant()
    def what_is_gone_stays_at_rest(self):
        for instance, batches in self.gone:
            assert instance.holder is None
            assert len(instance.backend.child.seen) == batches
        for instance in self.instances:
            known = instance in self.scheduler.instances
            old = any(instance in one for one in self.old)
            gone = any(instance is one for one, _ in self.gone)
            assert [known, old, gone].count(True) == 1

    @invariant()
    def counts_add_up(self):
        if not hasattr(self, "scheduler"):
            return
        counts = self.scheduler.statistics()
        done = [entry for entry in self.made if entry.state == DONE]
        called = self.called["ok"] + self.called["failed"]
        assert counts["submitted"] == len(self.made) + called
        assert counts["waiting"] == sum(map(self._count, (QUEUED, OUTSIDE, PENDED)))
        assert counts["ok"] == self.called["ok"] + sum(1 for e in done if e.error is None)
        failed = self.called["failed"] + sum(1 for e in done if e.error is not None)
        assert sum(counts["failed"].values()) == failed
        batches = sum(len(instance.backend.child.seen) for instance in self.instances)
        assert counts["batches"] == batches + len(self._busy())

    @invariant()
    def an_idle_node_leaves_nobody_waiting_past_the_batching_timeout(self):
        if not hasattr(self, "scheduler"):
            return
        idle = all(instance.holder is None for instance in self.scheduler.instances)
        if idle and self.living:
            for entry in self.made:
                if entry.state == QUEUED:
                    over = entry.arrival + self.limits.batching_timeout_ms / 1000
                    assert self.clock() < over
                    assert any(alarm.action for _, _, alarm in self.timer.heap)

    @invariant()
    def nothing_is_due_that_has_not_begun(self):
        if not hasattr(self, "scheduler"):
            return
        alarms = len(self.timer.heap)
        before = [entry.state for entry in self.made], len(self.begun)
        scheduling.dispatched(self.scheduler)
        assert ([entry.state for entry in self.made], len(self.begun)) == before
        assert len(self.timer.heap) == alarms

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.refuse(ClosedError(), drain=True)
        for _ in range(1000):
            busy = self._busy()
            if not busy and all(entry.state == DONE for entry in self.made):
                break
            for hand in busy:
                if hand.jobs:  # a worker may have gone on with it
                    hand.work()
            for entry in self.made:
                if entry.state == PENDED:
                    self.instances[0].backend.child.context.finish(entry.request, "last")
            self.clock.advance(0.05)
            self.timer.run_due()
        living = self.living
        assert not living or all(entry.state == DONE for entry in self.made)
        assert not living or self.scheduler.wait_quiet(0.0)
        if living:
            left = [instance for one in self.old for instance in one]
            assert set(self.scheduler.take_retired(left)) == set(left)


Model.TestCase.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
TestModel = Model.TestCase


# A batch between its cut and its start.


def one_by_hand(*, most=4, policy=Greedy, **limits):
    hand, ended = Hand(), started(Told())
    backend = ended.child
    instance = Instance(0, ended, least=1, most=most, thread=hand.thread)
    options = Greedy.Options(batch_sizes=limits.get("batch_sizes") or None)
    scheduler = Scheduler("n", [instance], policy(options), BestFit(), Limits(**limits))
    return scheduler, hand, backend


def sent(scheduler, count, first=0):
    entries = [Entry({"data": first + k}, Owner()) for k in range(count)]
    for entry in entries:
        scheduler.submit(entry)
    return entries


def test_a_batch_that_was_cut_before_a_reload_is_filled_up_as_it_was_cut():
    model = Model()
    model.start(True, [(3, 8)], 6, "wait", None, 0.0, (), True)
    entry = model.submit(1, 0, None)
    model.reload([(1, 8)], None, 0.0, (), False)
    model.finish(0)
    assert entry.error is None
    assert [len(batch) for batch in model.instances[0].backend.child.seen] == [3]


def test_an_old_instance_on_which_something_runs_is_given_up_with_the_rest():
    model = Model()
    model.start(True, [(1, 8)], 6, "wait", None, 0.0, (), False)
    entry = model.submit(1, 0, None)
    model.reload([(1, 8)], None, 0.0, (), False)
    model.close(False)
    assert entry.state == RUNNING
    assert not model.scheduler.wait_quiet(0.0)
    model.fail_what_is_open()
    assert isinstance(entry.error, ClosedError)
    assert entry.error.abandoned


def test_a_caller_does_not_put_an_old_instance_back_into_service():
    model = Model()
    model.start(False, [(1, 8)], 6, "wait", None, 0.0, (), False)
    model.call(False, True, [(1, 8)])
    model.take_retired(0)
    assert [instance for instance, _ in model.gone] == model.instances[:1]
    assert free(model.scheduler) == model.scheduler.instances


# What is kept while the node is reloaded has one outcome, and its holder is told once.


def kept_by_hand(request=None):
    """Return a model of one instance, a request that it keeps, and the context of its backend."""
    model = Model()
    model.start(False, [(1, 8)], 6, "wait", None, 0.0, (), False)
    owner = Owner()
    entry = Entry({"data": 0} if request is None else request, owner)
    model.owners[entry] = owner
    model.made.append(entry)
    model.scheduler.submit(entry)
    model.pend(0, {0})
    assert entry.state == PENDED
    return model, entry, model.instances[0].backend.child.context


def reloaded(model):
    model.reload([(1, 8)], None, 0.0, (), False)


def has_one_outcome(model, entry, error=None):
    assert entry.state == DONE
    assert entry.error is None if error is None else isinstance(entry.error, error)
    model.one_outcome()
    model.data_is_the_callers_and_results_are_there()
    model.who_keeps_a_request_is_told_of_its_end_once()
    model.nobody_answers_what_is_over(entry)
    model.teardown()
    model.one_outcome()
    model.who_keeps_a_request_is_told_of_its_end_once()


def test_a_reload_ends_what_is_kept():
    model, entry, _ = kept_by_hand()
    reloaded(model)
    has_one_outcome(model, entry, InstanceLostError)


def test_a_reload_ends_what_was_resumed_and_waits_for_an_instance():
    model, entry, context = kept_by_hand()
    busy = model.submit(8, 0, None)
    assert context.resume(entry.request)
    assert (entry.state, busy.state) == (QUEUED, RUNNING)
    reloaded(model)
    model.finish(0)
    assert busy.error is None
    has_one_outcome(model, entry, InstanceLostError)


@pytest.mark.parametrize("again", [False, True])
def test_what_was_resumed_and_runs_while_the_node_is_reloaded_ends_with_its_batch(again):
    model, entry, context = kept_by_hand()
    assert context.resume(entry.request)
    assert entry.state == RUNNING
    reloaded(model)
    if again:
        model.pend(0, {0})
    else:
        model.finish(0)
    has_one_outcome(model, entry, InstanceLostError if again else None)


def test_what_is_answered_while_the_node_is_reloaded_has_that_answer():
    class Slow(dict):
        """Lets the node be reloaded while the answer is written."""

        def __setitem__(self, key, value):
            if key == "result":
                reloaded(model)
            super().__setitem__(key, value)

    model, entry, context = kept_by_hand(Slow(data=0))
    assert context.finish(entry.request, 0)
    assert len(model.instances) == 2
    has_one_outcome(model, entry)


def test_an_answer_that_was_accepted_in_a_batch_of_an_old_instance_is_the_outcome():
    model, entry, context = kept_by_hand()
    assert context.resume(entry.request)
    model.pend_while_it_is_reloaded(0, [(1, 8)], "early")
    has_one_outcome(model, entry)


def test_what_was_to_be_resumed_after_the_last_batch_of_an_old_instance_has_ended():
    model, entry, context = kept_by_hand()
    assert context.resume(entry.request)
    model.pend_while_it_is_reloaded(0, [(1, 8)], "again")
    has_one_outcome(model, entry, InstanceLostError)


def test_a_caller_has_the_answer_that_was_accepted_while_it_ran_an_old_instance():
    model = Model()
    model.start(False, [(1, 8)], 6, "wait", None, 0.0, (), False)
    model.call("early", True, [(1, 8)])
    assert model.called == {"ok": 1, "failed": 0}
    assert len(model.instances[0].backend.child.told) == 1
    model.take_retired(0)
    assert free(model.scheduler) == model.scheduler.instances == model.instances[1:]
    model.teardown()


def test_who_is_kept_makes_way_for_a_newcomer_where_the_queue_is_full():
    model = Model()
    model.start(True, [(1, 1), (1, 8)], 1, "shed_oldest", None, 0.0, (), False)
    kept, busy, waits = (model.submit(weight, 0, None) for weight in (1, 8, 2))
    model.pend(0, {0})
    assert [kept.state, busy.state, waits.state] == [PENDED, RUNNING, QUEUED]
    newcomer = model.submit(2, 0, None)
    assert [waits.state, newcomer.state] == [QUEUED, QUEUED]
    model.queue_bound_and_range_hold()
    has_one_outcome(model, kept, OverloadedError)
    assert [busy.error, waits.error, newcomer.error] == [None, None, None]


def test_an_answer_to_who_has_given_up_is_refused_and_another_of_its_batch_has_its_own():
    model = Model()
    model.start(True, [(1, 8)], 6, "wait", None, 0.0, (1, 4), True)
    model.submit(1, 0, None)
    gone, stays = model.submit(2, 0, None), model.submit(1, 0, None)
    model.finish(0)
    model.abandon(gone)
    model.pend_while_it_is_reloaded(0, [(1, 8)], "early")
    backend = model.instances[0].backend.child
    assert [len(batch) for batch in backend.seen] == [1, 3]  # with a copy that fills it up
    refused = (False, False)
    assert backend.accepted == [refused, refused, (True, True), refused]
    has_one_outcome(model, stays)


# A thread that owns its instance goes on with what waits.


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_thread_that_owns_its_instance_goes_on_unless_it_was_asked_for_something_else(
    most, wanted
):
    scheduler, hand, backend = one_by_hand(most=most)
    hand.wanted = wanted
    entries = sent(scheduler, 1 + 2 * most)
    jobs = 0
    while hand.jobs:
        jobs += 1
        hand.work()
    assert jobs == (len(backend.seen) if wanted else 1)
    assert [entry.error for entry in entries] == [None] * len(entries)


def test_a_thread_has_more_to_do_once_it_was_given_more_than_it_does_now(until):
    thread, begun, ends = OwnThread("owner"), threading.Event(), threading.Event()
    thread.start()
    thread.post(lambda: (begun.set(), ends.wait(30)))
    assert begun.wait(30)
    assert not thread.wanted
    thread.post(lambda: None)
    assert thread.wanted
    ends.set()
    until(lambda: not thread.wanted)
    thread.stop()


# Who may run once others have left the queue.


class InOrder(DispatchPolicy):
    """Chooses the one of the least index."""

    def choose(self, weight, free):
        return min(free, key=lambda instance: instance.index)


class RaisesOnce(Greedy):
    """Raises when it is first asked about an instance of more than one."""

    raised = False

    def cut(self, queue, instance, now):
        if instance.max > 1 and not self.raised:
            self.raised = True
            raise ValueError("told to")
        return super().cut(queue, instance, now)


def several_by_hand(*ranges, batches=None, dispatches=None, **limits):
    clock, hands = FakeClock(100.0), [Hand() for _ in ranges]
    instances = [
        Instance(index, started(Told()), least=least, most=most, thread=hands[index].thread)
        for index, (least, most) in enumerate(ranges)
    ]
    scheduler = Scheduler(
        "n",
        instances,
        batches or Greedy(Greedy.Options()),
        dispatches or BestFit(),
        Limits(**limits),
        clock=clock,
        timer=HandTimer(clock),
    )
    return scheduler, hands, clock


def with_weights(scheduler, *weights, **more):
    entries = [
        Entry({"data": n}, Owner(), weight=weight, **more) for n, weight in enumerate(weights)
    ]
    for entry in entries:
        scheduler.submit(entry)
    return entries


@pytest.mark.parametrize(
    ("cause", "least", "error"),
    [
        ("too little", 3, BatchRangeError),
        ("late", 2, DeadlineExceededError),
        ("lost", 2, InstanceLostError),
        ("raises", 2, ContractError),
    ],
)
def test_an_instance_that_was_passed_by_is_asked_again_when_the_head_has_failed(
    cause, least, error
):
    policy = (RaisesOnce if cause == "raises" else Greedy)(Greedy.Options())
    scheduler, hands, clock = several_by_hand(
        (1, 1), (least, 8), batches=policy, dispatches=InOrder(), queue_size=1, queue_full="wait"
    )
    small, large = scheduler.instances
    policy.raised = True
    with_weights(scheduler, 1, 8)
    (head,) = with_weights(scheduler, 2, deadline=101.0 if cause == "late" else None)
    (behind,) = with_weights(scheduler, 1)
    assert [head.state, behind.state] == [QUEUED, OUTSIDE]

    hands[0].work()  # the small one is free now, and the head is too much for it
    assert (head.state, small.holder) == (QUEUED, None)
    if cause == "late":
        clock.advance(2.0)
    elif cause == "lost":
        large.backend.child.plan = "lost"
    elif cause == "raises":
        policy.raised = False
    hands[1].work()
    assert isinstance(head.error, error)
    assert behind.state == RUNNING
    hands[0].work()
    assert behind.request["result"] == 0
    assert behind.error is None


def test_who_stands_behind_a_request_that_makes_way_at_another_node_moves_up():
    scheduler, hands, _ = several_by_hand((1, 1), (2, 8))
    with_weights(scheduler, 1, 8)
    home = NodeQuota((), lambda: None)
    quota = RequestQuota(home, entered=True)
    first = Entry({"data": 2}, Owner(), weight=2)
    first.quota = quota
    scheduler.submit(first)
    (second,) = with_weights(scheduler, 1)
    hands[0].work()
    assert [first.state, second.state] == [QUEUED, QUEUED]
    entry, evict = home.shed(0)
    evict(entry, ContractError("told to"))
    assert [first.state, second.state] == [DONE, RUNNING]


def test_room_that_another_thread_makes_while_a_request_is_left_outside_is_seen():
    """One thread submits; another takes the last request from the quota and finds nobody outside."""
    scheduler, hand, _ = one_by_hand(queue_size=1)
    elsewhere, quota, node = Entry({"data": 0}), scheduler.new_quota(), scheduler.node
    quota.began(elsewhere, lambda entry, error: None)
    shows, meanwhile = type(node).bounded.fget, []

    class Meanwhile(type(node)):
        @property
        def bounded(self):
            found = shows(self)
            if not meanwhile:
                assert not node.outside
                meanwhile.append(quota.ended(elsewhere))
            return found

    node.__class__ = Meanwhile
    (entry,) = sent(scheduler, 1)
    node.__class__ = Meanwhile.__mro__[1]
    hand.work()
    assert entry.error is None
    assert entry.state == DONE
    assert meanwhile


def test_whom_no_new_instance_takes_is_notified_once_the_exchange_is_over():
    scheduler, _, _ = several_by_hand((1, 8))
    (running,) = with_weights(scheduler, 8)
    (heavy,) = with_weights(scheduler, 8)
    in_service = []
    heavy.owner.finished = lambda entry: in_service.extend(scheduler.instances)
    new, _, _ = several_by_hand((1, 4))
    scheduler.exchange(new, Signal(), keeps_policies=True)
    assert [running.state, heavy.state] == [RUNNING, DONE]
    assert isinstance(heavy.error, BatchRangeError)
    assert in_service == new.instances


def test_who_waits_for_room_is_let_in_when_a_caller_withdraws_what_waited():
    scheduler, _, _ = one_by_hand(most=1, queue_size=1)
    entries = sent(scheduler, 3)
    assert [entry.state for entry in entries] == [RUNNING, QUEUED, OUTSIDE]
    assert scheduling.interrupted(scheduler, entries[1:2]) is False
    assert [entry.state for entry in entries] == [RUNNING, DONE, QUEUED]


@pytest.mark.parametrize("error", [ValueError("says nothing of it"), BackendError("not abandoned")])
def test_a_request_that_failed_is_the_callers_again_unless_its_error_says_that_a_backend_runs(
    error,
):
    entry = Entry({"data": "given"})
    entry.request.update(data="changed", result=1)
    entry.error = error
    entry.give_back()
    assert entry.request == {"data": "given"}
    entry.request.update(data="changed", result=1)
    entry.error = BackendError("abandoned", abandoned=True)
    entry.give_back()
    assert entry.request == {"data": "changed", "result": 1}


def test_the_oldest_runs_what_waits_once_it_is_woken_to_look_for_a_free_instance_itself():
    """A caller whose time for batches of others is over leaves a swift instance free for it."""
    scheduler, _, _ = several_by_hand((1, 1))
    (instance,) = scheduler.instances
    instance.thread, instance.mean_s = None, INLINE_BELOW_S / 2
    node = scheduler.node
    leader, oldest = Waiter(1, node), Waiter(2, node)
    oldest.pending, oldest.parked = 1, True
    leader.foreign_until = 0.0
    entry = Entry({"data": 1}, oldest)
    entry.arrival = node.clock()
    node.queue.push(entry)
    assert scheduling.dispatched(scheduler, leader)[0] is None
    assert (oldest.nudged, oldest.parked, instance.holder) == (True, False, None)
    work, _ = scheduling.dispatched(scheduler, oldest)
    assert work == (instance, [entry])
    assert instance.holder is oldest
