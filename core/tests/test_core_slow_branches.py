"""Slow branches: workers run them at the same time."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref

import internals
import pytest

import headrace
from headrace import errors

LATE_S = 60.0

DIAMOND = {
    "a": {"backend": "Noting", "next": "b,c"},
    "b": {"backend": "Noting", "next": "d"},
    "c": {"backend": "Noting", "next": "d"},
    "d": {"backend": "Noting", "map": "b[result:data],c[result:other]"},
}


@pytest.fixture(autouse=True)
def slow(monkeypatch):
    """Let every branch count as slow."""
    monkeypatch.setattr(internals.walk, "CHEAP_S", 0.0)


@pytest.fixture
def ran():
    """Register ``Noting``; give the threads that ran each node, and what a node does before it ends."""
    notes = Notes()

    class Noting(headrace.Backend):
        def init(self, options, context):
            self.node = context.node_name

        def forward(self, batch):
            for request in batch:
                notes.threads.append((self.node, threading.get_ident()))
                notes.before.get(self.node, bool)()
                request["result"] = [
                    self.node,
                    request["data"],
                    *filter(None, [request.get("other")]),
                ]

    headrace.register("Noting", Noting, replace=True)
    return notes


class Notes:
    def __init__(self):
        self.threads = []
        self.before = {}

    def of(self, node):
        return [ident for name, ident in self.threads if name == node]


@pytest.mark.usefixtures("takes_turns")
@pytest.mark.parametrize("in_main", [True, False], ids=["main", "thread"])
@pytest.mark.parametrize("entrypoint", ["DagDispatcher", "S[DagDispatcher,Identity]"])
def test_slow_branches_run_at_the_same_time(ran, in_main, entrypoint):
    both = threading.Barrier(2)  # broken unless the branches run at the same time
    ran.before = dict.fromkeys("bc", lambda: both.wait(LATE_S))
    answers = []

    def call():
        answers.append(pipe({"data": 1}))

    with headrace.pipe({"global": {"entrypoint": entrypoint}, **DIAMOND}) as pipe:
        if in_main:
            call()
        else:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join(LATE_S)
    result = ["d", ["b", ["a", 1]], ["c", ["a", 1]]]
    assert [answer["result"] for answer in answers] == [result]


def test_a_longer_branch_goes_on_without_the_other(ran):
    """``c`` and ``e`` run one after the other while ``b`` still runs."""
    config = {
        "a": {"backend": "Noting", "next": "b,c"},
        "b": {"backend": "Noting"},
        "c": {"backend": "Noting", "next": "e"},
        "e": {"backend": "Noting"},
    }
    e_has_run = threading.Event()
    ran.before = {"b": lambda: e_has_run.wait(LATE_S), "e": e_has_run.set}
    with headrace.pipe(config) as pipe:
        calling = threading.Thread(target=pipe, args=({"data": 1},))
        calling.start()
        calling.join(LATE_S)
    assert [name for name, _ in ran.threads if name in "ce"] == ["c", "e"]


def test_a_failing_branch_takes_the_other_out_of_the_queue(ran, gate, until):
    config = {**DIAMOND, "b": {"backend": "Gate", "next": "d"}}
    may_fail = threading.Event()

    def fail():
        assert may_fail.wait(LATE_S)
        raise ValueError("c")

    ran.before = {"c": fail}
    request, raised = {"data": 2}, []

    def call():
        with pytest.raises(errors.BackendError) as caught:
            pipe(request)
        raised.append(caught.value)

    with headrace.pipe(config) as pipe:
        busy = pipe.submit({"data": 1, "node_name": "b"})
        gate.wait_entered()
        calling = threading.Thread(target=call)
        calling.start()
        until(lambda: pipe.stats()["nodes"]["b"]["waiting"] == 1)
        may_fail.set()
        calling.join(LATE_S)
        assert [(error.node, error.abandoned) for error in raised] == [("c", False)]
        assert request == {"data": 2}
        assert pipe.stats()["nodes"]["b"]["failed"] == {"cancelled": 1}
        gate.open()
        assert busy.result(LATE_S)["result"] == ["d", 1]
        assert gate.batches == [[1]]


def test_a_failing_branch_cancels_what_has_not_started(ran, gate, until):
    config = {**DIAMOND, "c": {"backend": "Gate"}, "d": {"backend": "Noting"}}
    may_fail = threading.Event()

    def fail():
        assert may_fail.wait(LATE_S)
        raise ValueError("b")

    ran.before = {"b": fail}
    with headrace.pipe(config) as pipe:
        busy = pipe.submit({"data": 1, "node_name": "c"})
        gate.wait_entered()
        thread = threading.Thread(target=lambda: (until(queued), may_fail.set()))

        def queued():
            return pipe.stats()["nodes"]["c"]["waiting"] == 1

        thread.start()
        request = {"data": 2}
        with pytest.raises(errors.BackendError, match="b") as caught:
            pipe(request)
        thread.join(LATE_S)
        assert (caught.value.node, request) == ("b", {"data": 2})
        assert pipe.stats()["nodes"]["c"]["failed"] == {"cancelled": 1}
        gate.open()
        busy.result(LATE_S)
        assert gate.batches == [[1]]


def test_elements_and_nodes_passed_by_run_there_as_well(ran):
    config = {
        "a": {"backend": "Call(builtins:list)", "next": "b,c"},
        "b": {"backend": "Noting", "each": "data", "next": "d"},
        "c": {"backend": "Noting", "each": "data", "next": "d"},
        "d": {"backend": "Noting", "map": "b[result:data],c[result:other]", "next": "skipped"},
        "skipped": {"backend": "Noting", "or": True},
    }
    with headrace.pipe(config) as pipe:
        request = pipe({"data": "xy"})
    results = [[[node, letter] for letter in "xy"] for node in "bc"]
    assert (request["data"], request["result"]) == ("xy", ["d", *results])
    assert len(ran.of("b")) == len(ran.of("c")) == 2
    assert ran.of("skipped") == []


def test_a_branch_that_calls_its_own_pipeline_is_refused(ran):
    """It would never get the instance that it holds."""
    ran.before = {"b": lambda: pipe({"data": 5}), "c": lambda: pipe({"data": 5})}
    with headrace.pipe(DIAMOND) as pipe:
        with pytest.raises(errors.BackendError) as caught:
            pipe({"data": 1})
        assert isinstance(caught.value.__cause__ or caught.value, errors.ContractError)
        ran.before = {}
        assert pipe({"data": 1})["result"][0] == "d"


@pytest.mark.usefixtures("takes_turns")  # else Python frees what threads share later
@pytest.mark.parametrize("fails", [False, True])
def test_an_answered_request_is_free_at_once(ran, fails):
    class Heavy:
        pass

    def fail():
        raise ValueError("c")

    ran.before = {"c": fail} if fails else {}
    gc.collect()
    gc.disable()
    try:
        with headrace.pipe(DIAMOND) as pipe:
            for _ in range(5):
                heavy, gone = Heavy(), threading.Event()
                weakref.finalize(heavy, gone.set)
                with contextlib.suppress(errors.BackendError):
                    pipe({"data": heavy})
                del heavy
                assert gone.wait(LATE_S)
    finally:
        gc.enable()


@pytest.mark.parametrize("threads", [2, 8])
def test_many_callers_get_their_own_answers(ran, threads):
    answers = {}

    def call(number):
        for k in range(30):
            answers[number, k] = pipe({"data": (number, k)})["result"]

    with headrace.pipe({**DIAMOND, "global": {"max": 4, "instance_num": 2}}) as pipe:
        calling = [threading.Thread(target=call, args=(n,)) for n in range(threads)]
        for one in calling:
            one.start()
        for one in calling:
            one.join(LATE_S)
        counts = pipe.stats()["nodes"]
    expected = {
        (n, k): ["d", ["b", ["a", (n, k)]], ["c", ["a", (n, k)]]]
        for n in range(threads)
        for k in range(30)
    }
    assert answers == expected
    assert {name: one["ok"] for name, one in counts.items()} == dict.fromkeys("abcd", threads * 30)
