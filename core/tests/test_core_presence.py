"""Instances that are away for a while, or lost while nothing runs."""

from __future__ import annotations

from concurrent.futures import TimeoutError as NotYetError

import pytest

import headrace
from headrace.errors import InstanceLostError


@pytest.fixture
def pipe(shortcut):
    with headrace.pipe({"backend": "S[Identity,Identity]", "instance_num": 2}) as pipe:
        yield pipe


def instances_of(pipe):
    return pipe._engine.nodes[0].instances


def set_away(instance, away):
    (instance.liveness.away if away else instance.liveness.back)("a part of it")


def batches(pipe):
    return [one["batches"] for one in pipe.stats()["nodes"]["main"]["instances"]]


def test_while_an_instance_is_away_the_others_serve(pipe):
    set_away(instances_of(pipe)[0], True)
    for number in range(10):
        assert pipe({"data": number})["result"] == number
    assert batches(pipe) == [0, 10]
    assert pipe.ready
    set_away(instances_of(pipe)[0], False)
    for number in range(10):
        pipe({"data": number})
    assert batches(pipe)[0] > 0


def test_while_all_are_away_requests_wait(pipe):
    for instance in instances_of(pipe):
        set_away(instance, True)
    futures = pipe.submit([{"data": 1}, {"data": 2}])
    with pytest.raises(NotYetError):
        futures[0].result(timeout=0.01)
    assert pipe.stats()["nodes"]["main"]["waiting"] == 2
    set_away(instances_of(pipe)[1], False)
    assert [one.result()["result"] for one in futures] == [1, 2]


def test_an_instance_lost_while_it_is_away_fails_what_only_it_could_serve(pipe):
    for instance in instances_of(pipe):
        set_away(instance, True)
    future = pipe.submit({"data": 1})
    for instance in instances_of(pipe):
        instance.liveness.lost = True
        instance.liveness.changed()
    with pytest.raises(InstanceLostError):
        future.result()
    assert not pipe.ready
    pipe.reload("main", {})
    assert pipe({"data": 3})["result"] == 3


def test_an_instance_that_was_replaced_while_it_was_away_does_not_come_back(pipe):
    old = instances_of(pipe)
    for instance in old:
        set_away(instance, True)
    pipe.reload("main", {})
    for instance in old:
        set_away(instance, False)
    for number in range(10):
        assert pipe({"data": number})["result"] == number
    assert sum(batches(pipe)) == 10
