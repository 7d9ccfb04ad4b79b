"""What concerns processes: fork and exit of this one, the start of another one, and that it ends with this one.

The only module with calls that some platforms lack.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from headrace._scheduling import calls, locks, process_threads
from headrace.errors import SetupError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence

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
    calls.handed_over.after_fork()
    for closable in list(_open):
        closable.after_fork()
    _open.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# Other processes.


def memory_file() -> int:
    """Open a file in memory that has no name; give its descriptor."""
    create = getattr(os, "memfd_create", None)
    if create is not None:
        return create("headrace")  # type: ignore[no-any-return]
    import tempfile

    with tempfile.TemporaryFile() as file:  # which has no name either
        return os.dup(file.fileno())


def spawn(code: str, keep: Sequence[int]) -> subprocess.Popen[bytes]:
    """Start another Python that runs ``code``, with our environment, flags and standard streams.

    Nothing is forked that goes on in Python, and our ``__main__`` is not imported.

    Args:
        code: What it runs.
        keep: The descriptors that it inherits.

    Raises:
        SetupError: The platform has no such processes, or no more of them.
    """
    import subprocess

    if os.name != "posix":
        raise SetupError("Process needs a POSIX system", hint="BackgroundThread[X] runs here.")
    # Ctrl-C in a terminal reaches the new process, too, also before it can say that it ignores it.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen([sys.executable, *flags, "-c", code], pass_fds=keep)  # noqa: S603
    except OSError as error:
        raise SetupError(f"no process could be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def end_with_parent(parent: int, wait: Callable[[], object]) -> None:
    """Let this process, which ``parent`` started, end when that does, and leave Ctrl-C to it.

    Args:
        parent: Its number.
        wait: Comes back when it has ended, where the system does not tell.
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
"""From ``linux/prctl.h``. It counts the end of the thread that started the process as that of the parent."""
