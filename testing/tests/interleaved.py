"""Programs for the tests of `headrace_testing.interleavings`, right and wrong ones."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from headrace_testing.interleavings import check, ctrl_c, run_async, sleep


def _together(*functions):
    threads = [threading.Thread(target=one, name=one.__name__) for one in functions]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def lost_update():
    number = [0]

    def add():
        old = number[0]
        number[0] = old + 1

    _together(add, add)
    check(number[0] == 2, f"number is {number[0]}")


def lost_update_in_a_line():
    number = [0]

    def add():
        number[0] += 1

    _together(add, add)
    check(number[0] == 2, f"number is {number[0]}")


def locked_update():
    number, lock = [0], threading.Lock()

    def add():
        with lock:
            old = number[0]
            number[0] = old + 1

    _together(add, add)
    check(number[0] == 2, f"number is {number[0]}")


def two_orders():
    a, b = threading.Lock(), threading.Lock()

    def forward():
        with a, b:
            pass

    def backward():
        with b, a:
            pass

    _together(forward, backward)


def waits_too_long():
    threading.Event().wait(1000)


def dies():
    _together(lambda: 1 / 0)


def raises():
    raise LookupError("nothing is there")


def asserts():
    assert threading.active_count() == 7, "seven"


def late_or_not():
    """A wait of a second, and an answer after a second: which one is first is left to the search."""
    answers = queue.SimpleQueue()

    def answer():
        sleep(1)
        answers.put("answer")

    threading.Thread(target=answer).start()
    try:
        answers.get(timeout=1)
    except queue.Empty:
        check(False, "the answer came late")


def virtual_time():
    began_s = time.monotonic()
    time.sleep(3600 / 60)
    check(60 <= time.monotonic() - began_s < 61, "a minute")


def standard_library():
    """What is built on locks works: pools, queues, conditions, barriers, semaphores, timers, joins with a timeout."""
    with ThreadPoolExecutor(2) as pool:
        check([*pool.map(abs, [-1, -2, -3])] == [1, 2, 3], "map of a pool")
    items, barrier, semaphore = queue.Queue(1), threading.Barrier(2), threading.Semaphore(0)

    def produce():
        barrier.wait()
        for n in range(3):
            items.put(n)
        semaphore.release()

    def consume():
        barrier.wait()
        check([items.get() for _ in range(3)] == [0, 1, 2], "items in order")
        semaphore.acquire()

    _together(produce, consume)
    rung = threading.Event()
    threading.Timer(5, rung.set).start()
    check(rung.wait(10), "a timer")
    slow = threading.Thread(target=sleep, args=(5,))
    slow.start()
    slow.join(1)
    check(slow.is_alive(), "the thread sleeps")
    slow.join()
    check(not slow.is_alive(), "the thread has ended")
    reentrant = threading.RLock()
    with reentrant, reentrant:
        check(not _taken_elsewhere(reentrant), "another thread takes a lock that is held")
    check(_taken_elsewhere(reentrant), "another thread takes a lock that is free")


def _taken_elsewhere(lock):
    taken = []
    _together(lambda: taken.append(lock.acquire(blocking=False)))
    return taken[0]


def interrupted():
    """Ctrl-C between two lines leaves the sum undone, in some schedules."""
    lock, done = threading.Lock(), []
    with ctrl_c():
        with lock:
            done.append(1)
        with lock:
            done.append(2)
    check(len(done) == 2, f"done {done}")


def coroutines():
    async def main():
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        thread = threading.Thread(
            target=lambda: loop.call_soon_threadsafe(answer.set_result, "from a thread")
        )
        thread.start()
        await asyncio.sleep(5)
        return await answer

    check(run_async(main()) == "from a thread", "the answer of a thread")
