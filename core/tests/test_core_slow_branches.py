"""Slow branches: workers run them at the same time."""

from __future__ import annotations

import threading

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


def test_a_failing_branch_cancels_what_has_not_started(ran, gate, until):
    config = {**DIAMOND, "c": {"backend": "Gate"}, "d": {"backend": "Noting"}}
    may_fail = threading.Event()

    def fail():
        assert may_fail.wait(LATE_S)
        raise ValueError("b")

    ran.before = {"b": fail}
    with headrace.pipe(config) as pipe:
        busy = gate.entered(pipe.submit({"data": 1, "node_name": "c"}))
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
