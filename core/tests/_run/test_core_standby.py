"""Callers that find all instances busy stand by for a while, as those who have not come yet."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress

import internals
import pytest

import headrace
from headrace.errors import BackendError, ClosedError, ContractError, InstanceLostError

OWN = {"backend": "OwnGate", "max": 2}
LONG_S = 3600


def spin(seconds):
    """Take so long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


# Brief backends, which callers run.


@pytest.fixture
def brief(gate, client):
    """Return a function that makes a pipeline of a brief backend, whose instances all run a request that waits at the gate."""

    class Brief(headrace.Backend):
        max = 1

        def forward(self, batch):
            spin(30e-6)
            if type(batch[0]["data"]) is not str:
                gate.run(batch)
            batch[0]["result"] = batch[0]["data"]

    headrace.register("Brief", Brief, replace=True)

    def make(**keys):
        pipe = headrace.pipe({"backend": "Brief", **keys})
        for _ in range(20):
            pipe({"data": "brief"})
        clients = [client(pipe, {"data": n}) for n in range(keys.get("instance_num", 1))]
        gate.wait_entered(len(clients))
        return pipe, clients

    return make


@pytest.mark.parametrize("instances", [1, 2])
def test_who_frees_an_instance_calls_in_who_stands_by(
    brief, client, gate, until, monkeypatch, instances
):
    internals.stand_by(monkeypatch, LONG_S)
    pipe, clients = brief(instance_num=instances)
    with pipe:
        for n in range(6):
            clients.append(client(pipe, {"data": 10 + n}))
            until(lambda n=n: internals.standing_by(pipe) == n + 1)
        assert pipe.stats()["nodes"]["main"]["waiting"] == 0
        gate.open()
        assert sorted(one.outcome()["result"] for one in clients) == [
            *range(instances),
            *range(10, 16),
        ]
        if instances == 1:
            assert gate.batches == [[0], *([n] for n in range(10, 16))]
        assert pipe.stats()["nodes"]["main"]["batch_size"]["histogram"] == {"1": 26 + instances}


def test_nobody_stands_by_longer_than_allowed(brief, client, gate, until, monkeypatch):
    internals.stand_by(monkeypatch, 0.001)
    pipe, clients = brief()
    with pipe:
        clients += [client(pipe, {"data": n}) for n in (1, 2)]
        until(lambda: internals.in_queue(pipe) == 2)
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2]


def test_what_is_submitted_beside_them_goes_first_and_keeps_nobody(
    brief, client, gate, until, monkeypatch
):
    internals.stand_by(monkeypatch, LONG_S)
    pipe, clients = brief()
    with pipe:
        clients.append(client(pipe, {"data": 1}))
        until(lambda: internals.standing_by(pipe) == 1)
        future = pipe.submit({"data": 2})
        until(lambda: internals.in_queue(pipe) == 1)
        clients.append(client(pipe, {"data": 3}))
        until(lambda: internals.in_queue(pipe) + internals.standing_by(pipe) == 3)
        gate.open()
        assert future.result()["result"] == 2
        assert [one.outcome()["result"] for one in clients] == [0, 1, 3]
        assert gate.batches[:2] == [[0], [2]]


def test_a_close_refuses_them_as_those_who_have_not_come(brief, client, gate, until, monkeypatch):
    internals.stand_by(monkeypatch, 0.05)
    pipe, clients = brief()
    clients.append(client(pipe, {"data": 1}))
    until(lambda: internals.standing_by(pipe) == 1)
    closing = client(pipe.close)
    with pytest.raises(ClosedError) as raised:
        clients[1].outcome()
    assert raised.value.begun is False
    gate.open()
    assert clients[0].outcome()["result"] == 0
    closing.outcome()


def test_a_lost_instance_fails_them(brief, client, gate, until, monkeypatch):
    internals.stand_by(monkeypatch, 0.05)
    gate.raises[0] = InstanceLostError("gone")
    pipe, clients = brief()
    with pipe:
        clients.append(client(pipe, {"data": 1}))
        until(lambda: internals.standing_by(pipe) == 1)
        gate.open()
        for one in clients:
            with pytest.raises(InstanceLostError):
                one.outcome()


def test_a_request_from_another_node_enters_at_once(brief, client, gate, until, monkeypatch):
    internals.stand_by(monkeypatch, LONG_S)
    pipe, clients = brief()
    with (
        pipe,
        headrace.pipe(
            {"a": {"backend": "Identity", "next": "b"}, "b": {"backend": "Brief"}}
        ) as line,
    ):
        for _ in range(20):
            line({"data": "brief"})
        clients.append(client(line, {"data": 1}))
        gate.wait_entered()
        clients.append(client(line, {"data": 2}))
        until(lambda: line.stats()["nodes"]["b"]["waiting"] == 1)
        gate.open()
        assert [one.outcome()["result"] for one in clients] == [0, 1, 2]


# Between two long batches.


