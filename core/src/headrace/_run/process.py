"""The fork and the exit of this process; calls that some platforms lack stand here."""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import signal
import sys
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from headrace._run.requests import deadlocks
from headrace._run.steps import box, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace._run.engine import Engine

_log = logging.getLogger("headrace.pipeline")

EXIT_S = 5.0
"""How long the exit of the interpreter waits for batches that run."""


_LAST_STEPS_S = 60
"""How long Python's last steps may take when a batch still runs after `EXIT_S`."""


_open: weakref.WeakValueDictionary[int, Engine] = weakref.WeakValueDictionary()
"""All that is to be closed, by its identity."""


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, by its affinity and its quota.

    The quota is that of a container. A part of a CPU counts as a whole one. The environment
    variable ``PYTHON_CPU_COUNT`` wins, as in Python 3.13: it tells each of several processes that
    share a machine its share.
    """
    count = os.environ.get("PYTHON_CPU_COUNT", "")
    if count.isdecimal() and int(count) > 0:
        return int(count)
    affinity = getattr(os, "sched_getaffinity", None)
    usable = (os.cpu_count() or 1) if affinity is None else len(affinity(0))
    return max(1, math.ceil(min(usable, _quota())))


def _quota() -> float:
    """Return how many CPUs the control groups of this process allow, infinity without a quota.

    A container sees its own group as the root of the mount, though its path may be the one outside.
    """
    quotas = [math.inf]
    for line in _words_of("/proc/self/cgroup"):
        controllers, _, group = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = Path("/sys/fs/cgroup/cpu" if controllers else "/sys/fs/cgroup")
        here = mount / group.strip("/")
        for folder in [here, *here.parents][: len(here.parts) - len(mount.parts) + 1]:
            # The first file is of version 2 of control groups, the others of version 1.
            files = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
            limit = [word for file in files for word in _words_of(folder / file)]
            if len(limit) == 2 and all(map(str.isdecimal, limit)):  # else "max", or -1
                quotas.append(int(limit[0]) / max(1, int(limit[1])))
    return min(quotas)


def _words_of(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return []


def close_at_exit(closable: Engine) -> None:
    """Close ``closable`` before the interpreter ends, if it is still there."""
    _open[id(closable)] = closable


def _still_open() -> list[Engine]:
    # `valuerefs` copies in one step: another thread may add what it has just built meanwhile.
    return [engine for ref in _open.valuerefs() if (engine := ref()) is not None]


def _at_exit() -> None:
    until = time.monotonic() + EXIT_S
    every = _still_open()
    # Pipelines without a running batch are closed first, before one that hangs uses up the time.
    for closable in sorted(every, key=lambda engine: engine.busy()):
        closable.close(drain=False, timeout=max(0.0, until - time.monotonic()))
    if any(closable.busy() for closable in every):
        _skip_destructors()


def _skip_destructors() -> None:
    """Let the process end although a thread still runs native code.

    The last steps of a process destroy the objects of its libraries while that thread still uses
    them, and the thread aborts the process. With glibc an exit handler ends the process before
    these steps, after Python has ended in good order, with Python's exit status. With another C
    library the process ends at once, with the status 1 after an uncaught exception, else 0.

    Before CPython 3.14 a thread that returns from native code while Python ends is itself ended, by
    unwinding its stack. C++ code on that stack does not allow that, and aborts. So the handler of
    the abort signal lets only that thread sleep until the process ends. Should the main thread
    itself abort, an alarm ends the process.
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
    box.after_fork()
    deadlocks.after_fork()
    for closable in _still_open():
        closable.after_fork()
    _open.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


# What the child process of a fork says.


def report_forked(nodes: Iterable[str]) -> None:
    """Log that a pipeline, built before a fork, answers nobody in this process, and what to do."""
    message = (
        "the pipeline of %s was built before a fork, and its threads live on in the parent process "
        "alone: process %d refuses every request to it. Build it after the fork, in each process: "
        "not at module level under a server that preloads (gunicorn --preload), but in its "
        "lifespan, in a post_fork hook, or on first use."
    )
    _log.error(message, ", ".join(nodes), os.getpid())


def report(unsaid: list[Callable[[], None]]) -> None:
    """Call and remove what has yet to be said."""
    while unsaid:
        unsaid.pop()()
