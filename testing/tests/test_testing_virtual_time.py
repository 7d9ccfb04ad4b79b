"""Virtual time: what is timed happens at the times that are worked out by hand, at once, and nothing of it is left."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from time import sleep

import pytest

import headrace
from headrace.errors import ClosedError, ContractError, DeadlineExceededError
from headrace_testing import Recording, Slow, virtual_time

pytestmark = [
    pytest.mark.skipif(
        os.name == "nt" or sys.implementation.name != "cpython", reason="its threads are not known"
    ),
    pytest.mark.first("write a backend of your own and certify it: its tests run in virtual time"),
]

HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def words():
    headrace.register("Slow", Slow, replace=True)
    headrace.register("Recording", Recording, replace=True)
    Recording.clear()


def originals():
    modules = time, threading, queue, sys.modules["_thread"], sys.modules["selectors"]
    return [{**vars(module)} for module in modules], signal.getsignal(signal.SIGINT), sleep


@pytest.fixture(autouse=True)
def nothing_is_left():
    before, threads = originals(), {*sys._current_frames()}
    yield
    assert originals() == before
    # A thread from before may wait for a lock that a module made as it was imported in a block of another test.
    frames = {
        ident: frame for ident, frame in sys._current_frames().items() if ident not in threads
    }
    stacks = [traceback.extract_stack(frame) for frame in frames.values()]
    assert not [at for stack in stacks for at in stack if "virtual" in Path(at.filename).parts]


def at(times, *, clock, call):
    """Start a thread per time, which makes a call then; give what each gave and when, in order of the times."""
    found = [None] * len(times)

    def run(place, when):
        sleep(when)
        try:
            value = call(place)
        except headrace.errors.HeadraceError as error:
            value = type(error)
        found[place] = (value, clock())

    threads = [threading.Thread(target=run, args=given) for given in enumerate(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_hours_pass_at_once_and_to_the_nanosecond():
    real_s = time.monotonic()
    with virtual_time() as clock:
        assert clock() == 0
        for _ in range(7 * 24 * 10):
            time.sleep(HOUR_S / 10)
        assert clock() == 7 * 24 * HOUR_S
    assert time.monotonic() - real_s < 7 * 24 * HOUR_S / 10


def test_all_clocks_agree():
    with virtual_time() as clock:
        before = time.monotonic(), time.perf_counter(), time.time(), time.monotonic_ns() / 1e9
        sleep(2.5)
        after = time.monotonic(), time.perf_counter(), time.time(), time.monotonic_ns() / 1e9
        assert [b - a for a, b in zip(before, after, strict=True)] == pytest.approx([2.5] * 4)
        assert clock() == 2.5


def test_two_instances_sleep_at_the_same_time():
    config = {"backend": "Slow(ms=500)", "max": 2, "instance_num": 2}
    with virtual_time() as clock, headrace.pipe(config) as pipe:
        futures = pipe.submit([{"data": n} for n in range(6)])  # three batches of two
        times = []
        for future in futures:
            future.result()
            times.append(clock())
        assert times == [0.5] * 4 + [1.0] * 2


def test_a_batch_waits_for_company_as_long_as_its_batching_timeout():
    config = {
        "backend": "S[Recording,Slow(ms=500)]",
        "max": 4,
        "instance_num": 2,
        "batching_timeout": 200,
    }
    with virtual_time() as clock, headrace.pipe(config) as pipe:
        found = at([0.0, 0.1, 0.25, 0.4], clock=clock, call=lambda n: pipe({"data": n})["result"])
        # 0 finds all idle. 1 waits until 0.3, while the other instance runs, and 2 comes in time. 3 waits until
        # the first instance is free, at 0.5: nothing else would run on it, but 1 and 2 run until 0.8, so until 0.6.
        assert found == [(0, 0.5), (1, 0.8), (2, 0.8), (3, 1.1)]
        assert Recording.batches == [[0], [1, 2], [3]]


def test_what_has_waited_too_long_fails_at_its_deadline():
    config = {"backend": "Slow(ms=200)", "timeout_ms": 300}
    with virtual_time() as clock, headrace.pipe(config) as pipe:
        found = at([0.0, 0.05, 0.375], clock=clock, call=lambda _: pipe({"data": 1})["result"])
        # The second one runs from 0.2 on, and would end at 0.4; the third one runs after it.
        assert found == [(1, 0.2), (DeadlineExceededError, 0.35), (1, 0.6)]
        with pytest.raises(DeadlineExceededError):
            pipe({"data": 1}, timeout=0.125)
        assert clock() == 0.725


def test_the_greatest_priority_is_next():
    with virtual_time() as clock, headrace.pipe({"backend": "S[Recording,Slow(ms=100)]"}) as pipe:
        at(
            [0.0, 0.01, 0.02, 0.03],
            clock=clock,
            call=lambda n: pipe({"data": n}, priority=(0, 1, 3, 2)[n]),
        )
        assert Recording.batches == [[0], [2], [3], [1]]
        assert clock() == 0.4


def test_a_circle_is_found_after_its_time():
    class Calls(headrace.Backend):
        class Options(headrace.Options):
            to: str

        def init(self, options, context):
            self.to, self.context = options.to, context

        def forward(self, batch):
            sleep(0.1)
            for request in batch:
                if request["data"]:
                    pipes[self.to]({"data": request["data"] - 1})
                request["result"] = 1

    headrace.register("Calls", Calls, replace=True)
    limits = {"global": {"deadlock_after_s": 20}}
    with virtual_time() as clock:
        pipes = {
            name: headrace.pipe({**limits, "backend": f"Calls(to={other})"})
            for name, other in ("ab", "ba")
        }
        found = at([0.0, 0.01], clock=clock, call=lambda n: pipes["ab"[n]]({"data": 1})["result"])
    # The calls within wait from 0.1 and 0.11 on. Who looks at 20.1 looks again a second later, and the newest one
    # fails. The other one runs then.
    assert found == [(1, 21.2), (ContractError, 21.1)]


def test_close_gives_up_after_its_timeout():
    with virtual_time() as clock:
        pipe = headrace.pipe({"backend": "Slow(ms=3600000)"})
        future = pipe.submit({"data": 1})
        sleep(1)
        pipe.close(timeout=5)
        assert 6 <= clock() <= 7
        with pytest.raises(ClosedError):
            future.result()


def test_a_thread_of_its_own_and_a_generator():
    def count(data):
        for number in range(data):
            sleep(1)
            yield number

    headrace.register("Count", count, replace=True)
    with virtual_time() as clock:
        with headrace.pipe({"backend": "BackgroundThread[Slow(ms=250)]"}) as pipe:
            assert pipe({"data": 3})["result"] == 3
            assert clock() == 0.25
        with headrace.pipe({"backend": "Count"}) as pipe:
            times = [clock() for _ in pipe.stream({"data": 3})]
        assert times[:3] == [1.25, 2.25, 3.25]


def test_coroutines():
    async def call(pipe, when, clock):
        await asyncio.sleep(when)
        await pipe.call_async({"data": 1})
        return clock()

    async def main(clock):
        async with headrace.pipe({"backend": "Slow(ms=500)", "instance_num": 2}) as pipe:
            calls = asyncio.gather(*[call(pipe, when, clock) for when in (0, 0.25, 0.3, HOUR_S)])
            assert await asyncio.wait_for(calls, 2 * HOUR_S) == [0.5, 0.75, 1.0, HOUR_S + 0.5]
            assert await asyncio.to_thread(lambda: sleep(1) or clock()) == HOUR_S + 1.5
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(pipe.call_async({"data": 1}), 0.1)
        return clock()

    with virtual_time() as clock:
        assert asyncio.run(main(clock)) == HOUR_S + 2.0


def test_what_the_standard_library_makes_of_locks():
    with virtual_time() as clock:
        assert not threading.Event().wait(10)
        with pytest.raises(queue.Empty):
            queue.Queue().get(timeout=5)
        with pytest.raises(queue.Empty):
            queue.SimpleQueue().get(timeout=5)
        lock = threading.RLock()
        with lock, lock, concurrent.futures.ThreadPoolExecutor(2) as executor:
            slow = [executor.submit(sleep, seconds) for seconds in (3, 4, 3)]
            assert not executor.submit(lock.acquire, timeout=1).result()
            assert (
                clock() == 25
            )  # two threads: until 23 and 24, the third from 23, this one from 24
            done, late = concurrent.futures.wait(slow, timeout=0.5)
            assert (len(done), len(late), clock()) == (2, 1, 25.5)
        assert clock() == 26
        timer = threading.Timer(8, lambda: found.append(clock()))
        found = []
        timer.start()
        timer.join()
        assert found == [34]


def test_a_thread_that_was_made_before_the_block_is_started_in_it():
    thread = threading.Thread(target=lambda: sleep(HOUR_S))
    with virtual_time() as clock:
        thread.start()
        thread.join(1)
        assert thread.is_alive()
        assert clock() == 1
        thread.join()
        assert clock() == HOUR_S


def test_the_same_happens_each_time():
    def run():
        Recording.clear()
        times = []
        config = {
            "backend": "S[Recording,Slow(ms=70)]",
            "max": 4,
            "instance_num": 2,
            "batching_timeout": 20,
        }
        with virtual_time() as clock, headrace.pipe(config) as pipe:
            for n in range(200):
                pipe.submit({"data": n}).add_done_callback(lambda _: times.append(clock()))
                sleep(0.001 * (n * 7 % 31))
        return times, [*Recording.batches]

    assert run() == run()


def test_pipelines_from_before_are_as_they_were():
    with headrace.pipe({"backend": "Slow(ms=1)", "max": 2}) as pipe:
        assert pipe.submit({"data": 1}).result()["result"] == 1
        with virtual_time(), headrace.pipe({"backend": "Slow(ms=3600000)"}) as other:
            other({"data": 1})
        assert pipe.submit({"data": 2}).result()["result"] == 2
        assert pipe({"data": 3}, timeout=60)["result"] == 3


def test_other_threads_keep_their_time():
    begun, ended, found = threading.Event(), threading.Lock(), []
    ended.acquire()

    def outside():
        begun.wait()
        first = time.monotonic()
        lock = threading.Lock()
        with lock:
            sleep(0.001)
        found.append(time.monotonic() - first)
        ended.release()

    thread = threading.Thread(target=outside)
    thread.start()
    with virtual_time():
        sleep(HOUR_S)
        begun.set()
        ended.acquire()  # a lock from before the block: in real time
    thread.join()
    assert 0 < found[0] < HOUR_S


def test_a_lock_from_a_block_is_a_lock_afterwards():
    with virtual_time():
        lock, items = threading.Lock(), queue.SimpleQueue()
    with lock:
        assert not lock.acquire(timeout=0.001)
        thread = threading.Thread(target=lambda: items.put(lock.acquire()))
        thread.start()
    thread.join()
    assert items.get() is True
    assert lock.locked()


def test_an_open_pipeline_is_closed():
    with virtual_time():
        pipe = headrace.pipe({"backend": "Slow(ms=100)"})
        futures = pipe.submit([{"data": n} for n in range(3)])
    assert [future.done() for future in futures] == [True] * 3
    assert pipe.stats()["state"] == "closed"
    pipe.close()
    with pytest.raises(ClosedError):
        pipe({"data": 1})


def test_threads_that_still_run_are_ended_where_they_wait():
    steps = []

    def run():
        try:
            threading.Event().wait()
        finally:
            steps.append("left")

    with virtual_time():
        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        sleep(1)
        assert steps == []
    assert steps == ["left"] * 3
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_leaves_nothing():
    pipes = []

    def run():
        with virtual_time():
            pipes.append(headrace.pipe({"backend": "Slow(ms=100)", "instance_num": 2}))
            pipes[0].submit([{"data": n} for n in range(5)])
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run()
    (pipe,) = pipes
    assert pipe.stats()["state"] == "closed"


def test_a_block_in_a_block_and_in_a_coroutine_is_refused():
    with virtual_time() as clock:
        with pytest.raises(RuntimeError, match="a block runs already"), virtual_time():
            pass
        sleep(1)
        assert clock() == 1

    async def inside():
        with pytest.raises(RuntimeError, match=r"asyncio\.run"), virtual_time():
            pass

    asyncio.run(inside())


def test_nobody_can_go_on():
    with virtual_time() as clock:
        event = threading.Event()
        threading.Thread(target=event.wait, name="waits for ever", daemon=True).start()
        with pytest.raises(RuntimeError, match="nobody can go on") as caught:
            event.wait()
        assert "waits for ever" in str(caught.value)
        assert __file__ in str(caught.value)
        sleep(1)
        assert clock() == 1


def test_a_limit():
    with virtual_time(limit_s=60) as clock:
        thread = threading.Thread(target=lambda: [sleep(1) for _ in range(100)], daemon=True)
        thread.start()
        with pytest.raises(RuntimeError, match="not over after 60 virtual seconds"):
            thread.join()
        assert clock() == 60


@pytest.fixture
def heard():
    """A lock that is free once Ctrl-C has been heard of: it comes in real time."""
    lock = threading.Lock()
    lock.acquire()

    def handler(*_):
        lock.release()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handler)
    yield lock
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_reaches_who_waits_and_the_block_goes_on(heard):
    def interrupt():
        sleep(5)
        os.kill(os.getpid(), signal.SIGINT)
        heard.acquire()

    with virtual_time() as clock, headrace.pipe({"backend": "Slow(ms=10000)"}) as pipe:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            pipe.submit({"data": 1}).result()
        assert clock() == 5
        assert pipe({"data": 2})["result"] == 2
        assert clock() == 20  # the first one runs until 10


@pytest.mark.parametrize("busy", [True, False])
def test_ctrl_c_leaves_the_block(busy):
    real_sleep, real_start = sleep, sys.modules["_thread"].start_new_thread

    def from_outside():
        real_sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    def run():
        with virtual_time(), headrace.pipe({"backend": "Slow(ms=10)"}) as pipe:
            pipes.append(pipe)
            real_start(from_outside, ())
            while True:
                future = pipe.submit({"data": 1})
                if busy:
                    sleep(0.01)
                else:
                    future.result()

    pipes = []
    with pytest.raises(KeyboardInterrupt):
        run()
    assert pipes[0].stats()["state"] == "closed"


def test_a_destructor_calls_a_pipeline():
    class Dropped:
        def __del__(self):
            futures.append(pipe.submit({"data": 1}))

    futures = []
    with virtual_time() as clock, headrace.pipe({"backend": "Slow(ms=100)"}) as pipe:
        pipe.submit({"data": Dropped()}).result()
        gc.collect()
        assert futures[0].result()["result"] == 1
        assert clock() == 0.2
