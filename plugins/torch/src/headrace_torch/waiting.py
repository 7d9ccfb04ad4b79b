"""How a thread waits for a CUDA stream: awake where that is short, asleep where it is long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SHORT_S", "Waiting"]

SHORT_S = 0.0005
"""The longest wait that the next one is passed awake after, in seconds.

The driver wakes a sleeping thread by an interrupt: 20 to 200 us later, on a virtual machine most. Awake,
a thread sees the end at once, and keeps a processor busy for as long as it waits. It holds the
interpreter's lock in neither case.
"""


class Waiting:
    """The events of one thread that waits for streams of one device.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asleep: Any = torch.cuda.Event(blocking=True)
        self._awake: Any = torch.cuda.Event()
        self._event = self._asleep

    def wait(self, stream: torch.cuda.Stream) -> None:
        """Wait until what the stream has been given is done."""
        event, clock = self._event, self._clock
        event.record(stream)
        began = clock()
        event.synchronize()
        self._event = self._awake if clock() - began < SHORT_S else self._asleep
