"""The two default policies as tables: pure functions of queue, instances and time."""

from __future__ import annotations

import gc
import itertools
import threading
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import problem
from policies_by_hand import Inst, Line, PlainLine, Request, line
from pydantic import ValidationError

import headrace
from headrace import errors
from headrace.policies import BatchPolicy, BestFit, Cut, DispatchPolicy, Greedy


def greedy(**options):
    return Greedy(Greedy.Options(**options))


LINGER = {"batching_timeout": 10}
SIZES = {"batch_sizes": (8, 1, 4)}
PADDED = {**SIZES, "pad": True}
LARGE = {"batch_sizes": (4, 8), **LINGER}


@pytest.mark.parametrize(
    ("why", "options", "queue", "instance", "now", "expected"),
    [
        ("an idle node sends at once", LINGER, line(1), Inst(), 0.0, Cut(1)),
        ("idle, several", LINGER, line(1, 1, 1), Inst(), 0.0, Cut(3)),
        ("another runs: wait for company", LINGER, line(1, running=1), Inst(), 0.0, Cut(0, 0.01)),
        ("the wait is over", LINGER, line(1, running=1), Inst(), 0.01, Cut(1)),
        ("long over", LINGER, line(1, 1, running=1), Inst(), 9.0, Cut(2)),
        ("max is reached", LINGER, line(1, 1, 1, 1, running=1), Inst(), 0.0, Cut(4)),
        ("max is passed", LINGER, line(*[1] * 6, running=1), Inst(), 0.0, Cut(4)),
        ("no timeout: never a wait", {}, line(1, running=1), Inst(), 0.0, Cut(1)),
        ("weights fill up", LINGER, line(3, 1, running=1), Inst(), 0.0, Cut(2)),
        ("the next does not fit", LINGER, line(3, 2, running=1), Inst(), 0.0, Cut(1)),
        ("the head fits no batch here", {}, line(5, 1), Inst(), 0.0, Cut(0)),
        ("unbounded takes all", {}, line(*[1] * 50), Inst(max=None), 0.0, Cut(50)),
        ("unbounded waits", LINGER, line(1, 9, running=2), Inst(max=None), 0.0, Cut(0, 0.01)),
        ("below min waits though idle", LINGER, line(1), Inst(min=2), 0.0, Cut(0, 0.01)),
        ("min is reached while idle", LINGER, line(1, 1), Inst(min=2), 0.0, Cut(2)),
        ("below min, the wait over", LINGER, line(1), Inst(min=2), 0.01, Cut(1)),
        ("below min, no timeout", {}, line(1), Inst(min=2), 0.0, Cut(1)),
        ("largest size filled", SIZES, line(*[1] * 6), Inst(max=8), 0.0, Cut(4)),
        ("largest of all", SIZES, line(*[1] * 9), Inst(max=8), 0.0, Cut(8)),
        ("smallest", SIZES, line(1, 1, 1), Inst(max=8), 0.0, Cut(1)),
        ("sizes by weight", SIZES, line(2, 2, 3), Inst(max=8), 0.0, Cut(2)),
        ("pad holds all", PADDED, line(*[1] * 6), Inst(max=8), 0.0, Cut(6)),
        ("pad, more than all", PADDED, line(*[1] * 9), Inst(max=8), 0.0, Cut(8)),
        ("pad, within what it takes", PADDED, line(*[1] * 6), Inst(max=5), 0.0, Cut(4)),
        ("no size is filled: wait", LARGE, line(3, 3), Inst(min=4, max=8), 0.0, Cut(0, 0.01)),
        (
            "none is filled in time: refused later",
            LARGE,
            line(3, 3),
            Inst(min=4, max=8),
            0.01,
            Cut(2),
        ),
    ],
)
def test_greedy_cuts(why, options, queue, instance, now, expected):
    policy, length = greedy(**options), len(queue)
    assert policy.cut(queue, instance, now) == expected, why
    assert policy.cut(queue, instance, now) == expected, "it decides the same twice"
    assert len(queue) == length


