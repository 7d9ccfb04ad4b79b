"""Conditions: what they say now, when that may change, and batches cut by nothing else."""

from __future__ import annotations

import gc
import threading
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import never_skips_the_queue, time_by_hand
from policies_by_hand import Inst, Line, PlainLine, Request, line
from pydantic import Field

import headrace
from headrace.errors import BatchRangeError, ConfigError, ContractError, SetupError
from headrace.policies import (
    BatchPolicy,
    Condition,
    ConditionPolicy,
    Count,
    Cut,
    Enough,
    FreeInstances,
    Greedy,
    Idle,
    Verdict,
    Waited,
    Weight,
    When,
)


@given(
    st.integers(1, 9),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.floats(0, 9),
    st.booleans(),
)
def test_the_policies_of_the_module_take_what_is_full_at_once(n, running, opened, sized, now, pad):
    """The scheduler does not ask them then."""

    class Never(ConditionPolicy):
        condition = ~Count(1) & Waited(ms=1e9)

    sizes = [1] if sized else None
    queue = line(*[1] * n, running=running, open=opened)
    for policy in (
        Greedy(Greedy.Options(batching_timeout=1e6, batch_sizes=sizes, pad=pad)),
        Never(Never.Options(batch_sizes=sizes, pad=pad)),
    ):
        assert policy.cut.takes_what_is_full
        assert policy.cut(queue, Inst(max=1), now) == Cut(1)


def test_a_cut_of_ones_own_is_asked_also_where_one_request_fills_an_instance(gate, client, waiting):
    class Pairs(Greedy):
        def cut(self, queue, instance, now):
            return Cut(1) if len(queue) >= 2 or gate.batches else Cut(0)

    headrace.register("Pairs", Pairs, replace=True)
    gate.open()
    with headrace.pipe({"backend": "Gate", "batch_policy": "Pairs"}) as pipe:
        first = client(pipe, {"data": 1})
        waiting(pipe, 1)
        assert gate.batches == []
        second = client(pipe, {"data": 2})
        assert [one.outcome()["result"] for one in (first, second)] == [1, 2]
        assert gate.batches == [[1], [2]]


# One at a time.


@pytest.mark.parametrize(
    ("condition", "queue", "now", "expected"),
    [
        (Count(2), line(9), 0.0, Verdict(False)),
        (Count(2), line(1, 1), 0.0, Verdict(True)),
        (Weight(3), line(2), 0.0, Verdict(False)),
        (Weight(3), line(1, 2), 0.0, Verdict(True)),
        (Enough(), line(1), 0.0, Verdict(False)),
        (Enough(), line(2), 0.0, Verdict(True)),
        (Waited(ms=250), line(1, at=1.0), 1.125, Verdict(False, 1.25)),
        (Waited(ms=250), line(1, at=1.0), 1.25, Verdict(True)),
        (Waited(ms=0), line(1, at=1.0), 1.0, Verdict(True)),
        (FreeInstances(2), line(1, free=1), 0.0, Verdict(False)),
        (FreeInstances(2), line(1, free=2), 0.0, Verdict(True)),
        (Idle(), line(1, running=1), 0.0, Verdict(False)),
        (Idle(), line(1), 0.0, Verdict(True)),
        (When(lambda queue, instance, now: now > 3), line(1), 4.0, Verdict(True)),
        (When(lambda queue, instance, now: Verdict(False, 5.0)), line(1), 4.0, Verdict(False, 5.0)),
        (~Count(2), line(1), 0.0, Verdict(True)),
        (~Waited(ms=250), line(1), 0.0, Verdict(True, 0.25)),
        (Count(2) | Waited(ms=250), line(1), 0.0, Verdict(False, 0.25)),
        (Count(2) & Waited(ms=250), line(1), 0.0, Verdict(False)),
        (Count(1) & Waited(ms=250), line(1), 0.0, Verdict(False, 0.25)),
        (Waited(ms=125) & Waited(ms=250), line(1), 0.0, Verdict(False, 0.25)),
        (Waited(ms=125) | Waited(ms=250), line(1), 0.0, Verdict(False, 0.125)),
        (~Waited(ms=125) | ~Waited(ms=250), line(1), 0.0, Verdict(True, 0.25)),
        (~Waited(ms=125) & ~Waited(ms=250), line(1), 0.0, Verdict(True, 0.125)),
    ],
    ids=lambda value: repr(value).partition(" at 0x")[0],  # the same in every process
)
def test_what_a_condition_says(condition, queue, now, expected):
    assert condition.verdict(queue, Inst(min=2), now) == expected


