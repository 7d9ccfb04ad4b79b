"""A model of schedulers over processes, driven by hand: the transport is a fake, no process is started.

Whatever a process does with a batch, in any order with what callers do: it answers, answers twice, answers late,
answers after its requests were given up, never gets the batch, hangs, dies of an item or of anything else, also while nothing runs. Every
request has exactly one outcome, none is run more often than it may be, the dict of one that was given up
is left alone, counts add up, and no process is started more often than ``restart_limit`` says.
"""

from __future__ import annotations

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
from internals.processes import clock_of_exchanges, processes_of
from internals.scheduling import (
    DONE,
    NOBODY,
    OUTSIDE,
    QUEUED,
    RUNNING,
    Entry,
    Hand,
    HandTimer,
    Limits,
    Owner,
    Scheduler,
    Still,
    started,
)

from headrace import Backend
from headrace.errors import (
    BackendError,
    ClosedError,
    ContractError,
    DeadlineExceededError,
    HeadraceError,
    InstanceLostError,
)
from headrace.policies import BestFit, Greedy
from headrace_testing import FakeClock


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    with scheduling.no_main_thread():
        yield


class Far(Backend):
    """What stands inside: it writes what came, and fails what is bad."""

    max = None

    def forward(self, batch):
        outcomes = []
        for request in batch:
            kind, _ = request["data"]
            outcomes.append(ValueError("bad") if kind == "bad" else None)
            if kind != "bad":
                request["result"] = request["data"]
        return outcomes


KINDS = st.sampled_from(["good"] * 6 + ["bad", "poison"])
MOVES = st.lists(
    st.sampled_from(
        [
            *[("late", seconds) for seconds in (0.001, 0.02, 0.04, 0.2)],
            ("hang", None),
            ("lost", None),
            ("twice", None),
            ("die", None),
            ("meanwhile", lambda model: model.submit("good", None)),
            ("meanwhile", lambda model: model.submit("poison", 0.01)),
            ("meanwhile", lambda model: model.abandon_one()),
            ("meanwhile", lambda model: model.give_up()),
        ]
    ),
    max_size=3,
)


