"""Processes: the fork and the exit of this one, and starting another one that ends with this one.

Calls that some platforms lack stand here, and in `headrace._build.channel`, which only `Process` imports.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import signal
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from headrace._scheduling import threads, timer
from headrace.errors import SetupError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Sequence

_log = logging.getLogger("headrace.pipeline")

EXIT_S = 5.0
"""How long the exit of the interpreter waits for batches that run."""


_LAST_STEPS_S = 60
"""How long Python's last steps may take when a batch still runs after `EXIT_S`."""


class Closable(Protocol):
    """An object that is closed before the interpreter ends."""

    def close(self, *, drain: bool, timeout: float) -> None:
        """Close, waiting at most ``timeout`` seconds."""

    def busy(self) -> bool:
        """Tell whether a backend still runs."""

    def after_fork(self) -> None:
        """Adapt to a child process after a fork, in which no thread of the parent exists."""


_open: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All that is to be closed, by its identity."""


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, like ``os.process_cpu_count`` of Python 3.13.

    It is at least 1. The environment variable ``PYTHON_CPU_COUNT`` wins: a container, or one of several
    processes that share a machine, can be told its share by it.
    """
    said = os.environ.get("PYTHON_CPU_COUNT", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    affinity = getattr(os, "sched_getaffinity", None)
    if affinity is not None:
        return max(1, len(affinity(0)))
    return max(1, os.cpu_count() or 1)


_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def read_cpus(text: str) -> set[int]:
    """Read the numbers of processors as ``taskset`` writes them: ``4-15``, ``0,2``, ``0-3,8``.

    Raises:
        ValueError: It is written otherwise, or names none.
    """
    found: set[int] = set()
    for part in text.split(","):
        numbers = _CPUS.fullmatch(part.strip())
        if numbers is None:
            raise ValueError(f"{text!r} is no list of processors, such as '4-15' or '0,2'")
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last < first:
            raise ValueError(f"{text!r} names no processor between {first} and {last}")
        found.update(range(first, last + 1))
    return found


def use_cpus(text: str) -> None:
    """Let this thread, and what it starts, use some processors alone.

    Args:
        text: Their numbers, see `read_cpus`.

    Raises:
        SetupError: The system has none of these processors, or does not bind threads to processors.
    """
    bind = getattr(os, "sched_setaffinity", None)
    if bind is None:
        raise SetupError("cpus: this system binds no process to processors", hint="Leave cpus out.")
    try:
        bind(0, read_cpus(text))
    except OSError as error:
        here = f"This machine has {os.cpu_count()} processors, which are counted from 0."
        raise SetupError(f"cpus: {text!r} cannot be used: {error.strerror}", hint=here) from error


def close_at_exit(closable: Closable) -> None:
    """Close ``closable`` before the interpreter ends, if it is still there."""
    _open[id(closable)] = closable


def _still_open() -> list[Any]:
    # `valuerefs` copies in one step: another thread may add what it has just built meanwhile.
    return [one for one in (ref() for ref in _open.valuerefs()) if one is not None]


def _at_exit() -> None:
    until = time.monotonic() + EXIT_S
    every = _still_open()
    # Pipelines without a running batch are closed first, so that one that hangs cannot use up their time.
    for closable in sorted(every, key=lambda one: one.busy()):
        closable.close(drain=False, timeout=max(0.0, until - time.monotonic()))
    if any(closable.busy() for closable in every):
        _skip_destructors()


def _skip_destructors() -> None:
    """Let the process end although a thread still runs native code.

    The last steps of a process destroy the objects of its libraries while that thread still uses them, and
    the thread aborts the process. With glibc an exit handler ends the process before these steps, after
    Python has ended in good order, with Python's exit status. With another C library the process ends at
    once, with the status 1 after an uncaught exception, else 0.

    Before CPython 3.14 a thread that returns from native code while Python ends is itself ended, by
    unwinding its stack. C++ code on that stack does not allow that, and aborts. So the handler of the abort
    signal lets only that thread sleep until the process ends. Should the main thread itself abort, an alarm
    ends the process.
    """
    try:
        import ctypes

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
    threads.after_fork()
    timer.after_fork()
    for closable in _still_open():
        closable.after_fork()
    _open.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# Starting another process.


def memory_file() -> int:
    """Open a file in memory that has no name; give its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace")
    import tempfile

    with tempfile.TemporaryFile() as file:  # this file has no name in any folder either
        return os.dup(file.fileno())


def spawn(code: str, keep: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start another Python that runs ``code``, with the environment, flags and standard streams of this one.

    No Python code runs between fork and exec, and the ``__main__`` of this process is not imported.

    Args:
        code: The Python code that the process runs.
        keep: The descriptors that it inherits.

    Raises:
        SetupError: The platform cannot start such a process, this program is frozen (as by PyInstaller), or the
            system has no room for another process.
    """
    import subprocess

    # In a frozen program `sys.executable` is the program, which would start itself once more, and so on.
    if os.name != "posix" or getattr(sys, "frozen", False):
        needs = "Process needs a POSIX system, and a Python that is not frozen into a program"
        raise SetupError(needs, hint="BackgroundThread[X] runs here.")
    # Ctrl-C in a terminal reaches the new process as well, perhaps before it can ignore the signal. So the
    # signal is blocked here, and the new process inherits that until `end_with_parent` unblocks it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen([sys.executable, *flags, "-c", code], pass_fds=keep)  # noqa: S603
    except OSError as error:
        raise SetupError(f"no process could be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def end_with_parent(parent: int, wait: Callable[[], object]) -> None:
    """Let this process end when its parent does, and leave Ctrl-C to the parent.

    Args:
        parent: The process id of the parent.
        wait: Returns when the parent has ended; used where the system does not end this process by itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        import ctypes

        arranged = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0
    except (ImportError, OSError, AttributeError):
        arranged = False
    if not arranged:
        threading.Thread(target=lambda: (wait(), os._exit(1)), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


_PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``. Linux takes the end of the thread that started the process for the parent's."""


# What the child process of a fork says.


def say_forked(nodes: Iterable[str]) -> None:
    """Log that a pipeline, built before a fork, answers nobody in this process, and what to do."""
    what = (
        "the pipeline of %s was built before a fork, and its threads live on in the parent process alone: process %d "
        "refuses every request to it. Build it after the fork, in each process: not at module level under a server "
        "that preloads (gunicorn --preload), but in its lifespan, in a post_fork hook, or on first use."
    )
    _log.error(what, ", ".join(nodes), os.getpid())


def say(unsaid: list[Callable[[], None]]) -> None:
    """Call and remove what has yet to be said."""
    while unsaid:
        unsaid.pop()()