def test_the_oldest_counts_though_a_higher_priority_stands_before_it():
    queue = Line([Request(arrival=2.0, priority=1), Request(arrival=1.0)])
    assert Waited(ms=250).verdict(queue, Inst(), 1.125) == Verdict(False, 1.25)


def test_a_queue_that_tells_nothing_is_idle_and_one_instance_is_free():
    queue = PlainLine(Request(arrival=1.0))
    for condition in (Idle(), FreeInstances(1), ~FreeInstances(2), Waited(ms=0)):
        assert condition.verdict(queue, Inst(), 1.0).due


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
        Condition().verdict(line(1), Inst(), 0.0)


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
    queue = Line([Request(w, a / 8) for a, w in items], running, free)
    at, asked = max(arrivals) + later, 0
    end = at + 20  # nothing changes by time alone after that
    while True:
        said = built(tree).verdict(queue, Inst(min=least), at / 8)
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


# A node that is only woken when a verdict ends, against one that looks all the time.


class Timed(headrace.Backend):
    """Begins when it is cut, on the clock of the test, and ends when the test says so."""

    class Options(headrace.Options):
        mark: int

    def init(self, options, context):
        self.run = runs[options.mark]
        self.index, self.goes_on = context.instance_index, threading.Semaphore(0)
        self.max = self.run.maxima[self.index]
        self.run.backends[self.index] = self

    def forward(self, batch):
        run = self.run
        run.log.append((run.tick(), self.index, [request["data"] for request in batch]))
        run.begun.release()
        assert self.goes_on.acquire(timeout=HANGS_S)
        for request in batch:
            request["result"] = request["data"]


def policy_of(tree):
    class Policy(ConditionPolicy):
        condition = built(tree)

    return Policy


runs = {}
"""By its mark, what a test lets happen in a pipeline."""

HANGS_S = 20.0


class Run:
    """A pipeline whose clock goes on in ticks of an eighth of a second."""

    def __init__(self, maxima, timer):
        self.maxima, self.timer, self.log = maxima, timer, []
        self.begun, self.backends = threading.Semaphore(0), {}

    def tick(self):
        return (self.timer.clock() - 100.0) * 8 - 1

    def until_begun(self, count):
        while len(self.log) < count:
            assert self.begun.acquire(timeout=HANGS_S), "a batch that is due did not begin"


@settings(max_examples=200, deadline=None)
@given(
    tree=TREES,
    arrivals=st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3)), min_size=1, max_size=12),
    maxima=st.lists(st.integers(3, 6), min_size=1, max_size=3),
    lasts=st.integers(1, 5),
)
def test_batches_are_cut_when_they_are_due_and_at_no_other_time(tree, arrivals, maxima, lasts):
    script, expected = watched(tree, sorted(arrivals), maxima, lasts)
    headrace.register("Timed", Timed, replace=True)
    headrace.register("Drawn", policy_of(tree), replace=True)
    node = {"backend": "Timed(mark=1)", "batch_policy": "Drawn", "instance_num": len(maxima)}
    with pytest.MonkeyPatch.context() as patch:
        never_skips_the_queue(patch)  # there no policy is asked
        timer = time_by_hand(patch)
        run = runs[1] = Run(maxima, timer)
        pipe = headrace.pipe({"global": {"deadlock_after_s": 0}, "main": node})
        over = 0
        for (what, *args), begun in script:
            if what == "tick":
                timer.clock.advance(0.125)
                timer.run_due()
            elif what == "end":
                over += len([one for one in run.log if one[1] == args[0]][-1][2])
                run.backends[args[0]].goes_on.release()
                while pipe.stats()["nodes"]["main"]["ok"] < over:
                    pass
            else:
                number, weight = args
                pipe.submit({"data": number, "request_size": weight})
            pipe.stats()
            run.until_begun(begun)
        for backend in run.backends.values():
            backend.goes_on.release(99)
        found = run.log[:]
        pipe.close()
    assert found == expected


