"""Conditions: what they say now, when that may change, and batches cut by nothing else."""

from __future__ import annotations

import threading

import pytest
from flow_helpers import PlainQueue, instance
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

import headrace
from headrace.errors import BatchRangeError, ConfigError, ContractError, SetupError
from headrace.policies import Cut, Greedy
from headrace_flow.conditions import (
    Condition,
    ConditionPolicy,
    Count,
    Enough,
    FreeInstances,
    Idle,
    Verdict,
    Waited,
    Weight,
    When,
)
from headrace_testing import PolicyConformance, PolicyQueue, Sent

WAIT_S = 60


def queue_of(*sent, **more):
    queue = PolicyQueue(Greedy(), sent)
    vars(queue).update(more)
    return queue


def line(*weights, at=0.0, **more):
    return queue_of(*(Sent(at, {"request_size": weight}) for weight in weights), **more)


# One at a time.


@pytest.mark.parametrize(
    ("condition", "queue", "now", "expected"),
    [
        (Waited(ms=250), line(1, at=1.0), 1.125, Verdict(False, 1.25)),
        (Waited(ms=0), line(1, at=1.0), 1.0, Verdict(True)),
        (When(lambda queue, instance, now: now > 3), line(1), 4.0, Verdict(True)),
        (When(lambda queue, instance, now: Verdict(False, 5.0)), line(1), 4.0, Verdict(False, 5.0)),
        (~Waited(ms=250), line(1), 0.0, Verdict(True, 0.25)),
        (Count(2) & Waited(ms=250), line(1), 0.0, Verdict(False)),
        (Count(1) & Waited(ms=250), line(1), 0.0, Verdict(False, 0.25)),
        (Waited(ms=125) & Waited(ms=250), line(1), 0.0, Verdict(False, 0.25)),
        (Waited(ms=125) | Waited(ms=250), line(1), 0.0, Verdict(False, 0.125)),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],  # the same in every process
)
def test_what_a_condition_says(condition, queue, now, expected):
    assert condition.verdict(queue, instance(least=2), now) == expected


def test_the_oldest_counts_though_a_higher_priority_stands_before_it():
    queue = queue_of(Sent(2.0, {}, 1), Sent(1.0, {}))
    assert Waited(ms=250).verdict(queue, instance(), 1.125) == Verdict(False, 1.25)


def test_a_queue_that_tells_nothing_is_idle_and_one_instance_is_free():
    queue = PlainQueue(queue_of(Sent(1.0, {})).items)
    for condition in (Idle(), FreeInstances(1), ~FreeInstances(2), Waited(ms=0)):
        assert condition.verdict(queue, instance(), 1.0).due


@pytest.mark.parametrize(
    "make",
    [
        *(lambda: Count(0), lambda: Count(2.0), lambda: Count(True), lambda: Weight(-1)),
        *(lambda: FreeInstances(0), lambda: Waited(ms=-1), lambda: Waited("5")),
        *(lambda: Waited(ms=float("nan")), lambda: Waited(ms=float("inf"))),
    ],
)
def test_values_that_mean_nothing_are_refused(make):
    with pytest.raises(ValueError, match="at least"):
        make()


def test_what_is_no_condition_cannot_be_combined():
    with pytest.raises(TypeError):
        Count(2) | 3
    with pytest.raises(TypeError):
        Count(2) & (lambda *_: True)
    with pytest.raises(TypeError, match="When takes a function"):
        When(3)
    for wrong in (lambda: Count(2) or Idle(), lambda: Count(2) and Idle(), lambda: not Count(2)):
        with pytest.raises(TypeError, match=r"combined with \| & ~"):
            wrong()
    with pytest.raises(TypeError, match="Condition has no verdict"):
        Condition().verdict(line(1), instance(), 0.0)


def test_a_condition_shows_what_it_is():
    assert repr(Count(8) | Waited(ms=5) & ~Idle()) == "(Count(n=8) | (Waited(ms=5) & ~Idle()))"


# Any of them: against an evaluation of its own, in eighths of a second.


def leaves():
    return st.one_of(
        st.tuples(st.just("count"), st.integers(1, 4)),
        st.tuples(st.just("weight"), st.integers(1, 8)),
        st.tuples(st.just("waited"), st.integers(0, 6)),
        st.tuples(st.just("free"), st.integers(1, 3)),
        st.tuples(st.just("idle"), st.none()),
        st.tuples(st.just("enough"), st.none()),
    )


TREES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("or"), inner, inner),
        st.tuples(st.just("and"), inner, inner),
    ),
    max_leaves=6,
)


def built(tree):
    """Make the condition that a tree describes."""
    kind, *rest = tree
    if kind == "not":
        return ~built(rest[0])
    if kind in ("or", "and"):
        left, right = map(built, rest)
        return left | right if kind == "or" else left & right
    (value,) = rest
    return {
        "count": lambda: Count(value),
        "weight": lambda: Weight(value),
        "waited": lambda: Waited(ms=125 * value),
        "free": lambda: FreeInstances(value),
        "idle": Idle,
        "enough": Enough,
    }[kind]()


