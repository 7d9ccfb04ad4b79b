"""The few calls of CUDA's runtime that are needed for inputs and results on a device: streams, events, copies."""

from __future__ import annotations

import ctypes
import functools
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import BackendError, InstanceLostError, SetupError
from headrace.plugins import library
from headrace_tensors import is_lost, lost_device
from headrace_tensors.device_copies import DeviceCopies
from headrace_tensors.entering import load_driver

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "SHORT_S",
    "CudaStream",
    "Current",
    "PinnedBuffer",
    "check_ordinal",
    "close_event",
    "copy_to_device",
    "copy_to_host",
    "copy_within_device",
    "gather_within_device",
    "lost_device",
    "make_event",
    "read",
    "wait_for",
]

SHORT_S = 0.0005
"""After a wait shorter than this, in seconds, the next wait spins; after a longer one the thread sleeps."""

_NON_BLOCKING = 1


@functools.cache
def runtime() -> Any:
    """Return ``cuda.bindings.runtime``.

    Raises:
        MissingDependencyError: cuda-bindings is not installed.
    """
    return library("cuda.bindings.runtime", "headrace-ort[gpu]")


def call(function: str, *args: Any) -> Any:
    """Call a function of CUDA's runtime.

    Raises:
        InstanceLostError: The device can run nothing more in this process.
        BackendError: The call failed with any other error.
    """
    error, *results = getattr(runtime(), function)(*args)
    if int(error) != 0:
        name = error.name
        if is_lost(name=name, number=int(error)):
            raise InstanceLostError(
                f"{function} says {name}: the device can run nothing more in this process",
                hint="Start the process again; CUDA_LAUNCH_BLOCKING=1 shows which call it was.",
            )
        raise BackendError(f"{function} says {name}")
    return results[0] if results else None


class CudaStream:
    """A CUDA stream of one instance, in the form that plugins share.

    Args:
        ordinal: The number of the device.

    Attributes:
        handle: The ``cudaStream_t`` as an int.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        with Current(ordinal):
            self._stream = call("cudaStreamCreateWithFlags", _NON_BLOCKING)
        self.handle = int(self._stream)

    def close(self) -> None:
        """Wait for the stream, and destroy it."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            cudart = runtime()
            with Current(self._ordinal):  # else the runtime would begin to use the thread's device
                cudart.cudaStreamSynchronize(stream)  # unchecked: it fails if the device is lost
                cudart.cudaStreamDestroy(stream)


class Current:
    """Makes a device current in this thread for a block, and then the previous device again.

    ONNX Runtime makes the device of a session current in the thread that calls it, and leaves it so. If this process
    does not use the previous device, it is not made current again, because that would allocate memory on it (since
    CUDA 12 ``cudaSetDevice`` initialises a device).
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    def __enter__(self) -> None:
        # The driver is asked first, because its call keeps the interpreter lock.
        driver, ordinal = load_driver(), ctypes.c_int()
        known = driver is not None and not driver.cuCtxGetDevice(ctypes.byref(ordinal))
        self._before = ordinal.value if known else int(call("cudaGetDevice"))
        if not known or self._before != self._ordinal:
            call("cudaSetDevice", self._ordinal)

    def __exit__(self, *error: object) -> None:
        if self._before != self._ordinal and _is_used(self._before):
            call("cudaSetDevice", self._before)


def _is_used(ordinal: int) -> bool:
    """Return whether this process has the primary context of a device, which all users of CUDA's runtime share."""
    from cuda.bindings import driver

    error, _, active = driver.cuDevicePrimaryCtxGetState(driver.cuDeviceGet(ordinal)[1])
    return int(error) == 0 and bool(active)