def watched(tree, arrivals, maxima, lasts):
    """Do the same, looking at everything in every tick.

    Returns:
        What happens, each with how many batches have begun after it, and the batches.
    """
    script, log, waiting, batches = [], [], [], [0] * len(maxima)
    busy = {}

    def look(tick):
        offered = [index for index in range(len(maxima)) if index not in busy]
        # The one that rested longest stands first; it does not matter to best fit.
        while offered and waiting:
            total = sum(weight for _, _, weight in waiting)
            fitting = [i for i in offered if total <= maxima[i]]
            pool = fitting or offered
            sign = 1 if fitting else -1
            chosen = min(pool, key=lambda i: (sign * maxima[i], batches[i], i))
            offered.remove(chosen)
            take = weight = 0
            while take < len(waiting) and weight + waiting[take][2] <= maxima[chosen]:
                weight += waiting[take][2]
                take += 1
            full = take < len(waiting) or weight == maxima[chosen]
            arrived, weights = [at for _, at, _ in waiting], [w for _, _, w in waiting]
            state = (arrived, weights, len(busy), len(maxima) - len(busy), 1)
            if full or holds(tree, state, tick):
                log.append((tick, chosen, [number for number, _, _ in waiting[:take]]))
                del waiting[:take]
                batches[chosen] += 1
                busy[chosen] = tick + lasts
                offered = [index for index in range(len(maxima)) if index not in busy]

    for tick in range(40):
        look(tick)
        script.append((("tick",), len(log)))
        for index in range(len(maxima)):
            if busy.get(index, 99) <= tick:
                del busy[index]
                look(tick)
                script.append((("end", index), len(log)))
        for number, (at, weight) in enumerate(arrivals):
            if at == tick:
                waiting.append((number, at, weight))
                look(tick)
                script.append((("send", number, weight), len(log)))
    return script, log


# The policy.


class Never(ConditionPolicy):
    condition = ~(Count(1))