@pytest.mark.parametrize(
    ("most", "sizes", "wanted"), [(4, None, 4), (None, None, None), (8, (2, 6), 6), (None, (2,), 2)]
)
def test_greedy_says_from_which_weight_on_an_arrival_matters(most, sizes, wanted):
    """While another instance runs, an arrival that does not fill the batch changes nothing."""
    policy = greedy(batch_sizes=sizes, **LINGER)
    queue, instance = line(1, running=1), Inst(max=most)
    cut = policy.cut(queue, instance, 0.0)
    assert (cut.take, cut.wake_weight) == (0, wanted)
    for weight in range(2, wanted or 20):
        assert policy.cut(line(*[1] * weight, running=1), instance, 0.0).take == 0
    if wanted is not None:
        assert policy.cut(line(*[1] * wanted, running=1), instance, 0.0).take == wanted


def test_greedy_asks_nothing_but_length_weight_and_items_of_a_queue():
    assert greedy(**LINGER).cut(PlainLine(Request(), Request()), Inst(), 0.0) == Cut(2)


def test_greedy_looks_at_no_more_requests_than_one_batch_holds():
    seen = []

    class Watched(Line):
        def __getitem__(self, index):
            seen.append(index)
            return self.items[index]

    greedy().cut(Watched([Request(weight=2) for _ in range(10_000)]), Inst(max=8), 0.0)
    assert max(seen) <= 8


@pytest.mark.parametrize("sizes", [(), (0, 4), (-1,)])
def test_greedy_refuses_batch_sizes_that_no_batch_has(sizes):
    with pytest.raises(ValidationError):
        Greedy.Options(batch_sizes=sizes)


def test_greedy_sends_when_idle_and_a_policy_of_ones_own_does_not_unless_it_says_so():
    assert Greedy.sends_when_idle
    assert not BatchPolicy.sends_when_idle


@pytest.mark.parametrize(
    ("why", "weight", "free", "expected"),
    [
        ("the smallest max that holds all", 3, [Inst(0, max=8), Inst(1, max=4)], 1),
        ("exactly full", 4, [Inst(0, max=8), Inst(1, max=4)], 1),
        ("more than the small one takes", 5, [Inst(0, max=4), Inst(1, max=8)], 1),
        ("more than any takes: the largest", 20, [Inst(0, max=4), Inst(1, max=8)], 1),
        ("below a min", 2, [Inst(0, min=3, max=4), Inst(1, max=8)], 1),
        ("below every min: the least", 1, [Inst(0, min=3, max=8), Inst(1, min=2, max=4)], 1),
        ("bounded before unbounded", 2, [Inst(0, max=None), Inst(1, max=4)], 1),
        ("unbounded when nothing else holds it", 9, [Inst(0, max=4), Inst(1, max=None)], 1),
        ("least loaded among equals", 1, [Inst(0, batches=3), Inst(1, batches=2)], 1),
        ("the first among equals", 1, [Inst(1), Inst(0)], 0),
        ("fit before load", 2, [Inst(0, max=8), Inst(1, max=4, batches=9)], 1),
        ("load among the largest", 9, [Inst(0, max=4, batches=1), Inst(1, max=4)], 1),
    ],
)
def test_best_fit_chooses(why, weight, free, expected):
    assert BestFit().choose(weight, free).index == expected, why


def test_best_fit_chooses_none_where_none_is_free():
    assert BestFit().choose(1, []) is None


def test_a_policy_without_its_method_says_so():
    with pytest.raises(TypeError, match="BatchPolicy has no cut"):
        BatchPolicy().cut(line(1), Inst(), 0.0)
    with pytest.raises(TypeError, match="DispatchPolicy has no choose"):
        DispatchPolicy().choose(1, [Inst()])


async def later(self, *given):
    return None


