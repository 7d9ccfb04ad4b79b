"""Batches that an event loop sends to a process, and whose answers it reads: no thread stands between."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.errors import BackendError, DeadlineExceededError, InstanceLostError

WAIT_S = 60.0
"""A test that hangs fails after this."""

made_in = []


class Made:
    """Notes the thread in which it is unpickled here."""

    def __init__(self, value):
        self.value = value

    def __reduce__(self):
        return make, (self.value,)


def make(value):
    made_in.append(threading.get_ident())
    return Made(value)


class LoopedPart(headrace.Backend):
    """Does what the data says: a number doubles, "die" ends the process, ("wait", path) waits for a file to be readable."""

    max = 4

    def forward(self, batch):
        for request in batch:
            data = request["data"]
            if isinstance(data, str) and data == "die":
                os._exit(3)
            if isinstance(data, str) and data == "wrong":
                raise ValueError("this one")
            if isinstance(data, tuple) and data[0] == "wait":
                Path(data[1]).read_bytes()
            if isinstance(data, str) and data == "made":
                request["result"] = Made(1)
            else:
                request["result"] = data * 2


class LoopedAgain(LoopedPart):
    """As above, where an item may run once more."""

    rerun = True

    def forward(self, batch):
        for request in batch:
            value, mark = request["data"]
            if mark is not None and not Path(mark).exists():
                Path(mark).touch()
                os._exit(3)
            request["result"] = value * 2


headrace.register("LoopedPart", LoopedPart)
headrace.register("LoopedAgain", LoopedAgain)


class Loop:
    """An event loop in a thread of its own, as servers have one."""

    def __init__(self, make=asyncio.new_event_loop):
        self.loop = make()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_S)

    def end(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


LOOPS = ["asyncio", "uvloop"]
"""What makes loops. A loop of uvloop lets descriptors not wait any more."""


def maker(name):
    return pytest.importorskip(name).new_event_loop


@pytest.fixture(params=LOOPS)
def loop(request):
    given = Loop(maker(request.param))
    yield given
    if given.thread.is_alive():
        given.end()


@contextmanager
def pipe_of(backend="LoopedPart", **more):
    with headrace.pipe({"backend": f"Process[{backend}]", **more}) as pipe:
        yield pipe


async def outcomes(pipe, requests, wait_s=WAIT_S, **more):
    """Begin all in one turn. Return result or error of each, in their order."""
    told = asyncio.Event()
    left = [len(requests)]

    def done(_):
        left[0] -= 1
        if not left[0]:
            told.set()

    calls = [pipe.call_soon(one, done, **more) for one in requests]
    await asyncio.wait_for(told.wait(), wait_s)
    return [one.request["result"] if one.error is None else one.error for one in calls]


def test_an_error_is_the_one_of_its_batch(loop):
    with pipe_of() as pipe:
        one, other = loop.do(outcomes(pipe, [{"data": "wrong"}, {"data": 4}]))
        assert isinstance(one, BackendError)
        assert isinstance(other, BackendError)  # the batch failed
        assert loop.do(outcomes(pipe, [{"data": 3}])) == [6]


def test_large_arrays_are_whole(loop):
    rows = [np.full((n, 1 << 18), n, np.float32) for n in (1, 3, 9)]  # 1, 3 and 9 MiB
    with pipe_of() as pipe:
        for row in rows:
            (found,) = loop.do(outcomes(pipe, [{"data": row}]))
            np.testing.assert_array_equal(found, 2 * row)
        for found, row in zip(
            loop.do(outcomes(pipe, [{"data": row} for row in rows])), rows, strict=True
        ):
            np.testing.assert_array_equal(found, 2 * row)


def test_a_death_is_told_to_its_batch_alone(loop):
    with pipe_of() as pipe:
        (error,) = loop.do(outcomes(pipe, [{"data": "die"}]))
        assert isinstance(error, InstanceLostError)
        assert "with status 3" in str(error)
        assert loop.do(outcomes(pipe, [{"data": 5}])) == [10]
        assert pipe.stats()["processes"]["main"]["ended"] == 1


def test_after_a_death_each_item_runs_once_more_where_that_may_be(loop, tmp_path):
    with pipe_of("LoopedAgain") as pipe:
        marked = {"data": (1, str(tmp_path / "mark"))}
        others = [{"data": (n, None)} for n in (2, 3)]
        assert loop.do(outcomes(pipe, [marked, *others])) == [2, 4, 6]


def test_a_deadline_frees_its_caller_and_the_others_have_their_answers(loop, tmp_path):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    with pipe_of() as pipe:

        async def main():
            (error,) = await outcomes(pipe, [{"data": ("wait", gate)}], timeout=0.05)
            assert isinstance(error, DeadlineExceededError)
            assert not error.abandoned  # it works on a copy
            waiting = asyncio.ensure_future(outcomes(pipe, [{"data": n} for n in range(3)]))
            await asyncio.sleep(0)
            os.close(os.open(gate, os.O_WRONLY))
            return await waiting

        assert loop.do(main()) == [0, 2, 4]


def test_what_runs_long_after_its_deadline_is_killed(loop, tmp_path):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    with pipe_of(kill_after_ms=50) as pipe:
        (error,) = loop.do(outcomes(pipe, [{"data": ("wait", gate)}], timeout=0.05))
        assert isinstance(error, DeadlineExceededError)
        assert loop.do(outcomes(pipe, [{"data": 1}])) == [2]
        assert pipe.stats()["processes"]["main"]["ended"] == 1


def test_a_loop_that_ends_leaves_the_instance_to_others(loop, tmp_path):
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    with pipe_of() as pipe:

        async def begin():
            pipe.call_soon({"data": ("wait", gate)}, print)
            await asyncio.sleep(0)

        loop.do(begin())
        loop.end()
        os.close(
            os.open(gate, os.O_WRONLY)
        )  # from here on the batch has its answer, which no loop reads
        assert pipe({"data": 7}, timeout=WAIT_S)["result"] == 14
        assert pipe.stats()["nodes"]["main"]["ok"] == 2


def test_a_loop_that_stands_still_leaves_the_instance_to_others(loop):
    begun, done, told = threading.Event(), threading.Event(), []
    with pipe_of() as pipe:

        def stand_still():
            begun.set()
            done.wait(WAIT_S)

        def begin():
            pipe.call_soon({"data": 1}, told.append)
            loop.loop.call_soon(stand_still)  # after the batch was sent

        loop.loop.call_soon_threadsafe(begin)
        assert begun.wait(WAIT_S)
        assert pipe({"data": 7}, timeout=WAIT_S)["result"] == 14
        done.set()
        loop.do(asyncio.sleep(0))
    assert [call.request["result"] for call in told] == [2]


def test_closing_inside_of_the_loop_waits_for_what_is_away(loop):
    with pipe_of() as pipe:

        async def main():
            told = []
            pipe.call_soon({"data": 1}, told.append)
            await asyncio.sleep(0)
            pipe.close()
            await asyncio.sleep(0)
            return told

        told = loop.do(main())
        assert [call.request.get("result") for call in told] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOOPS)
def test_loops_in_turn_and_threads_beside_have_their_own_answers(kind):
    """Random clients of two loops and of threads, some of whose requests end the process.

    Each of these makes a process start anew. How long all of them take is the machine's affair, so nothing here bounds it.
    """
    with pipe_of(instance_num=2) as pipe:
        loops = [Loop(maker(kind)), Loop(maker(kind))]

        async def client(seed):
            rng, lost = random.Random(seed), 0
            for number in range(60):
                value = 1000 * seed + number
                data = "die" if rng.random() < 0.02 else value
                (found,) = await outcomes(pipe, [{"data": data}], wait_s=None)
                if isinstance(found, InstanceLostError):
                    lost += 1
                else:
                    assert found == 2 * value
            return lost

        def thread(seed, lost):
            for number in range(60):
                value = 1000 * seed + number
                try:
                    assert pipe({"data": value})["result"] == 2 * value
                except InstanceLostError:
                    lost.append(seed)

        async def clients(first):
            return await asyncio.gather(*(client(first + n) for n in range(6)))

        lost = []
        running = [
            asyncio.run_coroutine_threadsafe(clients(10 * n + 1), one.loop)
            for n, one in enumerate(loops)
        ]
        threads = [threading.Thread(target=thread, args=(100 + n, lost)) for n in range(3)]
        for one in threads:
            one.start()
        for one in running:
            one.result()
        for one in threads:
            one.join()
        for one in loops:
            one.end()
        stats = pipe.stats()["nodes"]["main"]
        assert stats["submitted"] == 2 * 6 * 60 + 3 * 60
        assert stats["ok"] + sum(stats["failed"].values()) == stats["submitted"]
        assert stats["waiting"] == 0
