"""Starting another process, which ends with this one. Calls that some platforms lack stand here."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from typing import TYPE_CHECKING

from headrace.errors import SetupError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Sequence


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
    # A signal to the group reaches the new process as well, perhaps before it can leave it to this one. So the
    # signals are blocked here, and the new process inherits that until `end_with_parent` unblocks them.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_GROUPS)
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen([sys.executable, *flags, "-c", code], pass_fds=keep)  # noqa: S603
    except OSError as error:
        raise SetupError(f"no process could be started: {error}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def end_with_parent(parent: int, wait: Callable[[], object]) -> None:
    """Let this process end when its parent does, and leave to the parent what SIGTERM, SIGINT and SIGHUP mean.

    Args:
        parent: The process id of the parent.
        wait: Returns when the parent has ended. Used where the system does not end this process by itself.
    """
    _leave_signals()
    try:
        import ctypes

        arranged = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0
    except (ImportError, OSError, AttributeError):
        arranged = False
    if not arranged:
        threading.Thread(target=lambda: (wait(), os._exit(1)), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _leave_signals() -> None:
    """Let signals that come to a whole group of processes do nothing here.

    A terminal, systemd, supervisord and ``timeout`` send them so. The parent decides what they mean, and may need this
    process until its requests have ended.
    """
    before = {}
    for number in _OF_GROUPS:
        # A handler, and not SIG_IGN: programs that are started here would inherit that they ignore the signal.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _leave_to_parent)
            signal.siginterrupt(number, False)
    # What is forked here, as by multiprocessing, ends by SIGTERM as ever, from its first moment.
    forking = threading.local()

    def block() -> None:
        forking.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_GROUPS)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, forking.blocked)

    def restore() -> None:
        for number, handler in before.items():
            if signal.getsignal(number) is _leave_to_parent:
                signal.signal(number, handler)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=restore)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_GROUPS)


def ended_with(status: int) -> tuple[str, str | None]:
    """Say how a process has ended, by a signal or with an exit status; and what that may mean, or None."""
    if status >= 0:
        return f"with status {status}", None
    hint = "Perhaps the system has killed it because memory ran out." if status == -9 else None
    try:
        return f"of signal {signal.Signals(-status).name}", hint
    except ValueError:
        return f"of signal {-status}", hint


def _leave_to_parent(number: int, frame: object) -> None:
    """Do nothing at a signal."""


_OF_GROUPS = [
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
]
"""Signals that come to groups of processes."""

_PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``. Linux takes the end of the thread that started the process for the parent's."""


# Processors.

_CPUS = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


def read_cpus(text: str) -> set[int]:
    """Read the numbers of processors as ``taskset`` writes them: ``4-15``, ``0,2``, ``0-3,8``.

    Raises:
        ValueError: It is written otherwise, or names none.
    """
    cpus: set[int] = set()
    for part in text.split(","):
        numbers = _CPUS.fullmatch(part.strip())
        if numbers is None:
            raise ValueError(f"{text!r} is no list of processors, such as '4-15' or '0,2'")
        first, last = int(numbers[1]), int(numbers[2] or numbers[1])
        if last < first:
            raise ValueError(f"{text!r} names no processor between {first} and {last}")
        cpus.update(range(first, last + 1))
    return cpus


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