@pytest.mark.parametrize(
    ("base", "key", "methods", "message"),
    [
        (BatchPolicy, "batch_policy", {}, "it has no method cut"),
        (BatchPolicy, "batch_policy", {"cut": later}, "cut is asynchronous"),
        (BatchPolicy, "batch_policy", {"Options": dict, "cut": Greedy.cut}, ".*Options"),
        (DispatchPolicy, "dispatch_policy", {"cut": later}, "it has no method choose"),
    ],
)
def test_a_policy_that_cannot_decide_is_refused_where_it_is_named(base, key, methods, message):
    headrace.register("Undecided", type("Undecided", (base,), methods), replace=True)
    with pytest.raises(errors.ConfigError, match=f"the policy Undecided is wrong: {message}"):
        headrace.PipelineConfig.load({"backend": "Identity", key: "Undecided"})


def test_the_examples_of_the_docstrings_do_what_they_say():
    import inspect
    import textwrap

    def example(cls, begin):
        text = inspect.cleandoc(cls.__doc__)
        lines = itertools.dropwhile(
            lambda row: not row.startswith(f"    class {begin}"), text.split("\n")
        )
        body = itertools.takewhile(lambda row: not row or row.startswith("    "), lines)
        names = dict(vars(headrace.policies))
        exec(textwrap.dedent("\n".join(body)), names)
        return names[begin]

    pairs = example(BatchPolicy, "Pairs")()
    assert pairs.cut(line(1, 1, 1), Inst(), 0.0) == Cut(2)
    assert pairs.cut(line(1), Inst(), 0.0) == Cut(0, 1.0)
    assert pairs.cut(line(1), Inst(), 1.0) == Cut(1)
    least = example(DispatchPolicy, "LeastLoaded")()
    assert least.choose(1, [Inst(0, batches=3), Inst(1, batches=2)]).index == 1


class Decides(BatchPolicy):
    """Cuts what a test says; raises it if it is an error."""

    says: object = None

    def cut(self, queue, instance, now):
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says


class Picks(DispatchPolicy):
    """Chooses what a test says."""

    says: object = None

    def choose(self, weight, free):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


NO_CUTS = [Cut(-1), Cut("1"), Cut(1.5), Cut(None), Cut(0, "soon"), Cut(1, float("nan"))]


@pytest.mark.parametrize(
    "says", [LookupError("lost"), SystemExit("lost"), None, 5, *NO_CUTS], ids=repr
)
@pytest.mark.parametrize("idle", [True, False], ids=["sends when idle", "does not"])
def test_nonsense_of_a_batch_policy_fails_what_waits(says, idle, monkeypatch, shortcut):
    headrace.register("Decides", Decides, replace=True)
    monkeypatch.setattr(Decides, "says", says)
    monkeypatch.setattr(Decides, "sends_when_idle", idle)
    with headrace.pipe({"backend": "Identity", "max": 2, "batch_policy": "Decides"}) as pipe:
        for future in pipe.submit([{"data": 1}, {"data": 2}]):
            error = future.exception(60)
            assert isinstance(error, errors.ContractError)
            assert "the policy Decides" in str(error)
            assert error.node == "main"
            assert error.__cause__ is (says if isinstance(says, BaseException) else None)
        if idle and shortcut:  # a caller that runs its own request does not ask it
            assert pipe({"data": 3})["result"] == 3
        with pytest.raises(errors.ContractError):
            pipe({"data": 3}, timeout=60)
        monkeypatch.setattr(Decides, "says", Cut(1))
        assert pipe({"data": 4})["result"] == 4
        failed = pipe.stats()["nodes"]["main"]["failed"]
        assert failed == {"contract": 3}


@pytest.mark.parametrize("says", [LookupError("lost"), "first", Inst(0)], ids=repr)
def test_nonsense_of_a_dispatch_policy_fails_what_waits(says, monkeypatch, shortcut):
    headrace.register("Picks", Picks, replace=True)
    monkeypatch.setattr(Picks, "says", says)
    with headrace.pipe({"backend": "Identity", "dispatch_policy": "Picks"}) as pipe:
        error = pipe.submit({"data": 1}).exception(60)
        assert isinstance(error, errors.ContractError)
        assert "the policy Picks" in str(error)


def test_a_dispatch_policy_may_take_its_choice_out_of_the_list(shortcut):
    class Pops(DispatchPolicy):
        def choose(self, weight, free):
            return free.pop()

    headrace.register("Pops", Pops, replace=True)
    config = {"backend": "Identity", "instance_num": 2, "dispatch_policy": "Pops"}
    with headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": 1}, {"data": 2}])
        assert [one.result(60)["result"] for one in futures] == [1, 2]


