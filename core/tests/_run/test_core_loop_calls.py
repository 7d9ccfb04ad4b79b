"""Requests that are begun in an event loop: ``call_soon``."""

from __future__ import annotations

import asyncio
import threading

import pytest

import headrace
from headrace.errors import BackendError, ClosedError, DeadlineExceededError, InputError

WAIT_S = 60.0
"""A test that hangs fails after this."""


class LoopGate(headrace.Backend):
    """Doubles the data, once it may, and notes its batches and its threads."""

    max = 8
    batches: list
    threads: set

    def forward(self, batch):
        type(self).batches.append([request["data"] for request in batch])
        type(self).threads.add(threading.get_ident())
        assert type(self).opened.wait(WAIT_S)
        for request in batch:
            if request["data"] == "wrong":
                raise ValueError("this one")
            request["result"] = 2 * request["data"]


@pytest.fixture
def backend():
    cls = LoopGate
    cls.batches, cls.threads, cls.opened = [], set(), threading.Event()
    cls.opened.set()
    headrace.register(cls.__name__, cls)
    return cls


def never(call):
    raise AssertionError(call)


async def outcomes(pipe, requests, **more):
    """Begin all requests in one turn, and return result or error of each, in order of their ends."""
    ended, told = [], asyncio.Event()

    def done(call):
        ended.append(call)
        if len(ended) == len(requests):
            told.set()

    calls = [pipe.call_soon(one, done, **more) for one in requests]
    assert len({id(call) for call in calls}) == len(requests)
    await asyncio.wait_for(told.wait(), WAIT_S)
    assert {id(call) for call in ended} == {id(call) for call in calls}
    return [one.request.get("result", one.error) for one in ended]


def test_each_request_has_its_own_outcome(backend):
    async def main(pipe):
        found = await outcomes(pipe, [{"data": n} for n in range(20)])
        assert sorted(found) == [2 * n for n in range(20)]

    with headrace.pipe({"backend": backend.__name__}) as pipe:
        asyncio.run(main(pipe))
        assert pipe.stats()["nodes"]["main"]["submitted"] == 20


def test_requests_of_one_turn_share_a_batch():
    LoopGate.batches, LoopGate.threads, LoopGate.opened = [], set(), threading.Event()
    LoopGate.opened.set()
    headrace.register("LoopGate", LoopGate)
    with headrace.pipe({"backend": "LoopGate"}) as pipe:
        asyncio.run(outcomes(pipe, [{"data": n} for n in range(8)]))
    assert LoopGate.batches == [[*range(8)]]


def test_the_loop_runs_no_batch(backend):
    async def main(pipe):
        return threading.get_ident(), await outcomes(pipe, [{"data": 1}])

    with headrace.pipe({"backend": f"S[{backend.__name__},Identity]"}) as pipe:
        ident, found = asyncio.run(main(pipe))
    assert found == [2]
    assert ident not in backend.threads


def test_a_request_with_a_timeout_fails_in_time():
    LoopGate.batches, LoopGate.threads, LoopGate.opened = [], set(), threading.Event()
    headrace.register("LoopGate", LoopGate)

    async def main(pipe):
        (error,) = await outcomes(pipe, [{"data": 1}], timeout=0.05)
        LoopGate.opened.set()
        return threading.get_ident(), error

    with headrace.pipe({"backend": "LoopGate"}) as pipe:
        ident, error = asyncio.run(main(pipe))
    assert isinstance(error, DeadlineExceededError)
    assert ident not in LoopGate.threads


def test_what_fails_is_told_and_what_is_no_request_is_raised(backend):
    async def main(pipe):
        (error,) = await outcomes(pipe, [{"data": "wrong"}])
        assert isinstance(error, BackendError)
        for wrong in ([{"data": 1}], {"date": 1}, "data"):
            with pytest.raises(InputError):
                pipe.call_soon(wrong, never)
        assert await outcomes(pipe, [{"data": 3}]) == [6]

    with headrace.pipe({"backend": backend.__name__}) as pipe:
        asyncio.run(main(pipe))
        with pytest.raises(RuntimeError, match="no running event loop"):
            pipe.call_soon({"data": 1}, never)


def test_a_dict_that_is_on_its_way_is_refused():
    LoopGate.batches, LoopGate.threads, LoopGate.opened = [], set(), threading.Event()
    headrace.register("LoopGate", LoopGate)

    async def main(pipe):
        request, told = {"data": 1}, asyncio.Event()
        pipe.call_soon(request, lambda _: told.set())
        with pytest.raises(InputError, match="on its way"):
            pipe.call_soon(request, never)
        LoopGate.opened.set()
        await asyncio.wait_for(told.wait(), WAIT_S)
        assert await outcomes(pipe, [request]) == [2]

    with headrace.pipe({"backend": "LoopGate"}) as pipe:
        asyncio.run(main(pipe))


@pytest.mark.parametrize("entered", [False, True])
def test_what_is_cancelled_is_told_to_nobody(entered):
    """Before it has entered, and while it waits behind another one."""
    LoopGate.batches, LoopGate.threads, LoopGate.opened = [], set(), threading.Event()
    headrace.register("LoopGate", LoopGate)

    async def main(pipe):
        told = asyncio.Event()
        pipe.call_soon({"data": 1}, lambda _: told.set())
        while not LoopGate.batches:
            await asyncio.sleep(0)
        request = {"data": 2}
        call = pipe.call_soon(request, never)
        if entered:
            await asyncio.sleep(0)
        assert call.cancel() is False
        LoopGate.opened.set()
        await asyncio.wait_for(told.wait(), WAIT_S)
        assert request == {"data": 2}
        assert await outcomes(pipe, [request]) == [4]

    with headrace.pipe({"backend": "LoopGate"}) as pipe:
        asyncio.run(main(pipe))
    assert [2] in LoopGate.batches


def test_what_runs_is_abandoned():
    LoopGate.batches, LoopGate.threads, LoopGate.opened = [], set(), threading.Event()
    headrace.register("LoopGate", LoopGate)

    async def main(pipe):
        call = pipe.call_soon({"data": 1}, never)
        while not LoopGate.batches:
            await asyncio.sleep(0)
        assert call.cancel() is True
        LoopGate.opened.set()

    with headrace.pipe({"backend": "LoopGate"}) as pipe:
        asyncio.run(main(pipe))


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_was_begun_before_the_pipeline_closes_is_answered(nodes):
    """It has not entered yet: the loop lets it in at the end of its turn, or the close does."""
    LoopGate.batches, LoopGate.threads, LoopGate.opened = [], set(), threading.Event()
    LoopGate.opened.set()
    headrace.register("LoopGate", LoopGate)

    async def main(pipe):
        ended, told = [], asyncio.Event()

        def done(call):
            ended.append(call.request.get("result", call.error))
            if len(ended) == 3:
                told.set()

        for n in range(3):
            pipe.call_soon({"data": n}, done)
        closing = threading.Thread(target=pipe.close)
        closing.start()
        closing.join(WAIT_S / 6)  # the loop stands still meanwhile
        await asyncio.wait_for(told.wait(), WAIT_S)
        with pytest.raises(ClosedError):
            pipe.call_soon({"data": 1}, never)
        return sorted(ended)

    node = {"backend": "LoopGate"}
    config = node if nodes == 1 else {"main": {**node, "next": "end"}, "end": node}
    assert asyncio.run(main(headrace.pipe(config))) == [nodes * 2 * n for n in range(3)]
