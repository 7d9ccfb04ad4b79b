"""Starting another process of Python, and seeing its end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def memory_file() -> int:
    """Open a file in memory that has no name; give its descriptor."""
    create = getattr(os, "memfd_create", None)
    if create is not None:
        return create("headrace")  # type: ignore[no-any-return]
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

        told = ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) == 0
    except (ImportError, OSError, AttributeError):
        told = False
    if not told:
        threading.Thread(target=lambda: (wait(), os._exit(1)), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


_PR_SET_PDEATHSIG = 1
"""From ``linux/prctl.h``. It counts the end of the thread that started the process as that of the parent."""


def wait_for_end(process: subprocess.Popen[bytes], told: Callable[[], bool], file: int) -> int:
    """Wait for the end of a process, and call ``told()`` whenever ``file`` can be read meanwhile.

    Args:
        process: The process.
        told: Reads; tells whether there can be more.
        file: A descriptor that shows the end, too, unless a process that it has started keeps it open.

    Returns:
        The status with which it has ended, see `subprocess.Popen.returncode`.
    """
    try:
        end = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        while told():
            pass
        return process.wait()
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(file, selectors.EVENT_READ)
            selector.register(end, selectors.EVENT_READ)
            while end not in (ready := {key.fd for key, _ in selector.select()}):
                if ready and not told():
                    break
        return process.wait()
    finally:
        os.close(end)