class Model(RuleBasedStateMachine):
    """A scheduler over processes that runners and callers exchange batches with.

    Attributes:
        made: Every entry that was submitted; its number is its place.
        runs: How often each number was sent to a process that began with it.
        killed, killed_alone: The numbers in whose batch a process has died, and in a batch of one.
        over: The numbers that had their outcome already when they were sent.
        called: What has become of requests that their caller ran.
        script: What the next exchange does.
    """

    entries = Bundle("entries")

    def __init__(self):
        super().__init__()
        self.made, self.owners, self.hands = [], {}, []
        self.runs, self.killed, self.killed_alone = {}, set(), set()
        self.called = {"ok": 0, "failed": 0}
        self.number, self.script, self.closed = 0, [], False
        self.numbers, self.over = {}, set()

    @initialize(
        count=st.integers(1, 3),
        limit=st.sampled_from([0, 1, 3]),
        rerun=st.booleans(),
        kill_after_ms=st.sampled_from([None, 0.0, 20.0]),
        timeout_ms=st.sampled_from([None, None, 50.0]),
    )
    def start(self, count, limit, rerun, kill_after_ms, timeout_ms):
        self.clock = FakeClock(100.0)
        self.timer = HandTimer(self.clock)
        self.limit, self.rerun, self.far = limit, rerun, started(Far())
        self.far.lost = False
        clock_of_exchanges(self.clock)
        self.processes = processes_of(self, count, limit, rerun, kill_after_ms)
        self.hands = [Hand() for _ in self.processes]
        instances = [Still(p._index, p, least=1, most=4) for p in self.processes]
        self.scheduler = Scheduler(
            "model",
            instances,
            Greedy(Greedy.Options()),
            BestFit(),
            Limits(queue_size=1000, timeout_ms=timeout_ms),
            clock=self.clock,
            timer=self.timer,
        )
        scheduling.workers_by_hand(self.scheduler, self._post)

    def _post(self, instance, run):
        assert not instance.liveness.parts_away, "a batch for one that is away"
        self.hands[instance.index].put(run)

    def let_pass(self, seconds):
        """Let time pass; what is due meanwhile happens when it is due."""
        until = self.clock() + seconds
        while self.timer.heap and self.timer.heap[0][0] <= until:
            self.clock.advance(max(self.timer.heap[0][0] - self.clock(), 0.0) + 1e-9)
            self.timer.run_due()
        self.clock.advance(max(until - self.clock(), 0.0))

    def died(self, numbers):
        self.killed.update(numbers)
        if len(numbers) == 1:
            self.killed_alone.update(numbers)

    # What callers do.

    @rule(target=entries, kind=KINDS, after=st.sampled_from([None, None, 0.005, 0.03]))
    def submit(self, kind, after):
        deadline = None if after is None else self.clock() + after
        entry = Entry({"data": (kind, self._next())}, Owner(), deadline=deadline)
        self.owners[entry] = entry.owner
        self.numbers[entry] = self.number - 1
        self.made.append(entry)
        self.scheduler.submit(entry)
        return entry

    def _next(self):
        self.number += 1
        return self.number - 1

    @rule(kinds=st.lists(KINDS, min_size=2, max_size=6))
    def submit_many(self, kinds):
        for kind in kinds:
            self.submit(kind, None)

    @precondition(lambda self: self._may_call())
    @rule(kind=KINDS, script=MOVES)
    def call(self, kind, script):
        """A caller that finds an instance free exchanges its own request."""
        data = kind, self._next()
        request = {"data": data}
        self.script = script
        before = len(self.killed_alone)
        try:
            self.scheduler.call(request)
        except HeadraceError:
            assert kind != "good" or len(self.killed_alone) > before or self.closed
            assert request == {"data": data}
            self.called["failed"] += 1
        else:
            assert request == {"data": data, "result": data}
            self.called["ok"] += 1
        self.script = []
        if self.rerun:
            assert self.runs.get(data[1], 0) <= 2

    def _may_call(self):
        return scheduling.free(self.scheduler) and scheduling.short_cut_max(self.scheduler)

    @rule(entry=entries)
    def cancel(self, entry):
        if self.scheduler.cancel(entry):
            self.owners[entry].notified += 1  # who cancels knows
            entry.error = "cancelled"

    @rule(entry=entries)
    def abandon(self, entry):
        self._abandon(entry)

    def abandon_one(self):
        """Give up the oldest request that runs; since there is a copy, its dict is free at once."""
        for entry in self.made:
            if entry.state == RUNNING and entry.lent is not None:
                assert self._abandon(entry) is False
                break

    def _abandon(self, entry):
        runs = entry.state == RUNNING
        found = self.scheduler.abandon(entry)
        if runs:
            self.owners[entry].notified += 1
            entry.error = "cancelled"
        return found

    # What processes do.

    def _busy(self):
        return [hand for hand in self.hands if hand.jobs]

    @precondition(lambda self: self._busy())
    @rule(index=st.integers(0, 5), script=MOVES)
    def exchange(self, index, script):
        busy = self._busy()
        self.script = script
        busy[index % len(busy)].work()
        self.script = []

    @rule(index=st.integers(0, 5))
    def die_at_rest(self, index):
        """A process dies while nothing runs there, or a batch that was cut has not begun."""
        child = self.processes[index % len(self.processes)].supervisor.current
        if child is not None:
            child.kill()

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.05, 0.3, 30.0, 61.0]))
    def pass_time(self, seconds):
        self.let_pass(seconds)

    # What those who run the pipeline do.

    @precondition(lambda self: len(self.made) > 12)
    @rule(drain=st.booleans())
    def close(self, drain):
        self.closed = True
        self.scheduler.refuse(ClosedError(), drain=drain)

    @precondition(lambda self: self.closed)
    @rule()
    def fail_what_is_open(self):
        self.give_up()

    def give_up(self):
        """Close at once; who runs is left behind, and what he waits for is killed."""
        self.closed = True
        self.scheduler.refuse(ClosedError(), drain=False)
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
    def a_request_that_has_its_outcome_is_left_alone(self):
        for entry in self.made:
            if entry.state == DONE:
                data = entry.request["data"]
                assert data[1] == self.numbers[entry]
                given = {"data": data, "result": data} if entry.error is None else {"data": data}
                if entry.error != "cancelled" and not getattr(entry.error, "abandoned", False):
                    assert entry.request == given
                if self.numbers[entry] in self.runs.keys() - self.over:
                    # It had no outcome when it was sent: there is a copy, whatever comes of it.
                    assert not getattr(entry.error, "abandoned", False)
                if data[0] == "bad" and isinstance(entry.error, BackendError):
                    assert isinstance(entry.error.__cause__, ValueError) or isinstance(
                        entry.error, InstanceLostError
                    )

    @invariant()
    def nothing_is_run_more_often_than_it_may_be(self):
        assert all(count <= (2 if self.rerun else 1) for count in self.runs.values())

    @invariant()
    def only_the_culprit_fails(self):
        if not hasattr(self, "scheduler"):
            return
        culprits = self.killed_alone if self.rerun else self.killed
        for entry in self.made:
            if isinstance(entry.error, InstanceLostError):
                assert self.numbers[entry] in culprits or any(
                    one.supervisor.over for one in self.processes
                )

    @invariant()
    def no_process_is_started_more_often_than_it_may_be(self):
        for process in getattr(self, "processes", ()):
            starts = process.supervisor.starts
            for first in starts:
                assert sum(1 for at in starts if first <= at < first + 59.9) <= self.limit

    @invariant()
    def counts_add_up(self):
        if not hasattr(self, "scheduler"):
            return
        counts = self.scheduler.statistics()
        done = [entry for entry in self.made if entry.state == DONE]
        called = self.called["ok"] + self.called["failed"]
        assert counts["submitted"] == len(self.made) + called
        assert counts["waiting"] == self._count(QUEUED) + self._count(OUTSIDE)
        assert counts["ok"] == self.called["ok"] + sum(1 for e in done if e.error is None)
        failed = self.called["failed"] + sum(1 for e in done if e.error is not None)
        assert sum(counts["failed"].values()) == failed
        for instance, process in zip(counts["instances"], self.processes, strict=True):
            assert instance["alive"] or process.supervisor.over

    @invariant()
    def who_has_no_process_is_away_until_it_has_one(self):
        for process in getattr(self, "processes", ()):
            supervisor, liveness = process.supervisor, process._liveness
            if not supervisor._closing:
                assert (supervisor in liveness.parts_away) is (not supervisor.lives)
                assert liveness.lost is (supervisor._failure is not None)

    @invariant()
    def who_is_free_and_there_leaves_nobody_waiting(self):
        if not hasattr(self, "scheduler"):
            return
        there = [
            one
            for one in self.scheduler.instances
            if one.holder is None and one.living and not one.liveness.parts_away
        ]
        assert not there or not self._count(QUEUED)

    @invariant()
    def nobody_waits_once_all_are_lost(self):
        if not hasattr(self, "scheduler"):
            return
        # What was cut before the loss and has not begun finds it out.
        if all(i.liveness.lost and i.holder is None for i in self.scheduler.instances):
            assert not self._count(QUEUED)

    def teardown(self):
        if not hasattr(self, "scheduler"):
            return
        try:
            self.scheduler.refuse(ClosedError(), drain=True)
            for _ in range(1000):
                if not self._busy() and all(entry.state == DONE for entry in self.made):
                    break
                for hand in self._busy():
                    hand.work()
                self.let_pass(0.05)
            assert all(entry.state == DONE for entry in self.made)
            assert all(not process.exchanging.locked() for process in self.processes)
            self.one_outcome()
            self.counts_add_up()
        finally:
            clock_of_exchanges(None)


