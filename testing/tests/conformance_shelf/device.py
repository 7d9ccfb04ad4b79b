"""A device that is none: what is asked of it is done when somebody waits for it, and not before."""

from __future__ import annotations

import array
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

KIND = 2
"""The number of CUDA in DLPack."""


class Device:
    """Work in the order in which it was asked for."""

    def __init__(self) -> None:
        self.work: deque[Callable[[], None]] = deque()

    def later(self, function: Callable[[], None]) -> None:
        """Do something once it is waited for."""
        self.work.append(function)

    def wait(self) -> None:
        """Do all that was asked for."""
        while self.work:
            self.work.popleft()()


class OnHost:
    """What numbers were when they were copied."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers
        self.dtype, self.shape = "float64", (len(numbers),)

    def tolist(self) -> list[float]:
        """Return the numbers."""
        return self.numbers


class OnDevice:
    """An array on the device, of which the CPU sees no more than a copy of what is there now."""

    def __init__(self, memory: array.array[float]) -> None:
        self.memory = memory
        self.dtype, self.shape = "float64", (len(memory),)

    def __dlpack_device__(self) -> tuple[int, int]:
        return KIND, 0

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        address, count = self.memory.buffer_info()
        return {"shape": (count,), "typestr": "<f8", "data": (address, False), "version": 3}

    def cpu(self) -> OnHost:
        """Copy what is there."""
        return OnHost(self.memory.tolist())


def on_device(*numbers: float) -> OnDevice:
    """Make an array with these numbers."""
    return OnDevice(array.array("d", numbers))
