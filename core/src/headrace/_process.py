"""What concerns the process as a whole; the only module with calls that some platforms lack."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import weakref
from typing import Any, Protocol

from headrace._scheduling import locks, process_threads

EXIT_S = 5.0
"""How long the end of the interpreter waits for batches that run."""


_LAST_STEPS_S = 60
"""How long Python may take to end after that, where a batch still runs then."""


class Closable(Protocol):
    """Something to close before the interpreter ends."""

    def close(self, *, drain: bool, timeout: float) -> None:
        """Close, waiting at most ``timeout`` seconds."""

    def busy(self) -> bool:
        """Tell whether a backend still runs."""

    def after_fork(self) -> None:
        """Take note that this is a child process, in which no thread of the parent runs."""


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def usable_cpus() -> int:
    """Give the number of CPUs that this process may use, at least 1, as ``os.process_cpu_count`` of Python 3.13.

    ``PYTHON_CPU_COUNT`` says it where the system does not: in a container, or for one of several
    processes that share a machine.
    """
    said = os.environ.get("PYTHON_CPU_COUNT", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is not None:
        return max(1, len(affinity(0)))
    return max(1, os.cpu_count() or 1)


def close_at_exit(closable: Closable) -> None:
    """Close ``closable`` before the interpreter ends, if it is still there."""
    _open.add(closable)


def _at_exit() -> None:
    until = time.monotonic() + EXIT_S
    every = list(_open)
    # Those at rest first: nothing of theirs may be lost to one that hangs.
    for closable in sorted(every, key=lambda one: one.busy()):
        closable.close(drain=False, timeout=max(0.0, until - time.monotonic()))
    if any(closable.busy() for closable in every):
        _skip_destructors()


def _skip_destructors() -> None:
    """Let the process end although a thread still runs native code.

    The last steps of a process destroy what its libraries hold, under the feet of such a thread,
    which aborts. With glibc the process leaves before these steps, after Python has ended in good
    order, and with the status it has then. Elsewhere it leaves now, when the status is not known
    yet: 1 after an exception that nobody caught, else 0.

    A thread that comes back from native code while Python ends is ended where it asks for the
    interpreter (before CPython 3.14). C++ code around it does not let itself be left so, and aborts.
    Then only that thread stops: it sleeps for the moment that is left. Should the abort be the main
    thread's own, an alarm ends the process.
    """
    try:
        import ctypes
        import signal

        libc = ctypes.CDLL(None)
        libc.fflush(None)
        if libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None) == 0:
            libc.alarm(_LAST_STEPS_S)
            libc.signal(signal.SIGABRT, ctypes.cast(libc.pause, ctypes.c_void_p))
            return
    except (ImportError, OSError, AttributeError, TypeError):
        pass
    failed = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(1 if failed is not None else 0)


def _in_child() -> None:
    process_threads.after_fork()
    locks.after_fork()
    for closable in list(_open):
        closable.after_fork()
    _open.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