def test_a_time_to_look_again_that_never_comes_is_never(gate, shortcut):
    headrace.register("Decides", Decides, replace=True)
    Decides.says = Cut(0, float("inf"))
    with headrace.pipe({"backend": "Gate", "batch_policy": "Decides"}) as pipe:
        gate.open()
        first = pipe.submit({"data": 1})
        Decides.says = Cut(2)
        second = pipe.submit({"data": 2})
        assert isinstance(first.exception(60), errors.BatchRangeError)
        assert isinstance(second.exception(60), errors.BatchRangeError)


def test_a_policy_that_raises_as_a_batch_ends_fails_those_who_wait_and_not_the_batch(gate, waiting):
    class Fussy(BatchPolicy):
        def cut(self, queue, instance, now):
            if len(queue) > 1:
                raise LookupError("more than one")
            return Cut(1)

    headrace.register("Fussy", Fussy, replace=True)
    config = {"backend": "Gate", "max": 4, "batch_policy": "Fussy"}
    with headrace.pipe(config) as pipe:
        running = gate.entered(pipe.submit({"data": 0}))
        waits = pipe.submit([{"data": 1}, {"data": 2}])
        waiting(pipe, 2)
        gate.open()
        for one in waits:
            assert isinstance(one.exception(60), errors.ContractError)
        assert running.result(60)["result"] == 0


class Holds(Greedy):
    """Says nothing of its own ``cut``, which lets requests go in pairs only."""

    def cut(self, queue, instance, now):
        return Cut(2) if len(queue) >= 2 else Cut(0)


class Last(BestFit):
    """Chooses the last instance."""

    def choose(self, weight, free):
        return max(free, key=lambda instance: instance.index)


def test_a_cut_of_ones_own_is_not_skipped_because_another_class_said_so(gate, client, waiting):
    headrace.register("Holds", Holds, replace=True)
    with headrace.pipe({"backend": "Gate", "max": 4, "batch_policy": "Holds"}) as pipe:
        gate.open()
        callers = [client(pipe, {"data": 1})]
        waiting(pipe, 1)
        callers.append(client(pipe, {"data": 2}))
        assert sorted(caller.outcome()["result"] for caller in callers) == [1, 2]
        assert [sorted(batch) for batch in gate.batches] == [[1, 2]]


@pytest.mark.parametrize("way", ["call", "submit"])
def test_an_idle_node_asks_a_dispatch_policy_of_ones_own(way, shortcut):
    headrace.register("Last", Last, replace=True)
    config = {"backend": "Identity", "instance_num": 3, "dispatch_policy": "Last"}
    with headrace.pipe(config) as pipe:
        for n in range(5):
            request = {"data": n}
            pipe(request) if way == "call" else pipe.submit(request).result(60)
        assert [one["batches"] for one in pipe.stats()["nodes"]["main"]["instances"]] == [0, 0, 5]


@pytest.mark.parametrize("own", [False, True])
def test_a_runner_goes_on_with_the_greatest_priority_and_asks_a_policy_of_others(
    gate, own, waiting
):
    asked = []

    @headrace.register("AsksWeights", replace=True)
    class AsksWeights(BestFit):
        def choose(self, weight, free):
            asked.append(weight)
            return super().choose(weight, free)

    with headrace.pipe(
        {"backend": "Gate", **({"dispatch_policy": "AsksWeights"} if own else {})}
    ) as pipe:
        first = gate.entered(pipe.submit({"data": "first"}))
        others = [pipe.submit({"data": n}, priority=n) for n in (1, 3, 2)]
        waiting(pipe, 3)
        gate.open()
        assert first.result(60)["result"] == "first"
        assert [one.result(60)["result"] for one in others] == [1, 3, 2]
        assert gate.batches == [["first"], [3], [2], [1]]
        assert asked == ([1, 3, 2, 1] if own else [])
        assert pipe.stats()["nodes"]["main"]["batch_size"]["histogram"] == {"1": 4}


