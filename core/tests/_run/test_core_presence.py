"""Instances that are away for a while, or lost while nothing runs."""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotYetError

import pytest

import headrace
from headrace.errors import InstanceLostError
from headrace.hookspecs import attached


@pytest.fixture
def contexts():
    """Register ``Leaves``; return the contexts of its instances, in order of their making."""
    found = []

    class Leaves(headrace.Backend):
        def init(self, options, context):
            found.append(context)

        def forward(self, batch):
            for request in batch:
                if request["data"] == "lose":
                    raise InstanceLostError("told to")
                request["result"] = request["data"]

    headrace.register("Leaves", Leaves, replace=True)
    return found


@pytest.fixture
def pipe(contexts, shortcut):
    with headrace.pipe({"backend": "S[Leaves,Identity]", "instance_num": 2}) as pipe:
        yield pipe


def batches(pipe):
    return [one["batches"] for one in pipe.stats()["nodes"]["main"]["instances"]]


def test_while_an_instance_is_away_the_others_serve(pipe, contexts):
    contexts[0].health.away()
    for number in range(10):
        assert pipe({"data": number})["result"] == number
    assert batches(pipe) == [0, 10]
    assert pipe.ready
    contexts[0].health.back()
    for number in range(10):
        pipe({"data": number})
    assert batches(pipe)[0] > 0


def test_while_all_are_away_requests_wait(pipe, contexts):
    for one in contexts:
        one.health.away()
    futures = pipe.submit([{"data": 1}, {"data": 2}])
    with pytest.raises(NotYetError):
        futures[0].result(timeout=0.01)
    assert pipe.stats()["nodes"]["main"]["waiting"] == 2
    contexts[1].health.back()
    assert [one.result()["result"] for one in futures] == [1, 2]


def test_where_the_others_are_lost_requests_wait_for_one_that_is_away(pipe, contexts):
    contexts[0].health.away()
    with pytest.raises(InstanceLostError):
        pipe({"data": "lose"})
    future = pipe.submit({"data": 1})
    with pytest.raises(NotYetError):
        future.result(timeout=0.01)
    contexts[0].health.back()
    assert future.result(60)["result"] == 1
    with pytest.raises(InstanceLostError):
        pipe({"data": "lose"})
    assert not pipe.ready


def test_a_probe_hears_that_an_instance_is_away_and_back(pipe, contexts):
    class Heard:
        def __init__(self):
            self.states = []

        def instance_changed(self, *args):
            self.states.append(args)

    probe = Heard()
    with attached(pipe, probe):
        del probe.states[:]
        contexts[1].health.away()
        pipe({"data": 1})
        contexts[1].health.back()
        assert probe.states == [("main", 1, "paused"), ("main", 1, "ready")]
        pipe.close()
    assert [state for *_, state in probe.states[2:]] == ["closed", "closed"]
