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

import gc
import sys
import threading
from functools import partial, wraps
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from headrace._scheduling.calls import Call
from headrace._scheduling.errands import errands

if TYPE_CHECKING:
    from collections.abc import Callable

    Function = TypeVar("Function", bound=Callable[..., Any])

__all__ = [
    "errand",
    "holds_a_lock",
    "in_main_thread",
    "main_thread",
    "near_stack_end",
    "no_room",
    "reentrant",
    "taking",
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

_outermost: dict[int, Any] = {}
"""Per thread the lock that it took last while it held none, or is about to take."""

_kept: list[Any] = []
"""What `_outermost` told of the thread that runs the garbage collector, before it ran it."""


def taking(lock: Any) -> Any:
    """Give a lock to the ``with`` statement that takes it, and take note of it for `holds_a_lock`.

    Args:
        lock: A `threading.RLock`, or a condition of one.
    """
    me = get_ident()
    outermost = _outermost.get(me)
    if outermost is None or not outermost._is_owned():
        _outermost[me] = lock
    return lock


def holds_a_lock() -> bool:
    """Tell whether the calling thread holds a lock of a scheduler: it runs a destructor inside."""
    outermost = _outermost.get(get_ident())
    return outermost is not None and outermost._is_owned()


def _around_collection(phase: str, _: object) -> None:
    """Put the note of a thread back that was about to take a lock when destructors took others."""
    if phase == "start":
        _kept[:] = [_outermost.get(get_ident())]
    elif _kept and (outermost := _kept.pop()) is not None:
        _outermost[get_ident()] = outermost


gc.callbacks.append(_around_collection)  # one thread at a time collects


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
    _outermost.clear()  # another thread may get the identifier of one that is gone
