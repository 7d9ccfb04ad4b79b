"""The stream and the memory of one instance: reused blocks on the device, buffers, pinned host memory."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace_tensors.entering import LEGACY, order_behind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace_trt.libraries.cuda import Cuda

__all__ = ["Block", "Buffer", "DevicePool", "PinnedArena", "Stream"]

_log = logging.getLogger("headrace.trt")

ALIGNMENT: Final = 256
"""The alignment in bytes that TensorRT demands of addresses, and that every allocation of CUDA has."""


def rounded(nbytes: int) -> int:
    """Return a size rounded up to a multiple of the alignment, and at least that."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class Stream:
    """The stream of one instance, which other plugins in the instance find and use too (``("cuda.stream", ordinal)``).

    Attributes:
        handle: The ``cudaStream_t``, as an int.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.handle = cuda.stream_create()

    def close(self) -> None:
        """End the stream."""
        handle, self.handle = self.handle, 0
        if handle:
            self._cuda.stream_destroy(handle)


class Block:
    """A piece of device memory; when the last reference is dropped, it goes back to its pool."""

    __slots__ = ("_pool", "foreign", "nbytes", "pointer")

    def __init__(self, pool: DevicePool, pointer: int, nbytes: int) -> None:
        self._pool = pool
        self.pointer = pointer
        self.nbytes = nbytes
        self.foreign = False
        """Whether another library got the address, and so may have queued work on another stream."""

    def __del__(self) -> None:
        if sys.is_finalizing():
            return  # modules may be unloaded; the driver frees the memory when the process ends
        try:
            self._pool._give_back(self.pointer, self.nbytes, foreign=self.foreign)
        except Exception as error:  # noqa: BLE001 - a destructor cannot raise
            _log.warning(
                "%d bytes of device memory could not be given back: %s", self.nbytes, error
            )


class DevicePool:
    """Blocks of device memory for results, reused in the order of one stream.

    A block is reused only after its result, with all views, was dropped. Any thread may drop a block, also one whose
    current device is another.
    """

    def __init__(self, cuda: Cuda, stream: int, ordinal: int) -> None:
        self._cuda = cuda
        self._stream = stream
        self._ordinal = ordinal
        self._free: dict[int, deque[tuple[int, bool]]] = {}
        self._closed = False

    def take(self, nbytes: int) -> Block:
        """Return a block of at least ``nbytes``.

        Raises:
            CudaError: The device is out of memory, also after the free blocks were given back.
        """
        size = rounded(nbytes)
        waiting = self._free.get(size)
        if waiting:
            try:
                pointer, foreign = waiting.popleft()
            except IndexError:
                pass  # another thread has taken or freed the last one meanwhile
            else:
                if foreign:
                    self._wait_for_others()
                return Block(self, pointer, size)
        from headrace_trt.libraries.cuda import CudaError

        try:
            return Block(self, self._cuda.malloc(size), size)
        except CudaError as error:
            if not error.out_of_memory or not any(self._free.values()):
                raise
            self.trim()
            return Block(self, self._cuda.malloc(size), size)

    def _wait_for_others(self) -> None:
        """Let this stream wait for the work that is queued on the default stream until now.

        A library that got the address by DLPack may have dropped the array while its own work on
        the default stream still reads the memory.
        """
        order_behind(self._stream, LEGACY, self._ordinal)

    def _give_back(self, pointer: int, nbytes: int, *, foreign: bool) -> None:
        if self._closed:
            self._free_there(pointer)
        else:
            self._free.setdefault(nbytes, deque()).append((pointer, foreign))
            # A race with `close` in another thread, which sets `_closed` and then trims. If it trims before the append
            # above, nobody else would free this block, so it is trimmed here. If it trims after, both may trim, and
            # each block is popped by one of them only.
            if self._closed:
                self.trim()

    def trim(self) -> None:
        """Free the blocks that no result holds."""
        for waiting in list(self._free.values()):
            while True:
                try:
                    pointer, _ = waiting.popleft()
                except IndexError:
                    break
                self._free_there(pointer)

    def _free_there(self, pointer: int) -> None:
        with self._cuda.on_device(self._ordinal):
            self._cuda.free(pointer)

    def close(self) -> None:
        """Free the blocks that no result holds; the others are freed when their results are dropped."""
        self._closed = True
        self.trim()


class Buffer:
    """One piece of device memory that grows when more is needed. Growing loses its content.

    Attributes:
        pointer: Its address, 0 before it is first used. It changes when the buffer grows.
        nbytes: Its size.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self.pointer = 0
        self.nbytes = 0

    def reserve(self, nbytes: int) -> bool:
        """Make the buffer at least ``nbytes`` large; return whether its address has changed."""
        if nbytes <= self.nbytes and self.pointer:
            return False
        self.close()
        size = rounded(nbytes)
        self.pointer, self.nbytes = self._cuda.malloc(size), size
        return True

    def close(self) -> None:
        """Give the memory back. Work that uses it must be done."""
        pointer, self.pointer, self.nbytes = self.pointer, 0, 0
        if pointer:
            self._cuda.free(pointer)


class PinnedArena:
    """Pinned host memory for the copies of one batch, taken piece by piece and reset at its end."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._chunks: list[tuple[int, NDArray[np.uint8]]] = []
        self._used = 0

    def take(self, nbytes: int) -> tuple[int, NDArray[np.uint8]]:
        """Return the address of a piece and a view of it; it is valid until the next `reset`."""
        start = self._used
        size = rounded(nbytes)
        if not self._chunks or start + size > len(self._chunks[-1][1]):
            before = len(self._chunks[-1][1]) if self._chunks else 0
            whole = max(size, 2 * before)
            pointer = self._cuda.host_malloc(whole)
            memory = (ctypes.c_ubyte * whole).from_address(pointer)
            self._chunks.append((pointer, np.ctypeslib.as_array(memory)))
            start = 0
        pointer, view = self._chunks[-1]
        self._used = start + size
        return pointer + start, view[start : start + nbytes]

    def reset(self) -> None:
        """Allow all pieces to be reused; copies from and to them must be done."""
        self._used = 0
        while len(self._chunks) > 1:  # the last one is the largest
            pointer, _ = self._chunks.pop(0)
            self._cuda.host_free(pointer)

    def close(self) -> None:
        """Give the memory back."""
        chunks, self._chunks, self._used = self._chunks, [], 0
        for pointer, _ in chunks:
            self._cuda.host_free(pointer)


def close_all(things: list[Any]) -> None:
    """Close several objects, the last first; if one raises an error, close the others before raising it."""
    with contextlib.ExitStack() as stack:
        for thing in things:
            if thing is not None:
                stack.callback(thing.close)
