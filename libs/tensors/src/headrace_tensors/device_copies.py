"""Queues copies between device memory and pinned memory by calls of CUDA's driver that keep the interpreter lock."""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace_tensors.entering import load_driver
from headrace_tensors.gather_kernel import load_gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_tensors.gather_kernel import Gather

__all__ = ["DeviceCopies", "device_of", "is_one_allocation"]

_DEVICE_ORDINAL = 9  # of CUpointer_attribute


def device_of(pointer: int) -> int | None:
    """Return the number of the device on which memory lies. None: the driver does not know it, or there is none."""
    driver, ordinal = load_driver(), ctypes.c_int()
    query = (ctypes.byref(ordinal), _DEVICE_ORDINAL, pointer)
    return None if driver is None or driver.cuPointerGetAttribute(*query) else ordinal.value


def is_one_allocation(pointer: int, nbytes: int) -> bool:
    """Return whether memory of the device that is current in this thread lies in one allocation.

    Two allocations may be neighbours. A kernel reads over their border, but CUDA refuses to copy over it by one call
    (``invalid argument``), and an engine may copy its inputs. So arrays whose addresses follow each other are one array
    only if this is true. Without a driver it is.

    Args:
        pointer: The address of the first byte.
        nbytes: How many bytes.
    """
    driver = load_driver()
    if driver is None:
        return True
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    if driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), pointer):
        return False
    return pointer + nbytes <= base.value + size.value


class DeviceCopies(ABC):
    """Queues copies on streams. The runtime's own call takes over where the driver refuses one, and tells its errors."""

    @abstractmethod
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy between any host or device memory by a call of the runtime, in order on ``stream``."""

    def queue_copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Queue a copy between device memory and pinned memory, each one allocation. It never makes the host wait.

        A batch has a copy per request. The driver's own call costs the host a quarter of a call of the runtime's
        binding. It keeps the interpreter lock, because getting the lock back from other threads would take longer
        than queueing the copy. (A copy of memory that is not pinned is done before the call
        returns: use `copy` for it, which releases the lock.)
        """
        queue = _driver_copy()
        if queue is None or queue(target, source, nbytes, stream):
            self.copy(target, source, nbytes, stream)

    def queue_gather(
        self, target: int, sources: Sequence[int], row_bytes: int, stream: int
    ) -> None:
        """Queue copies of rows of device memory, given by their addresses, to consecutive rows.

        A kernel copies all of them by one launch. If the driver does not accept the kernel, they are copied one by
        one.
        """
        if len(sources) > 1 and self._gather is not None:
            if not self._gather(target, sources, row_bytes, stream):
                return
            # If the device is lost, the copies report it.
            self._gather = None
        for source in sources:
            self.queue_copy(target, source, row_bytes, stream)
            target += row_bytes

    @functools.cached_property
    def _gather(self) -> Gather | None:
        return load_gather()


@functools.cache
def _driver_copy() -> Callable[[int, int, int, int], int] | None:
    """Return the driver's ``cuMemcpyAsync``, called with the interpreter lock held; None without a driver."""
    try:
        function = ctypes.PyDLL("libcuda.so.1").cuMemcpyAsync
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p)
    function.restype = ctypes.c_int
    return function
