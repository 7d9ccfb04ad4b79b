"""What stands in for locks, threads and clocks of the standard library during a block.

A stand-in looks which thread calls it: in one that does not live in virtual time it does what it stands in for. So a lock that was made
in a block is a lock afterwards. Condition, Event, Semaphore, Queue, Future and the executors are Python on top of these.
"""

from __future__ import annotations

import _queue
import _thread
import queue
import selectors
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_testing.virtual.world import BEGIN_S, Real, Simulated, simulated

if TYPE_CHECKING:
    from collections.abc import Callable

_get_ident = _thread.get_ident


class Lock:
    """`threading.Lock`."""

    __slots__ = ("__weakref__", "_real", "_waiters")

    def __init__(self) -> None:
        self._real = Real.allocate_lock()
        self._waiters: list[Simulated] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._real.acquire(False):
            return True
        me = simulated.get(_get_ident())
        if me is None or (not blocking and timeout != -1) or (timeout < 0 and timeout != -1):
            return self._real.acquire(blocking, timeout)
        if not blocking or timeout == 0:
            return False
        until = None if timeout < 0 else me.world.after(timeout)
        while me.wait(self._waiters, until):
            if self._real.acquire(False):
                return True
        return self._real.acquire(False)

    def release(self) -> None:
        self._real.release()
        if self._waiters:
            wake(self._waiters)

    def locked(self) -> bool:
        return self._real.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]

    acquire_lock, release_lock, locked_lock = acquire, release, locked


class RLock(threading._PyRLock):  # type: ignore[name-defined,misc]
    """`threading.RLock`: Python's own, on a lock as above."""


class SimpleQueue(queue._PySimpleQueue):  # type: ignore[name-defined,misc]
    """`queue.SimpleQueue`: Python's own, on locks as above."""


def wake(waiters: list[Simulated]) -> None:
    """Let threads run, from any thread."""
    is_inside = _get_ident() in simulated
    for waiter in waiters[:]:
        if is_inside:
            waiter.world.make_ready(waiter)
        else:  # it changes nothing by itself
            waiter.world.outside.append(waiter)


# Threads.


class _Started(threading.Event):
    """What `Thread.start` waits for: both go on as soon as the new thread has begun.

    It may hold a lock that was made before the block, as `concurrent.futures` does, and no other thread must come by meanwhile.
    """

    def __init__(self, starter: Simulated) -> None:
        super().__init__()
        self._starter: Simulated | None = starter

    def set(self) -> None:
        super().set()
        starter, self._starter = self._starter, None
        if starter is not None:
            starter.world.yield_to(starter)


def start_new_thread(function: Callable[..., object], args: Any = (), kwargs: Any = None, /) -> int:
    me = simulated.get(_get_ident())
    if me is None:
        started: int = Real.start_new_thread(function, args, kwargs or {})
        return started
    return _start(me, function, args, kwargs)


def _start(
    me: Simulated,
    function: Callable[..., object],
    args: Any = (),
    kwargs: Any = None,
    at_end: tuple[Callable[[], object], ...] = (),
) -> int:
    owner = getattr(function, "__self__", None)
    is_thread = isinstance(owner, threading.Thread)
    if is_thread:
        owner._started = _Started(me)  # type: ignore[union-attr]
    return me.world.start(function, args, kwargs or {}, at_end, at_once=is_thread)


def _sentinel(real: Callable[[], Any]) -> Any:
    """Return what ``Thread.join`` waits for, up to Python 3.12."""
    me = simulated.get(_get_ident())
    if me is None:
        return real()
    lock = Lock()
    me.at_end.append(lambda: lock.release() if lock.locked() else None)
    return lock


class Handle:
    """`_thread._ThreadHandle`, by which ``Thread.join`` waits from Python 3.13 on."""

    def __init__(self) -> None:
        self.ident = 0
        self._done = threading.Event()

    def is_done(self) -> bool:
        return self._done.is_set()

    def _set_done(self) -> None:
        self._done.set()

    def join(self, timeout: float | None = None) -> None:
        self._done.wait(None if timeout is None or timeout < 0 else timeout)


# Clocks.


def _clock(real: Callable[[], float], ahead_s: float) -> Callable[[], float]:
    def clock() -> float:
        me = simulated.get(_get_ident())
        return real() if me is None else me.world.now_s + ahead_s

    return clock


def _clock_ns(real: Callable[[], int], ahead_s: float) -> Callable[[], int]:
    def clock() -> int:
        me = simulated.get(_get_ident())
        return real() if me is None else round((me.world.now_s + ahead_s) * 1e9)

    return clock


def _sleep(real: Callable[[float], None], seconds: float, /) -> None:
    me = simulated.get(_get_ident())
    if me is None or seconds < 0:
        real(seconds)
    else:
        me.wait(None, me.world.after(seconds))


# Event loops.


class Selector(selectors.DefaultSelector):
    """`selectors.DefaultSelector`, which waits in virtual time for what an event loop is told by other threads."""

    def __init__(self) -> None:
        super().__init__()
        self.waiters: list[Simulated] = []

    def select(self, timeout: float | None = None) -> Any:
        me = simulated.get(_get_ident())
        if me is None:
            return super().select(timeout)
        ready = super().select(0)
        if not ready:
            me.wait(self.waiters, None if timeout is None else me.world.after(timeout))
            ready = super().select(0)
        return ready


# All of it.


def standins() -> dict[Any, Any]:
    """Return what stands in for what; the wall clock begins at the time that it is."""
    standin_of: dict[Any, Any] = {
        _thread.RLock: RLock,
        _queue.SimpleQueue: SimpleQueue,
        _thread.start_new_thread: start_new_thread,
        selectors.DefaultSelector: Selector,
        time.sleep: partial(_sleep, time.sleep),
    }
    for lock in (_thread.allocate_lock, _thread.allocate, threading.Lock):
        standin_of[lock] = type("Lock", (Lock,), {"__module__": __name__})
    wall_s = time.time() - BEGIN_S
    for name, ahead_s in (("monotonic", 0.0), ("perf_counter", 0.0), ("time", wall_s)):
        real, real_ns = getattr(time, name), getattr(time, f"{name}_ns")
        standin_of[real], standin_of[real_ns] = _clock(real, ahead_s), _clock_ns(real_ns, ahead_s)
    if sys.version_info < (3, 13):
        sentinel = getattr(_thread, "_set_sentinel")  # noqa: B009 - types know nothing of it
        standin_of[sentinel] = partial(_sentinel, sentinel)
        return standin_of

    start, make = _thread.start_joinable_thread, _thread._ThreadHandle

    def make_handle() -> Any:
        return make() if simulated.get(_get_ident()) is None else Handle()

    def start_joinable_thread(
        function: Callable[..., object], handle: Any = None, daemon: bool = True
    ) -> Any:
        me = simulated.get(_get_ident())
        if me is None:
            return start(function, handle=handle, daemon=daemon)
        owner = getattr(function, "__self__", None)
        if not isinstance(handle, Handle):
            handle = Handle()
            if isinstance(owner, threading.Thread):  # it was made before the block
                owner._handle = handle
        handle.ident = _start(me, function, at_end=(handle._set_done,))
        return handle

    standin_of[start], standin_of[make] = start_joinable_thread, make_handle
    return standin_of
