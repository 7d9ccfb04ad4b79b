"""Locks of the scheduler: which thread sleeps on a lock, holds a lock, and may take one.

Python runs signal handlers, and raises Ctrl-C, in the main thread alone, between any two instructions.
So **the main thread takes no lock of the scheduler**: see `headrace._scheduling.calls`.

The garbage collector runs destructors, and the callbacks of weak references, in any thread, also while
that thread holds a lock: `holds_a_lock` tells. A thread that has few frames left on its stack takes no
lock, for the stack might end before the thread has done its work under the lock: `near_stack_end`.
"""

from __future__ import annotations

import gc
import threading
import time
from sys import _getframe, getrecursionlimit
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

_ROOM = 100
"""How many nested calls must fit on the stack before a thread takes a lock: more than any section needs."""


def took_token(items: list[None]) -> bool:
    """Take the one item of a list; False when another thread took it first."""
    try:
        items.pop()
    except IndexError:
        return False
    return True


def drained(pop: Callable[[], T]) -> Iterator[T]:
    """Give what ``pop()`` takes out of a list or deque, until it is empty; threads may share that out."""
    while True:
        try:
            item = pop()
        except IndexError:  # it is empty, or another thread was quicker
            return
        yield item


class Signal:
    """A binary semaphore on one raw lock. A late wake is harmless: a thread that it wakes looks again."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wake(self) -> None:
        """Wake the thread that sleeps here; where none sleeps, the next sleep returns at once."""
        try:  # noqa: SIM105 - contextlib.suppress costs a microsecond here
            self._lock.release()
        except RuntimeError:
            pass  # a wake is pending already

    def sleep(self, timeout_s: float | None = None) -> bool:
        """Sleep until woken; False when ``timeout_s`` was over first."""
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))


class Watchers(list[Signal]):
    """The threads that sleep until a condition holds that no lock guards; a list of their signals.

    A thread that waits adds its signal first and then asks for the condition. A thread that makes the
    condition true does so first and calls `wake` then. Either the waiting thread sees it, or it is woken.
    """

    __slots__ = ()

    def wait(self, is_so: Callable[[], bool], until: float | None = None) -> bool:
        """Sleep until ``is_so()``; False when ``until`` came first.

        Args:
            is_so: Tells whether the condition holds; called before each sleep, without any lock.
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
        """Wake all threads, which then look again."""
        for signal in self.copy():
            signal.wake()


class _Main:
    """The main thread of the process, in which Python runs signal handlers."""

    ident = threading.main_thread().ident


main_thread = _Main()


outermost: dict[int, Any] = {}
"""Per thread the lock that it took last while it held no other, or that it is about to take."""

_kept: list[Any] = []
"""The lock that `outermost` had for the thread in which the garbage collector runs, before it began."""


def taking(lock: Any) -> Any:
    """Note a lock in `outermost` for `holds_a_lock`, and give it to the ``with`` statement that takes it.

    Args:
        lock: A `threading.RLock`, or a condition of one.
    """
    me = get_ident()
    noted = outermost.get(me)
    if noted is None or not noted._is_owned():
        outermost[me] = lock
    return lock


def holds_a_lock(me: int | None = None) -> bool:
    """Tell whether the calling thread, ``me``, holds a lock of a scheduler; one that runs a destructor may."""
    noted = outermost.get(me or get_ident())
    return noted is not None and noted._is_owned()


def _around_collection(phase: str, _: object) -> None:
    """Restore the note of a thread in which the collector ran between the note and the taking of a lock.

    A destructor that the collector runs there may take another lock, and overwrite the note; then
    `holds_a_lock` would say False while the thread holds its own lock.
    """
    if phase == "start":
        _kept[:] = [outermost.get(get_ident())]
    elif _kept and (noted := _kept.pop()) is not None:
        outermost[get_ident()] = noted


gc.callbacks.append(_around_collection)  # `_kept` suffices: one thread at a time collects


def near_stack_end() -> bool:
    """Tell whether the stack of the calling thread may be too short for a section under a lock."""
    limit = getrecursionlimit()
    try:
        _getframe(limit - min(_ROOM, limit // 2))
    except ValueError:  # the stack has fewer frames than that: there is room
        return False
    return True


def may_lock() -> bool:
    """Tell whether the calling thread may take a lock of the scheduler now."""
    return get_ident() != main_thread.ident and not near_stack_end() and not holds_a_lock()


def no_room() -> RecursionError:
    """Make the error of a call for which the stack has no room."""
    return RecursionError("no room on the stack to call the pipeline")


def after_fork() -> None:
    """Forget the threads of the parent in a child process, whose new threads may get their identifiers."""
    main_thread.ident = threading.main_thread().ident
    outermost.clear()