def holds(tree, state, at):
    """Evaluate a tree at a time, in eighths, all else unchanged."""
    kind, *rest = tree
    if kind == "not":
        return not holds(rest[0], state, at)
    if kind == "or":
        return holds(rest[0], state, at) or holds(rest[1], state, at)
    if kind == "and":
        return holds(rest[0], state, at) and holds(rest[1], state, at)
    (value,) = rest
    arrivals, weights, running, free, least = state
    return {
        "count": lambda: len(arrivals) >= value,
        "weight": lambda: sum(weights) >= value,
        "waited": lambda: at - min(arrivals) >= value,
        "free": lambda: free >= value,
        "idle": lambda: running == 0,
        "enough": lambda: sum(weights) >= least,
    }[kind]()


@settings(deadline=None)
@given(
    tree=TREES,
    items=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 3)), min_size=1, max_size=5),
    running=st.integers(0, 2),
    free=st.integers(1, 3),
    least=st.integers(1, 4),
    later=st.integers(0, 8),
)
def test_no_verdict_ends_late_and_none_loops(tree, items, running, free, least, later):
    arrivals, weights = [a for a, _ in items], [w for _, w in items]
    state = (arrivals, weights, running, free, least)
    sent = [Sent(a / 8, {"request_size": w}) for a, w in items]
    queue = queue_of(*sent, running=running, free=free)
    at, asked = max(arrivals) + later, 0
    end = at + 20  # nothing changes by time alone after that
    while True:
        said = built(tree).verdict(queue, instance(least=least), at / 8)
        assert said.due == holds(tree, state, at)
        until = end if said.until is None else said.until * 8
        assert until > at
        for between in range(at, int(until)):
            assert holds(tree, state, between) == said.due
        asked += 1
        if said.until is None:
            break
        assert until == int(until)
        at = int(until)
    assert asked <= 7


# The policy.


class Never(ConditionPolicy):
    condition = ~(Count(1))


@pytest.mark.parametrize(
    ("why", "queue", "instance", "expected"),
    [
        ("not due", line(1, 1), instance(), Cut(0)),
        ("full", line(1, 1, 1, 1), instance(), Cut(4)),
        ("more than full", line(*[1] * 9), instance(), Cut(4)),
        ("the next does not fit", line(3, 2), instance(), Cut(1)),
        ("the head fits no batch here", line(5, 1), instance(), Cut(0)),
        ("unbounded is never full", line(*[1] * 90), instance(most=None), Cut(0)),
        ("no more may come", line(1, 1, open=False), instance(), Cut(2)),
    ],
)
def test_a_batch_is_cut_when_it_is_full_or_no_more_may_come(why, queue, instance, expected):
    assert Never().cut(queue, instance, 0.0) == expected, why


def test_a_batch_that_is_due_is_the_longest_that_fits_and_the_sizes_are_kept():
    class Always(ConditionPolicy):
        condition = Count(1)

        class Options(headrace.Options):
            """No word of sizes."""

            mine: int = 3

    def cut(count, **options):
        return Always(Always.Options(**options)).cut(line(*[1] * count), instance(most=8), 0.0).take

    assert Always().options.mine == 3
    assert [cut(n) for n in (1, 3, 8, 9)] == [1, 3, 8, 8]
    assert [cut(n, batch_sizes=(1, 4)) for n in (1, 3, 5, 9)] == [1, 1, 4, 4]
    assert [cut(n, batch_sizes=(1, 4), pad=True) for n in (1, 3, 5, 9)] == [1, 3, 4, 4]


def test_a_policy_without_a_condition_says_so():
    with pytest.raises(TypeError, match=r"ConditionPolicy.condition is None and no Condition"):
        ConditionPolicy()

    class Wrong(ConditionPolicy):
        def make_condition(self, options):
            return options

    headrace.register("Wrong", Wrong, replace=True)
    with pytest.raises(SetupError, match="the policy Wrong could not be made: TypeError"):
        headrace.pipe({"backend": "Identity", "batch_policy": "Wrong"})


class Patient(ConditionPolicy):
    condition = Count(3) | Waited(ms=700) & ~Idle()


class TestPatient(PolicyConformance):
    policy = Patient


# In a pipeline.


class Tunable(ConditionPolicy):
    """Two by two, or after a while."""

    class Options(headrace.Options):
        positional = ("least",)
        least: int = Field(2, ge=1)
        wait_ms: float = Field(60_000, ge=0)

    def make_condition(self, options):
        return Count(options.least) | Waited(ms=options.wait_ms)


@pytest.fixture
def batches():
    """Register the policies, and the backend ``Noting``; give the batches that it has run."""
    ran = []

    class Noting(headrace.Backend):
        max = None

        def forward(self, batch):
            ran.append([request["data"] for request in batch])
            for request in batch:
                if isinstance(request["data"], Held):
                    request["data"].begun.set()
                    assert request["data"].goes_on.wait(WAIT_S)
                request["result"] = request["data"]

    headrace.register("Noting", Noting, replace=True)
    headrace.register("Tunable", Tunable, replace=True)
    headrace.register("Never", Never, replace=True)
    return ran


