"""Locks of the scheduler: who sleeps on one, who holds one, and who may take one.

Python runs signal handlers, and raises Ctrl-C, in the main thread alone, between any two instructions.
So **the main thread takes no lock of the scheduler**: see `headrace._scheduling.calls`.

The garbage collector runs destructors, and the callbacks of weak references, in any thread, also while
that thread holds a lock: `holds_a_lock` tells. And a thread that has few frames left on its stack takes
no lock, for it might not get to the end of what it does under it: `near_stack_end`.
"""

from __future__ import annotations

import gc
import threading
import time
from sys import _getframe, getrecursionlimit
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOM = 100
"""How many more calls the stack must have room for when a lock is to be taken: more than it takes."""


def claimed(items: list[None]) -> bool:
    """Take the one item of a list; False when another thread was quicker."""
    try:
        items.pop()
    except IndexError:
        return False
    return True


class Signal:
    """A binary semaphore on one raw lock; a stale signal is harmless, its sleeper looks again."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Let the sleeper, or the next one, go on."""
        try:  # noqa: SIM105 - contextlib.suppress costs a microsecond here
            self._lock.release()
        except RuntimeError:
            pass  # it was awake already

    def sleep(self, timeout_s: float | None = None) -> bool:
        """Sleep until woken; False when ``timeout_s`` was over first."""
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class Watchers(list[Signal]):
    """The threads that sleep until something is so that no lock guards; a list of their signals.

    A thread that waits adds its signal first and then looks whether it is so. A thread that makes it so
    does that first and calls `wake` then. In either order the first sees it or is woken.
    """

    __slots__ = ()

    def wait(self, is_so: Callable[[], bool], until: float | None = None) -> bool:
        """Sleep until ``is_so()``; False when the time was over first.

        Args:
            is_so: Asked before each sleep; called without any lock.
            until: In seconds of `time.monotonic`; None for never.
        """
        signal = Signal()
        self.append(signal)
        try:
            while not is_so():
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return False
                signal.sleep(left)
            return True
        finally:
            self.remove(signal)

    def wake(self) -> None:
        """Let all of them look again."""
        for signal in self.copy():
            signal.wake()


class _Main:
    """The main thread of the process, in which Python runs signal handlers."""

    ident = threading.main_thread().ident


main_thread = _Main()


outermost: dict[int, Any] = {}
"""Per thread the lock that it took last while it held none, or is about to take."""

_kept: list[Any] = []
"""What `outermost` held of the thread in which the garbage collector runs, before it began."""


def taking(lock: Any) -> Any:
    """Give a lock to the ``with`` statement that takes it, and take note of it for `holds_a_lock`.

    Args:
        lock: A `threading.RLock`, or a condition of one.
    """
    me = get_ident()
    noted = outermost.get(me)
    if noted is None or not noted._is_owned():
        outermost[me] = lock
    return lock


def holds_a_lock(me: int | None = None) -> bool:
    """Tell whether the calling thread, ``me``, holds a lock of a scheduler: it runs a destructor inside."""
    noted = outermost.get(me or get_ident())
    return noted is not None and noted._is_owned()


def _around_collection(phase: str, _: object) -> None:
    """Restore the note of a thread in which the collector ran just before that thread took a lock.

    Destructors that the collector runs there may take, and note, other locks.
    """
    if phase == "start":
        _kept[:] = [outermost.get(get_ident())]
    elif _kept and (noted := _kept.pop()) is not None:
        outermost[get_ident()] = noted


gc.callbacks.append(_around_collection)  # one thread at a time collects


def near_stack_end() -> bool:
    """Tell whether the calling thread may not have room on its stack for what is done under a lock."""
    limit = getrecursionlimit()
    try:
        _getframe(limit - min(_ROOM, limit // 2))
    except ValueError:  # there are not so many frames
        return False
    return True


def may_lock() -> bool:
    """Tell whether the calling thread may take a lock of the scheduler now."""
    return get_ident() != main_thread.ident and not near_stack_end() and not holds_a_lock()


def no_room() -> RecursionError:
    """Make the error of a call that is too near the end of the stack."""
    return RecursionError("no room on the stack to call the pipeline")


def after_fork() -> None:
    """Forget, in a child process, the threads of the parent: their identifiers are given again."""
    main_thread.ident = threading.main_thread().ident
    outermost.clear()
