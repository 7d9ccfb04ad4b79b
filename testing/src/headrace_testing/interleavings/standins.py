"""What stands in for the locks, queues, threads and clocks of the standard library once `install` was called.

Condition, Event, Queue, Future and the like are Python on top of these, so they are under control as well.
"""

from __future__ import annotations

import _thread
import functools
import importlib._bootstrap
import logging
import queue
import sys
import threading
import time
import traceback
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_testing.interleavings.world import Controlled, real_ident, real_lock, world

if TYPE_CHECKING:
    from collections.abc import Callable

_real_rlock, _real_start = _thread.RLock, _thread.start_new_thread
_EPOCH_S = 1.7e9


class Lock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._holder: Controlled | None = None
        self._waiters: list[Controlled] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world.point("acquire")
        deadline_s = world.deadline(timeout)
        while self._holder is not None:
            in_vain = not blocking or timeout == 0
            if in_vain or not world.wait(self._waiters, "lock", deadline_s):
                return False
        self._holder = world.current
        world.block_again(self._waiters)
        return True

    def release(self) -> None:
        if self._holder is None:
            raise RuntimeError("release unlocked lock")
        self._holder = None
        world.wake(self._waiters)
        world.point("release")

    def locked(self) -> bool:
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    acquire_lock, release_lock, locked_lock = acquire, release, locked

    def _at_fork_reinit(self) -> None:
        self._holder = None
        self._waiters = []


RLock: Any = threading._PyRLock  # type: ignore[attr-defined]
"""`threading.RLock`: Python's own, on a lock as above."""


class SimpleQueue:
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters: list[Controlled] = []

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        world.point("put")
        self._items.append(item)
        world.wake(self._waiters)
        world.point("after put")

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        world.point("get")
        deadline_s = world.deadline(timeout)
        while not self._items:
            if not block or not world.wait(self._waiters, "queue", deadline_s):
                raise queue.Empty
        item = self._items.popleft()
        if not self._items:
            world.block_again(self._waiters)
        return item

    def put_nowait(self, item: Any) -> None:
        self.put(item)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


# Threads.


class Handle:
    """`_thread._ThreadHandle`, by which `threading.Thread` waits for its end from Python 3.13 on."""

    def __init__(self, ident: int = 0) -> None:
        self.ident = ident
        self._done = False
        self._waiters: list[Controlled] = []

    def is_done(self) -> bool:
        return self._done

    def _set_done(self) -> None:
        self._done = True
        world.wake(self._waiters)

    def join(self, timeout: float | None = None) -> None:
        world.point("acquire")
        deadline_s = world.deadline(timeout)
        while not self._done and world.wait(self._waiters, "end of a thread", deadline_s):
            pass


def get_ident() -> int:
    return world.current.ident


def start_new_thread(
    function: Callable[..., object], args: Any = (), kwargs: Any = None, handle: Any = None
) -> int:
    owner = getattr(function, "__self__", None)
    name = getattr(owner, "name", None) or getattr(function, "__qualname__", "thread")
    thread = world.begin_thread(str(name))
    if handle is not None:
        handle.ident = thread.ident
        thread.ended.append(handle._set_done)
    if world.tracer is not None and len(world.all) == 2:  # from here on there are choices
        world.tracer.begin(sys._getframe(1))
    _real_start(_body, (thread, function, args, kwargs or {}))
    if world.starting is None:
        world.point("start thread")
    return thread.ident


def start_joinable_thread(
    function: Callable[..., object], handle: Any = None, daemon: bool = True
) -> Any:
    handle = handle or Handle()
    start_new_thread(function, handle=handle)
    return handle


def _body(thread: Controlled, function: Callable[..., object], args: Any, kwargs: Any) -> None:
    thread.baton.acquire()
    thread.real_ident = real_ident()
    sys.settrace(world.tracer)
    try:
        function(*args, **kwargs)
    except SystemExit:
        pass
    except BaseException:  # noqa: BLE001 - it is what is told
        world.end("thread died", traceback.format_exc())
    sys.settrace(None)
    world.end_thread(thread)


_thread_start = threading.Thread.start


def _start_thread(self: threading.Thread) -> None:
    """Stand in for `Thread.start`: the new thread has begun when it returns."""
    if world.starting is not None or not world.runs:
        _thread_start(self)
        return
    world.starting = (world.current, None)
    try:
        _thread_start(self)
    finally:
        world.starting = None
    world.point("thread started")


def _set_sentinel() -> Lock:
    """Return the lock that is released when the current thread ends, for `Thread.join` before Python 3.13."""
    lock, me = Lock(), world.current

    def ended() -> None:
        lock._holder = None
        world.wake(lock._waiters)

    me.ended.append(ended)
    return lock


def _uncaught(args: Any, /) -> None:
    error = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
    world.end("thread died", "".join(error))


# Clocks.


def clock() -> float:
    """Return the virtual time in seconds; each look costs a microsecond."""
    world.now_s += 1e-6
    return world.now_s


def sleep(seconds: float) -> None:
    """Let virtual time pass."""
    if world.runs:
        world.wait([], "sleep", world.now_s + max(seconds, 0.0))
    else:
        world.now_s += seconds


# Putting all of it in place.


def _put(module: Any, **names: Any) -> None:
    for name, value in names.items():
        setattr(module, name, value)


def install() -> None:
    """Replace what the modules offer; before anything is imported that is to be under control."""
    main = threading.main_thread()
    _put(main, _ident=get_ident())
    _put(threading, _active={get_ident(): main})
    locks = {"allocate_lock": Lock, "RLock": RLock, "get_ident": get_ident}
    bootstrap = importlib._bootstrap  # imports keep real locks
    real = {"allocate_lock": real_lock, "RLock": _real_rlock, "get_ident": real_ident}
    _put(bootstrap, _thread=type("real", (), {k: staticmethod(v) for k, v in real.items()}))
    _put(logging, _lock=_real_rlock())  # nothing of ours runs under it
    _put(functools, RLock=RLock)  # of properties that are computed once
    _put(_thread, **locks, allocate=Lock, start_new_thread=start_new_thread)
    _put(threading, RLock=RLock, Lock=Lock, _allocate_lock=Lock, get_ident=get_ident)
    _put(threading, _start_new_thread=start_new_thread, excepthook=_uncaught)
    _put(threading.Thread, start=_start_thread)
    if sys.version_info >= (3, 13):
        joinable = {"start_joinable_thread": start_joinable_thread, "_ThreadHandle": Handle}
        _put(_thread, **joinable, _make_thread_handle=Handle)
        _put(threading, _start_joinable_thread=start_joinable_thread, _ThreadHandle=Handle)
        _put(threading, _make_thread_handle=Handle)
        _put(main, _handle=Handle(get_ident()))
    else:
        _put(threading, _set_sentinel=_set_sentinel)
    _put(queue, SimpleQueue=SimpleQueue)

    def wall() -> float:
        return clock() + _EPOCH_S

    def in_ns(seconds: Callable[[], float]) -> int:
        return int(seconds() * 1e9)

    for name, of in (("monotonic", clock), ("perf_counter", clock), ("time", wall)):
        _put(time, **{name: of, f"{name}_ns": partial(in_ns, of)})
    _put(time, sleep=sleep)


def begin() -> None:
    """Make ready for a schedule, in the process of its own: what a fork has made anew must not be under control."""
    _put(threading, _active_limbo_lock=_real_rlock())  # never held at a point