@pytest.fixture
def long(gate, client, until, monkeypatch):
    """Return a pipeline of a backend with long batches of up to 3, of which one runs request 0, and 1 and 2 wait."""

    class Long(headrace.Backend):
        max = 3

        def forward(self, batch):
            spin(2e-3)
            gate.run(batch)
            for request in batch:
                request["result"] = request["data"]

    headrace.register("Long", Long, replace=True)
    with headrace.pipe({"backend": "Long"}) as pipe:
        clients = [client(pipe, {"data": 0}, timeout=60)]  # a thread of the pool runs it
        gate.wait_entered()
        for n in (1, 2):
            clients.append(client(pipe, {"data": n}))
            until(lambda n=n: internals.in_queue(pipe) == n)
        yield pipe, clients
        gate.open()


def test_a_batch_waits_a_moment_for_callers_that_were_just_answered(
    gate, client, long, monkeypatch
):
    pipe, clients = long
    internals.callers_come_again_within(monkeypatch, 60)
    gate.let_go()
    assert clients[0].outcome()["result"] == 0
    assert internals.in_queue(pipe) == 2
    clients[0] = client(pipe, {"data": 3})
    gate.wait_entered()
    gate.open()
    assert [one.outcome()["result"] for one in clients] == [3, 1, 2]
    assert gate.batches == [[0], [1, 2, 3]]


def test_if_they_do_not_come_again_it_begins(gate, long):
    _, clients = long
    gate.let_go()
    assert clients[0].outcome()["result"] == 0
    gate.wait_entered()
    gate.open()
    assert [one.outcome()["result"] for one in clients[1:]] == [1, 2]
    assert gate.batches == [[0], [1, 2]]


def test_callers_are_told_while_their_thread_runs_the_next_batch(gate, client, long, until):
    pipe, clients = long
    clients += [client(pipe, {"data": n}) for n in (3, 4, 5, 6)]
    until(lambda: internals.in_queue(pipe) == 6)
    gate.let_go(2)
    assert {one.outcome()["result"] for one in clients[:4]} >= {0}
    gate.wait_entered(2)
    assert len({*gate.idents[1:]}) == 1
    gate.open()
    assert [one.outcome()["result"] for one in clients] == [*range(7)]


# What a caller may cost another one.


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, KeyboardInterrupt])
@pytest.mark.parametrize("keys", [{}, {"timeout": 60}, {"priority": 1}])
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_backend_that_raises_what_is_no_exception_fails_the_request(
    gate, client, until, kind, keys, is_busy
):
    gate.raises[1] = kind("odd")
    with headrace.pipe({"backend": "Gate"}) as pipe:
        clients = [client(pipe, {"data": 0})] if is_busy else []
        gate.wait_entered(len(clients))
        clients.append(client(pipe, {"data": 1}, **keys))
        if is_busy:
            until(lambda: internals.in_queue(pipe) == 1)
        gate.open()
        with pytest.raises(BackendError, match=f"Gate raised {kind.__name__}") as raised:
            clients.pop().outcome()
        assert type(raised.value.__cause__) is kind
        assert pipe({"data": 2})["result"] == 2


def test_a_thread_deep_in_its_calls_runs_nothing_for_others(gate, client, until):
    def dive(levels):
        return dive(levels - 1) if levels else (threading.get_ident(), pipe({"data": 1}))

    with headrace.pipe({"backend": "Gate", "max": 1}) as pipe:
        clients = [client(pipe, {"data": 0})]
        gate.wait_entered()
        deep = client(dive, sys.getrecursionlimit() // 2)
        until(lambda: internals.in_queue(pipe) == 1)
        clients.append(client(pipe, {"data": 2}))
        until(lambda: internals.in_queue(pipe) == 2)
        gate.open()
        ident, request = deep.outcome()
        assert request["result"] == 1
        assert [one.outcome()["result"] for one in clients] == [0, 2]
        assert ident not in gate.idents


class Calls:
    """Calls a pipeline when it goes, from whatever thread."""

    def __init__(self, pipe):
        self.pipe = pipe

    def __del__(self):
        with suppress(ContractError, ClosedError):
            self.pipe({"data": None})


@pytest.mark.parametrize("owns_thread", [False, True])
@pytest.mark.parametrize("way", ["submit", "call", "list", "timeout"])
def test_a_destructor_that_calls_the_pipeline_holds_up_nobody(client, owns_thread, way):
    class Empties(headrace.Backend):
        max = 2

        def forward(self, batch):
            for request in batch:
                request["data"] = request["result"] = None

    Empties.owns_thread = owns_thread
    headrace.register("Empties", Empties, replace=True)
    with headrace.pipe({"backend": "Empties"}) as pipe:
        ways = {
            "submit": lambda: pipe.submit({"data": Calls(pipe)}),
            "call": lambda: pipe({"data": Calls(pipe)}),
            "list": lambda: pipe([{"data": Calls(pipe)} for _ in range(3)]),
            "timeout": lambda: pipe({"data": Calls(pipe)}, timeout=60),
        }
        clients = [client(lambda: [ways[way]() and None for _ in range(100)]) for _ in range(3)]
        for one in clients:
            one.outcome()
        assert pipe({"data": 1})["result"] is None
