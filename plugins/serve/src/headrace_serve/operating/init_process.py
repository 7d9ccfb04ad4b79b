"""The first moments of a process: SIGHUP that comes before a server, and process 1 of a container."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["HANGUP", "below_init", "hangups"]

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)

_PASSED_ON = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


@contextlib.contextmanager
def hangups() -> Iterator[list[int]]:
    """Note each SIGHUP in a list until the block ends: without a server it would end the process."""
    came: list[int] = []
    before = HANGUP and signal.signal(HANGUP, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        if HANGUP is not None:
            signal.signal(HANGUP, before)


def below_init(serve: Callable[[], int]) -> int:
    """Call a function, in a child process if this is process 1. Give the exit status.

    Process 1 becomes the parent of every process whose parent has ended, as of those of a worker process that was killed.
    Only it can reap them, and it must not do so in the process that waits for children of its own by their numbers.

    Args:
        serve: Serves, and gives the exit status.
    """
    if sys.platform == "win32" or os.getpid() != 1:
        return serve()
    passed_on = {getattr(signal, name) for name in _PASSED_ON}
    # The system drops signals to process 1 for which it has no handler, so they wait until the child is known.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)  # Ctrl-C reaches process 1 alone, which passes it on once
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return serve()
    # That of the command line would send the signal again to a thread in native code.
    signal.set_wakeup_fd(-1)
    for number in passed_on:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