@given(
    st.integers(1, 9),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.floats(0, 9),
    st.booleans(),
)
def test_greedy_takes_what_is_full_at_once(n, running, opened, sized, now, pad):
    """The scheduler does not ask it then."""
    policy = greedy(batching_timeout=1e6, batch_sizes=[1] if sized else None, pad=pad)
    queue = line(*[1] * n, running=running, open=opened)
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


# Args of the batch policy that are keys of the node.


@pytest.mark.parametrize(
    ("written", "origin"),
    [
        ({"main": {"batch_policy": "greedy(batch_sizes=[4,2],pad=true)"}}, "inline"),
        ({"main": {"greedy::batch_sizes": [4, 2], "greedy::pad": True}}, "node"),
        ({"global": {"greedy::batch_sizes": [4, 2], "greedy::pad": True}}, "global"),
    ],
)
def test_options_of_the_batch_policy_count_like_the_keys_of_the_node(written, origin):
    keys = {"backend": "Identity", "pad": False, **written.get("main", {})}
    source = {**written, "main": keys}
    told = headrace.explain(source)["nodes"]["main"]
    assert told["range"] == [2, 4]
    assert told["keys"]["pad"] == {"value": True, "origin": origin}
    assert told["keys"]["batch_sizes"] == {"value": [2, 4], "origin": origin}
    with headrace.pipe(source) as pipe:
        assert [one["result"] for one in pipe([{"data": k} for k in range(3)])] == [0, 1, 2]


def test_a_default_of_the_batch_policy_counts_like_that_of_the_key():
    class Filling(Greedy):
        class Options(Greedy.Options):
            pad: bool = True

    headrace.register(Filling)
    told = headrace.explain({"backend": "Identity", "batch_policy": "Filling"})
    assert told["nodes"]["main"]["keys"]["pad"] == {"value": True, "origin": "default"}


def test_sizes_among_the_args_of_the_batch_policy_have_to_fit_the_node():
    source = {"n": {"backend": "Identity", "max": 3, "batch_policy": "greedy(batch_sizes=[2,4])"}}
    found = problem(source)
    assert (found.path, found.message) == ("n.batch_policy", "the batch size 4 is above max = 3")


# What the scheduler decides without asking the usual policy.


class Asked(Greedy):
    """The usual policy, whose every decision the scheduler has to ask for."""

    def cut(self, queue, instance, now):
        return super().cut(queue, instance, now)


def cuts(config, most, owns_thread, requests):
    """Run requests that have gathered while the only instance was busy; give its batches and their outcomes."""
    began, leave, batches = threading.Event(), threading.Event(), []

    def forward(self, batch):
        batches.append([request["data"] for request in batch])
        began.set()
        assert leave.wait(60)
        for request in batch:
            request["result"] = request["data"]

    members = {"max": most, "owns_thread": owns_thread, "forward": forward}
    headrace.register("Cuts", type("Cuts", (headrace.Backend,), members), replace=True)
    with headrace.pipe({"backend": "Cuts", **config}) as pipe:
        futures = [pipe.submit({"data": "first"})]
        assert began.wait(60)
        for k, (weight, priority) in enumerate(requests):
            futures.append(pipe.submit({"data": k, "request_size": weight}, priority=priority))
        leave.set()
        return batches, [type(one.exception(60)) for one in futures]


@settings(max_examples=100)
@given(
    st.sets(st.integers(2, 9), max_size=3),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 1), min_size=6, max_size=12),
    st.none() | st.integers(0, 11),
)
def test_what_is_not_asked_is_what_the_policy_would_say(
    sizes, most, pad, owns_thread, priorities, heavy
):
    headrace.register("asked", Asked)
    requests = [(1 + (k == heavy), priority) for k, priority in enumerate(priorities)]
    config = {"pad": pad, **({"batch_sizes": [1, *sorted(sizes)]} if sizes else {})}
    usual = cuts(config, most, owns_thread, requests)
    assert usual == cuts({**config, "batch_policy": "asked"}, most, owns_thread, requests)