class PinnedBuffer:
    """Pinned memory for copies to or from the device; it is reused once the stream has done the copies."""

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        self._pointer: Any = None
        self._event: Any = None
        self._bytes = 0
        self._stream: int | None = None  # the stream with copies since the last wait, if any

    def sent(self, stream: int) -> None:
        """Record that a copy from or to this memory was queued on a stream."""
        self._stream = stream

    def passed(self) -> None:
        """Record that the stream is synchronised, so that no copy uses the memory any more."""
        self._stream = None

    def wait(self) -> None:
        """Wait until the copies from and to this memory are done."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            wait_for(stream, self._event)

    def view(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return an array on the first bytes of the buffer, which grows as needed.

        It first waits until earlier copies from and to the buffer are done.
        """
        self.wait()
        size = math.prod(shape) * dtype.itemsize
        if size > self._bytes:
            self.close()
            self._event = make_event(self._ordinal)
            with Current(self._ordinal):
                self._pointer = call("cudaMallocHost", size)
            self._bytes = size
        if size == 0:
            return np.empty(shape, dtype)
        memory = (ctypes.c_uint8 * size).from_address(int(self._pointer))
        return np.frombuffer(memoryview(memory), dtype).reshape(shape)

    def close(self) -> None:
        """Free the memory."""
        event, self._event = self._event, None
        close_event(event)
        if self._pointer is not None:
            pointer, self._pointer, self._bytes = self._pointer, None, 0
            runtime().cudaFreeHost(pointer)


class _Copies(DeviceCopies):
    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        kind = runtime().cudaMemcpyKind.cudaMemcpyDefault
        call("cudaMemcpyAsync", target, source, nbytes, kind, stream)


_copies = _Copies()
copy_within_device = _copies.queue_copy
gather_within_device = _copies.queue_gather


def copy_to_device(target: int, source: np.ndarray[Any, Any], stream: int) -> None:
    """Start a copy of contiguous pinned memory to the device, on a stream."""
    _copies.queue_copy(target, source.ctypes.data, source.nbytes, stream)


def copy_to_host(target: np.ndarray[Any, Any], source: int, stream: int) -> None:
    """Start a copy from the device to contiguous pinned memory, on a stream."""
    _copies.queue_copy(target.ctypes.data, source, target.nbytes, stream)


def read(target: np.ndarray[Any, Any], source: int, stream: int, ordinal: int) -> None:
    """Copy device memory to any array of the host, in order on a stream, and wait for it."""
    with Current(ordinal):
        _copies.copy(target.ctypes.data, source, target.nbytes, stream)
        call("cudaStreamSynchronize", stream)


class _Awaited:
    """Two events for waiting for a stream: one with which the thread spins, one with which it sleeps."""

    def __init__(self, ordinal: int) -> None:
        cudart = runtime()
        with Current(ordinal):
            flags = cudart.cudaEventDisableTiming | cudart.cudaEventBlockingSync
            self.asleep = call("cudaEventCreateWithFlags", flags)
            self.awake = call("cudaEventCreateWithFlags", cudart.cudaEventDisableTiming)
        self.next = self.asleep


def make_event(ordinal: int) -> Any:
    """Make the events for `wait_for`, which uses them for every wait."""
    return _Awaited(ordinal)


def close_event(event: Any) -> None:
    """Destroy the events of `make_event`; None is ignored."""
    if event is not None:
        runtime().cudaEventDestroy(event.asleep)  # unchecked: it fails if the device is lost
        runtime().cudaEventDestroy(event.awake)


def wait_for(stream: int, event: Any, clock: Callable[[], float] = time.perf_counter) -> None:
    """Wait for all work that was queued on a stream.

    The driver wakes a sleeping thread by an interrupt, 20 to 200 us after the end of the work. So after a short wait
    the next wait spins. Only the wait itself releases the interpreter lock.

    Args:
        stream: The handle of the stream.
        event: The events of `make_event`, on the device of the stream.
        clock: Gives the time in seconds.
    """
    driver = load_driver()
    if driver is None or driver.cuEventRecord(int(event.next), stream):
        call("cudaEventRecord", event.next, stream)  # it tells the error
    began = clock()
    call("cudaEventSynchronize", event.next)
    event.next = event.awake if clock() - began < SHORT_S else event.asleep


def check_ordinal(ordinal: int) -> None:
    """Refuse a device that this machine does not have.

    Raises:
        SetupError: There are fewer devices, or none.
    """
    error, count = runtime().cudaGetDeviceCount()
    count = 0 if int(error) else count
    if ordinal >= count:
        there = ", ".join(f"cuda:{number}" for number in range(count)) or "none"
        raise SetupError(
            f"device 'cuda:{ordinal}' is not there",
            hint=f"There are: {there}. Is the driver installed, and the device visible "
            "(CUDA_VISIBLE_DEVICES)?",
        )
