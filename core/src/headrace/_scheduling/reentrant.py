"""Calls that may come at any moment: in a signal handler, in a destructor, near the stack's end.

Python runs signal handlers, and raises Ctrl-C, in the main thread alone, between any two
instructions. So **the main thread takes no lock of the scheduler**: an idle instance it claims and
returns in single steps (see `headrace._scheduling.direct`), and all else is an *errand*, which a
helper thread runs while the main thread waits. A handler then finds no lock held by the code that it
interrupted, and an interrupt leaves nothing half done.

The garbage collector runs destructors and weak references' callbacks in any thread, also while that
thread holds a lock. What they ask for there is put off until a helper thread gets to it.

A thread that is near the end of its stack is refused before anything has begun.
"""

from __future__ import annotations

import sys
import threading
import weakref
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._scheduling.calls import Call
from headrace._scheduling.helpers import errands

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "errand",
    "holds_a_lock",
    "in_main_thread",
    "main_thread",
    "near_stack_end",
    "new_lock",
    "no_room",
    "reentrant",
]

_ROOM = 100
"""How many more calls the stack must have room for when a lock is to be taken: more than it takes."""


class _Main:
    """The main thread of the process, in which Python runs signal handlers."""

    ident = threading.main_thread().ident


main_thread = _Main()


def in_main_thread() -> bool:
    """Tell whether the calling thread is the main thread."""
    return get_ident() == main_thread.ident


# Locks.

_owned_by_me: dict[int, Callable[[], bool]] = {}
_looks: tuple[Callable[[], bool], ...] = ()


def new_lock(owner: object) -> Any:
    """Make a lock of which `holds_a_lock` knows as long as ``owner`` lives."""
    lock: Any = threading.RLock()
    key = id(lock)
    _owned_by_me[key] = lock._is_owned
    weakref.finalize(owner, _forget, key).atexit = False
    _look_anew()
    return lock


def _forget(key: int) -> None:
    _owned_by_me.pop(key, None)
    _look_anew()


def _look_anew() -> None:
    global _looks
    _looks = tuple(_owned_by_me.copy().values())  # what is dropped meanwhile changes no copy


def holds_a_lock() -> bool:
    """Tell whether the calling thread holds a lock of a scheduler: it runs a destructor inside."""
    for owned in _looks:  # noqa: SIM110 - any() with a generator costs thrice as much
        if owned():
            return True
    return False


# Errands.


def errand(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let a helper thread call a function, and wait for it.

    Raises:
        BaseException: What the function raised. An interrupt of the calling thread has ``abandoned``
            set, which tells whether a backend still runs for it.
    """
    call = Call(partial(function, **kwargs) if kwargs else function, args)
    try:
        errands.run(call.run)
    except RuntimeError:  # no more threads, or the interpreter ends
        call.run()
    return call.wait()


def near_stack_end() -> bool:
    """Tell whether the calling thread may not have room on its stack for what is done under a lock."""
    limit = sys.getrecursionlimit()
    try:
        sys._getframe(limit - min(_ROOM, limit // 2))
    except ValueError:  # there are not so many frames
        return False
    return True


def no_room() -> RecursionError:
    """Make the error of a call that is too near the end of the stack."""
    return RecursionError("no room on the stack to call the pipeline")


def reentrant(later: Callable[..., Any] | None = None) -> Callable[[Function], Function]:
    """Let a function that takes locks of the scheduler be called at any moment.

    Args:
        later: Called in its place, with the same arguments, in a thread that holds such a lock. None:
            a helper thread calls the function when it gets to it, and nobody waits.

    Raises:
        RecursionError: The thread is too near the end of its stack; nothing has begun.
    """

    def decorate(function: Function) -> Function:
        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            if get_ident() == main_thread.ident:
                return errand(function, *args, **kwargs)
            if holds_a_lock():
                if later is not None:
                    return later(*args, **kwargs)
                errands.run(partial(function, *args, **kwargs))
                return None
            if near_stack_end():
                raise no_room()
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    return decorate


def _after_fork() -> None:
    main_thread.ident = threading.main_thread().ident
