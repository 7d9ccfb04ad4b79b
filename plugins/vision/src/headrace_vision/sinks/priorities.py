"""What an encoder does to the priority of threads, and how it is undone."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["kept_priorities"]


@contextmanager
def kept_priorities() -> Generator[None]:
    """Leave this thread its priority, and give the same to threads that begin in the block: around the opening of an encoder.

    SVT-AV1 takes real time for the thread that opens it and for all its own, where root runs it. Each of them then keeps
    every other thread of the machine from a processor for as long as it computes. Whatever is started later inherits that.
    """
    if sys.platform != "linux":
        yield
        return
    policy, param, before = os.sched_getscheduler(0), os.sched_getparam(0), _threads()
    try:
        yield
    finally:
        for thread in {threading.get_native_id(), *(_threads() - before)}:
            with suppress(OSError):  # it has ended, or may not be changed
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, param)


def _threads() -> set[int]:
    with suppress(OSError):
        return {int(task.name) for task in Path("/proc/self/task").iterdir()}
    return set()
