"""The outputs of one instance: the memory into which the engine writes them, and the copies to the host."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_tensors import numpy_dtype
from headrace_tensors.device_arrays import ArrayKind, DeviceArray, StreamRef, item_bytes
from headrace_trt.running.memory import Buffer, DevicePool, PinnedArena, close_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_tensors import Signature
    from headrace_trt.engines.signature import Port
    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.running.execution import Execution

__all__ = ["Outputs", "Raw", "nbytes_of"]


class Raw(NamedTuple):
    """An output of a run, where the engine has written it.

    Attributes:
        port: The output.
        shape: The shape of the output.
        pointer: The address on the device. 0 if the output is on the host.
        owner: The block of the pool that holds the output (before the run, the allocator of an output whose size
            depends on the data). None if it is in a buffer that is reused.
        host: The numpy array, if the engine writes the output to the host, else None.
    """

    port: Port
    shape: tuple[int, ...]
    pointer: int
    owner: Any
    host: Any


class Outputs:
    """Memory for outputs: outputs for the host use a buffer each, results on the device blocks of a pool.

    Args:
        cuda: The CUDA runtime.
        signature: Inputs and outputs of the engine.
        stream: The instance's stream.
        arena: Pinned memory for copies to the host.
        ordinal: The number of the device.
        on_device: Whether results stay on the device.
    """

    def __init__(
        self,
        cuda: Cuda,
        signature: Signature,
        stream: StreamRef,
        arena: PinnedArena,
        *,
        ordinal: int,
        on_device: bool,
    ) -> None:
        self.on_device = on_device
        self.pool = DevicePool(cuda, stream.handle, ordinal)
        self.ports = (*signature.outputs, *signature.unwanted)
        self._cuda = cuda
        self._signature = signature
        self._stream = stream
        self._arena = arena
        self._ordinal = ordinal
        self._buffers = {port.name: Buffer(cuda) for port in self.ports}
        self._kinds: dict[str, ArrayKind] = {}

    def buffer(self, port: Port, nbytes: int) -> int:
        """Return the address of the buffer of an output, at least ``nbytes`` large."""
        memory = self._buffers[port.name]
        memory.reserve(nbytes)
        return memory.pointer

    def fits(self, port: Port, nbytes: int) -> bool:
        """Tell whether the buffer of an output is large enough without growing."""
        return self._buffers[port.name].nbytes >= nbytes

    def target(self, execution: Execution, port: Port, shape: tuple[int, ...]) -> Raw:
        """Allocate the memory of an output, and set its address in the context."""
        if -1 in shape:
            return Raw(port, shape, 0, execution.allocator(port), None)
        host = execution.host_output(port)
        if host is not None:
            execution.bind(port.name, host.ctypes.data)
            return Raw(port, shape, 0, None, host)
        nbytes = nbytes_of(port, shape)
        if self.on_device and port in self._signature.outputs:
            block = self.pool.take(nbytes)
            execution.bind(port.name, block.pointer)
            return Raw(port, shape, block.pointer, block, None)
        pointer = self.buffer(port, nbytes)
        execution.bind(port.name, pointer)
        return Raw(port, shape, pointer, None, None)

    def resolved(self, raw: Raw) -> Raw:
        """Add shape and block to an output whose size depended on the data.

        Raises:
            CudaError: There was no memory for it.
        """
        allocator = raw.owner
        if allocator.error is not None:
            raise allocator.error
        block = allocator.block
        return Raw(raw.port, allocator.shape, block.pointer if block else 0, block, None)

    def fetch(self, raws: Sequence[Raw], owners: list[Any]) -> list[Any]:
        """Queue the copies of outputs to the host or to memory of their own. Give the arrays, not filled yet.

        Args:
            raws: The outputs of a run.
            owners: Gets the objects that must live until the queued work is done.

        Returns:
            For each output an array, whose values are valid once the stream is synchronised.
        """
        fetched: list[Any] = []
        for raw in raws:
            if self.on_device:
                fetched.append(self._device_array(raw, owners))
            elif raw.host is not None:
                fetched.append(raw.host)
            else:
                nbytes = nbytes_of(raw.port, raw.shape)
                pointer, view = self._arena.take(nbytes)
                if nbytes:
                    self._cuda.queue_copy(pointer, raw.pointer, nbytes, self._stream.handle)
                if raw.owner is not None:
                    owners.append(raw.owner)
                fetched.append(view.view(numpy_dtype(raw.port.dtype)).reshape(raw.shape))
        return fetched

    def _device_array(self, raw: Raw, owners: list[Any]) -> DeviceArray:
        owner, pointer = raw.owner, raw.pointer
        if owner is None:
            nbytes = nbytes_of(raw.port, raw.shape)
            owner = self.pool.take(nbytes)
            source = pointer
            if raw.host is not None:
                # A copy of memory that is not pinned reads it at once, and the engine may not have written it yet.
                self._cuda.stream_synchronize(self._stream.handle)
                source = raw.host.ctypes.data
            if nbytes:
                self._cuda.copy(owner.pointer, source, nbytes, self._stream.handle)
            owners.append(raw.host)
            pointer = owner.pointer
        return self.array(raw.port, pointer, raw.shape, owner)

    def array(self, port: Port, pointer: int, shape: tuple[int, ...], owner: Any) -> DeviceArray:
        """Return a device array for an input or output; the array keeps ``owner`` alive."""
        kind = self._kinds.get(port.name)
        if kind is None:
            kind = ArrayKind(self._cuda, self._stream, self._ordinal, port.dtype, shape)
            self._kinds[port.name] = kind
        elif kind.shape != shape:
            kind = self._kinds[port.name] = kind.of_shape(shape)
        return kind.array(pointer, owner)

    def close(self) -> None:
        """Free the memory that no result holds."""
        close_all([*self._buffers.values(), self.pool])


def nbytes_of(port: Port, shape: tuple[int, ...]) -> int:
    """Return the size of an output of a shape, in bytes."""
    return item_bytes(port.dtype) * math.prod(shape)
