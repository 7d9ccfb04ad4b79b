"""How a thread waits for a CUDA stream: it spins if the wait is short, and sleeps if it is long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SHORT_S", "Waiting"]

SHORT_S = 0.0005
"""After a wait shorter than this, in seconds, the next wait spins. After a longer one it sleeps.

The driver wakes a sleeping thread by an interrupt, 20 to 200 us after the end of the work, later on a virtual
machine. A spinning thread sees the end at once, but keeps a processor busy during its wait. The interpreter lock is
released in both cases.
"""


class Waiting:
    """The events of one thread waiting for streams of one device.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asleep: Any = torch.cuda.Event(blocking=True)
        self._awake: Any = torch.cuda.Event()
        self._event = self._asleep

    def wait(self, stream: torch.cuda.Stream) -> None:
        """Wait until the stream has done all work that was queued on it so far."""
        event, clock = self._event, self._clock
        event.record(stream)
        began = clock()
        event.synchronize()
        self._event = self._awake if clock() - began < SHORT_S else self._asleep