Model.TestCase.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, report_multiple_bugs=False
)
TestModel = Model.TestCase


# Single cases.


def run_by_hand(limit=3, *, rerun=False, count=1):
    model = Model()
    model.start(count, limit, rerun, None, None)
    return model


def test_who_has_run_once_more_may_leave_while_a_later_item_waits_for_a_process():
    model = Model()
    model.start(count=2, limit=1, rerun=True, kill_after_ms=None, timeout_ms=50.0)
    model.submit_many(["good", "good", "good", "poison", "good"])
    model.exchange(0, [])
    ended = next(
        entry for entry in model.made if model.numbers[entry] == 2
    )  # its batch died of the poison
    assert isinstance(ended.error, DeadlineExceededError)
    assert ended.error.abandoned is False
    assert ended.request == {"data": ("good", 2)}
    model.a_request_that_has_its_outcome_is_left_alone()
    model.teardown()


def test_each_item_runs_once_more_and_keeps_its_own_outcome():
    model = run_by_hand(rerun=True, count=2)
    first = model.submit("good", None)
    others = [model.submit(kind, None) for kind in ("good", "bad", "poison", "good")]
    for _ in range(3):
        if model._busy():
            model.exchange(0, [])
    assert first.error is None
    good, bad, poison, last = [entry.error for entry in others]
    assert good is last is None
    assert isinstance(bad.__cause__, ValueError)
    assert isinstance(poison, InstanceLostError)
    model.teardown()


def test_a_call_by_who_waits_for_another_process_already_is_refused():
    model, found = run_by_hand(rerun=True, count=2), []

    def interrupted(model):
        """What a signal handler does in the thread that runs the item once more."""
        try:
            model.scheduler.call({"data": ("good", model._next())})
        except HeadraceError as error:
            found.append(error)
            model.called["failed"] += 1

    def then(model):
        model.script = [("meanwhile", interrupted)]

    request = {"data": ("good", model._next())}
    model.script = [("meanwhile", then), ("die", None)]
    model.scheduler.call(request)
    model.called["ok"] += 1
    assert request["result"] == request["data"]
    (error,) = found
    assert isinstance(error, ContractError)
    assert "signal handler" in str(error)
    model.teardown()