class Held:
    """What holds the instance that runs it until the test lets it go on."""

    def __init__(self):
        self.begun, self.goes_on = threading.Event(), threading.Event()


def test_the_options_are_args_or_keys_of_the_node(batches):
    with headrace.pipe({"backend": "Noting", "max": 8, "batch_policy": "Tunable(3)"}) as pipe:
        for future in pipe.submit([{"data": k} for k in range(3)]):
            future.result(60)
        assert list(map(len, batches)) == [3]
    config = {"backend": "Noting", "max": 8, "batch_policy": "Tunable", "least": 1}
    with headrace.pipe(config) as pipe:
        pipe({"data": "alone"})
    with headrace.pipe({**config, "least": 9, "wait_ms": 1}) as pipe:
        pipe({"data": "waits a millisecond"})
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        headrace.PipelineConfig.load({**config, "least": 0})


def test_the_node_s_sizes_hold_though_the_options_of_the_policy_name_none(batches):
    config = {"backend": "Noting", "batch_sizes": [1, 2], "batch_policy": "Tunable(3)"}
    with headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": k} for k in range(3)])
        futures[0].result(60)
        pipe.close()
    assert all(future.result(0) for future in futures)
    assert sorted(map(len, batches)) == [1, 2]


def test_close_runs_what_a_condition_would_keep(batches):
    pipe = headrace.pipe({"backend": "Noting", "max": 8, "batch_policy": "Never"})
    futures = pipe.submit([{"data": k} for k in range(3)])
    assert pipe.stats()["nodes"]["main"]["waiting"] == 3
    pipe.close()
    assert [future.result(0)["result"] for future in futures] == [0, 1, 2]


def test_a_full_queue_runs_what_a_condition_would_keep(batches):
    config = {"backend": "Noting", "max": 8, "batch_policy": "Never", "queue_size": 3}
    with headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": k} for k in range(7)])
        assert [future.result(60)["result"] for future in futures[:6]] == [0, 1, 2, 3, 4, 5]
        assert not futures[6].done()


def test_a_function_sees_what_waits(batches):
    class Urgent(ConditionPolicy):
        condition = When(lambda queue, instance, now: queue[0].priority > 0)

    headrace.register("Urgent", Urgent, replace=True)
    with headrace.pipe({"backend": "Noting", "max": 8, "batch_policy": "Urgent"}) as pipe:
        slow = pipe.submit({"data": "slow"})
        assert pipe.stats()["nodes"]["main"]["waiting"] == 1
        pipe({"data": "urgent"}, priority=1)
        assert slow.result(60)
    assert batches == [["urgent", "slow"]]


def test_a_function_that_raises_fails_what_waits_and_nobody_hangs(batches):
    class Raises(ConditionPolicy):
        condition = Count(2) | When(lambda queue, instance, now: 1 / 0)

    headrace.register("RaisesHere", Raises, replace=True)
    with headrace.pipe({"backend": "Noting", "max": 8, "batch_policy": "RaisesHere"}) as pipe:
        with pytest.raises(ContractError, match=r"the policy .* raised ZeroDivisionError"):
            pipe({"data": 1})
        for future in pipe.submit([{"data": 2}, {"data": 3}]):
            future.exception(60)


def test_free_instances_are_those_of_the_node(batches):
    class Two(ConditionPolicy):
        condition = FreeInstances(2)

    headrace.register("Two", Two, replace=True)
    config = {"backend": "Noting", "max": 8, "instance_num": 2, "batch_policy": "Two"}
    with headrace.pipe(config) as pipe:
        held = Held()
        first = pipe.submit({"data": held})
        assert held.begun.wait(WAIT_S)
        second = pipe.submit({"data": "one is free"})
        assert pipe.stats()["nodes"]["main"]["waiting"] == 1
        held.goes_on.set()
        first.result(WAIT_S)
        second.result(WAIT_S)
    assert batches == [[held], ["one is free"]]


def test_what_is_due_below_min_is_refused_or_filled_up(batches):
    config = {"backend": "Noting", "min": 2, "max": 4, "batch_policy": "Tunable(1)"}
    with headrace.pipe(config) as pipe, pytest.raises(BatchRangeError, match="min of 2"):
        pipe({"data": 1})
    with headrace.pipe({**config, "pad": True}) as pipe:
        assert pipe({"data": 1})["result"] == 1


def test_a_policy_with_a_condition_lets_other_bases_see_how_it_was_written():
    class Tagged:
        def __init_subclass__(cls, *, tag, **more):
            super().__init_subclass__(**more)
            cls.tag = tag

    class Own(ConditionPolicy, Tagged, tag="own"):
        pass

    assert Own.tag == "own"