@pytest.mark.parametrize(
    ("why", "queue", "instance", "expected"),
    [
        ("not due", line(1, 1), Inst(), Cut(0)),
        ("full", line(1, 1, 1, 1), Inst(), Cut(4)),
        ("more than full", line(*[1] * 9), Inst(), Cut(4)),
        ("the next does not fit", line(3, 2), Inst(), Cut(1)),
        ("the head fits no batch here", line(5, 1), Inst(), Cut(0)),
        ("unbounded is never full", line(*[1] * 90), Inst(max=None), Cut(0)),
        ("no more may come", line(1, 1, open=False), Inst(), Cut(2)),
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
        return Always(Always.Options(**options)).cut(line(*[1] * count), Inst(max=8), 0.0).take

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
def tunable(gate):
    headrace.register("Tunable", Tunable, replace=True)
    headrace.register("Never", Never, replace=True)
    gate.open()
    return gate


def test_the_options_are_args_or_keys_of_the_node(tunable):
    with headrace.pipe({"backend": "Gate", "max": 8, "batch_policy": "Tunable(3)"}) as pipe:
        for future in pipe.submit([{"data": k} for k in range(3)]):
            future.result(60)
        assert list(map(len, tunable.batches)) == [3]
    config = {"backend": "Gate", "max": 8, "batch_policy": "Tunable", "least": 1}
    with headrace.pipe(config) as pipe:
        pipe({"data": "alone"})
    with headrace.pipe({**config, "least": 9, "wait_ms": 1}) as pipe:
        pipe({"data": "waits a millisecond"})
    with pytest.raises(ConfigError, match="greater than or equal to 1"):
        headrace.PipelineConfig.load({**config, "least": 0})


def test_the_node_s_sizes_hold_though_the_options_of_the_policy_name_none(tunable):
    config = {"backend": "Gate", "batch_sizes": [1, 2], "batch_policy": "Tunable(3)"}
    with headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": k} for k in range(3)])
        futures[0].result(60)
        pipe.close()
    assert all(future.result(0) for future in futures)
    assert sorted(map(len, tunable.batches)) == [1, 2]


def test_close_runs_what_a_condition_would_keep(tunable):
    pipe = headrace.pipe({"backend": "Gate", "max": 8, "batch_policy": "Never"})
    futures = pipe.submit([{"data": k} for k in range(3)])
    assert pipe.stats()["nodes"]["main"]["waiting"] == 3
    pipe.close()
    assert [future.result(0)["result"] for future in futures] == [0, 1, 2]


def test_a_full_queue_runs_what_a_condition_would_keep(tunable, client):
    config = {"backend": "Gate", "max": 8, "batch_policy": "Never", "queue_size": 3}
    with headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": k} for k in range(7)])
        assert [future.result(60)["result"] for future in futures[:6]] == [0, 1, 2, 3, 4, 5]
        assert not futures[6].done()


def test_a_function_sees_what_waits(tunable, waiting):
    class Urgent(ConditionPolicy):
        condition = When(lambda queue, instance, now: queue[0].priority > 0)

    headrace.register("Urgent", Urgent, replace=True)
    with headrace.pipe({"backend": "Gate", "max": 8, "batch_policy": "Urgent"}) as pipe:
        slow = pipe.submit({"data": "slow"})
        waiting(pipe, 1)
        pipe({"data": "urgent"}, priority=1)
        assert slow.result(60)
    assert tunable.batches == [["urgent", "slow"]]


def test_a_function_that_raises_fails_what_waits_and_nobody_hangs(tunable):
    class Raises(ConditionPolicy):
        condition = Count(2) | When(lambda queue, instance, now: 1 / 0)

    headrace.register("RaisesHere", Raises, replace=True)
    with headrace.pipe({"backend": "Gate", "max": 8, "batch_policy": "RaisesHere"}) as pipe:
        with pytest.raises(ContractError, match=r"the policy .* raised ZeroDivisionError"):
            pipe({"data": 1})
        for future in pipe.submit([{"data": 2}, {"data": 3}]):
            future.exception(60)


def test_free_instances_are_those_of_the_node(gate, waiting):
    class Two(ConditionPolicy):
        condition = FreeInstances(2)

    headrace.register("Two", Two, replace=True)
    config = {"backend": "Gate", "max": 8, "instance_num": 2, "batch_policy": "Two"}
    with headrace.pipe(config) as pipe:
        first = pipe.submit({"data": "both are free"})
        gate.wait_entered()
        second = pipe.submit({"data": "one is"})
        waiting(pipe, 1)
        gate.let_go()
        first.result(60)
        gate.open()
        second.result(60)
    assert gate.batches == [["both are free"], ["one is"]]


def test_what_is_due_below_min_is_refused_or_filled_up(tunable):
    config = {"backend": "Gate", "min": 2, "max": 4, "batch_policy": "Tunable(1)"}
    with headrace.pipe(config) as pipe, pytest.raises(BatchRangeError, match="min of 2"):
        pipe({"data": 1})
    with headrace.pipe({**config, "pad": True}) as pipe:
        assert pipe({"data": 1})["result"] == 1


def test_greedy_counts_the_wait_of_the_oldest_of_all_priorities():
    queue = Line([Request(arrival=2.0, priority=1), Request(arrival=1.0)], running=1)
    greedy = Greedy(Greedy.Options(batching_timeout=250))
    assert greedy.cut(queue, Inst(), 1.125) == Cut(0, 1.25)
    assert greedy.cut(queue, Inst(), 1.25) == Cut(2)


def test_the_line_knows_its_oldest_whoever_comes_and_leaves_and_keeps_nothing_of_who_has_left(gate):
    asked = []

    class Watches(BatchPolicy):
        def cut(self, queue, instance, now):
            asked.append(len(queue))
            assert queue.oldest == min(queue[k].arrival for k in range(len(queue)))
            return Cut(1)

    headrace.register(Watches, replace=True)
    with headrace.pipe({"backend": "Gate", "batch_policy": "Watches"}) as pipe:
        running = pipe.submit({"data": "runs"})
        gate.wait_entered()
        waits = [pipe.submit({"data": k}, priority=(0, 5, -3)[k % 3]) for k in range(12)]
        assert all(waits[k].cancel() for k in (4, 0, 7))
        collections = sum(isinstance(one, (list, deque)) for one in gc.get_objects())
        for priority in range(10, 1000):
            assert pipe.submit({"data": "leaves"}, priority=priority).cancel()
        gc.collect()
        kept = sum(isinstance(one, (list, deque)) for one in gc.get_objects()) - collections
        assert kept < 500
        gate.open()
        for one in (running, *(one for one in waits if not one.cancelled())):
            assert one.exception(60) is None
    assert asked[-9:] == list(range(9, 0, -1))
