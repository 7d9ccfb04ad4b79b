"""Coroutines of an event loop that runs in another thread than the main one, where requests come in by a shorter way.

What is in the way of a request must be found there too: each case is compared with what ``pipe.submit`` gives.
"""

from __future__ import annotations

import asyncio

import pytest

import headrace
from headrace.errors import ClosedError, ContractError, InstanceLostError


@pytest.fixture
def loop(client):
    """Give a function that runs a coroutine in the event loop of a thread of its own, and gives its future."""
    made = asyncio.new_event_loop()
    thread = client(made.run_forever)
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, made)
    made.call_soon_threadsafe(made.stop)
    thread.outcome()
    made.close()


def raised(future):
    error = future.exception(timeout=60)
    return type(error), getattr(error, "code", None), str(error)


def test_requests_come_in_are_batched_and_counted(gate, loop, waiting):
    with headrace.pipe({"backend": "Gate", "max": 4}) as pipe:
        first = loop(pipe.call_async({"data": "first"}))
        gate.wait_entered()
        others = [
            loop(pipe.call_async({"data": n, "result": "stale"}, priority=n % 2)) for n in range(6)
        ]
        waiting(pipe, 6)
        gate.open()
        assert first.result(60) == {"data": "first", "result": "first"}
        assert [one.result(60)["result"] for one in others] == list(range(6))
        assert gate.batches[1:] == [[1, 3, 5, 0], [2, 4]]
        assert pipe.stats()["nodes"]["main"]["submitted"] == 7


def test_a_full_queue_refuses(gate, loop, waiting):
    with headrace.pipe({"backend": "Gate", "queue_size": 2, "queue_full": "reject"}) as pipe:
        running = loop(pipe.call_async({"data": 0}))
        gate.wait_entered()
        queued = [loop(pipe.call_async({"data": n})) for n in (1, 2)]
        waiting(pipe, 2)
        late = loop(pipe.call_async({"data": 3}))
        assert raised(late)[1] == "overloaded"
        gate.open()
        for one in (running, *queued):
            one.result(60)


def test_who_waits_for_room_comes_in_by_turns(gate, loop, client, waiting):
    with headrace.pipe({"backend": "Gate", "queue_size": 1}) as pipe:
        running = client(pipe, {"data": "runs"})
        gate.wait_entered()
        calls = [loop(pipe.call_async({"data": n})) for n in range(3)]
        waiting(pipe, 3)
        gate.let_go()  # the first comes in, a newcomer still stands behind the others
        gate.wait_entered()
        calls.append(loop(pipe.call_async({"data": 3})))
        waiting(pipe, 3)
        gate.open()
        assert [one.result(60)["result"] for one in calls] == [0, 1, 2, 3]
        running.outcome()
        assert gate.batches == [["runs"], [0], [1], [2], [3]]


def test_no_more_weight_than_an_instance_takes(gate, loop):
    with headrace.pipe({"backend": "Gate", "max": 4}) as pipe:
        heavy = {"data": 0, "request_size": 5}
        given = raised(loop(pipe.call_async(dict(heavy))))
        assert given == raised(pipe.submit(dict(heavy)))
        assert given[1] == "batch_range"
        assert gate.batches == []


def test_a_deadline_frees_who_waits(gate, loop, waiting, expire):
    with headrace.pipe({"backend": "Gate"}) as pipe:
        running = loop(pipe.call_async({"data": 0}))
        gate.wait_entered()
        late = loop(pipe.call_async({"data": 1}, timeout=60))
        waiting(pipe, 1)
        expire(pipe, 1)
        assert raised(late)[1] == "deadline"
        gate.open()
        running.result(60)


def test_a_pipeline_that_drains_refuses(gate, loop, client, until):
    pipe = headrace.pipe({"backend": "Gate"})
    running = loop(pipe.call_async({"data": 0}))
    gate.wait_entered()
    closing = client(pipe.close)
    until(lambda: not pipe.ready)
    assert raised(loop(pipe.call_async({"data": 1})))[0] is ClosedError
    gate.open()
    running.result(60)
    closing.outcome()


def test_the_last_instance_is_lost(loop):
    class Loses(headrace.Backend):
        def forward(self, batch):
            raise InstanceLostError("gone")

    headrace.register("Loses", Loses, replace=True)
    with headrace.pipe({"backend": "Loses"}) as pipe:
        for _ in range(2):
            assert raised(loop(pipe.call_async({"data": 0})))[0] is InstanceLostError


def test_a_loop_inside_a_backend_does_not_wait_for_its_own_instance(gate, client):
    gate.shut = False
    inner = []

    def again():
        try:
            asyncio.run(pipe.call_async({"data": "inner"}))
        except ContractError as error:
            inner.append(str(error))

    gate.calls["outer"] = again
    with headrace.pipe({"backend": "Gate"}) as pipe:
        assert client(pipe, {"data": "outer"}).outcome()["result"] == "outer"
        assert "own pipeline" in inner[0]
