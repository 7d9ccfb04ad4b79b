"""The outputs of one instance: where the engine writes them, and how they get to their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_trt.arrays import ArrayKind, DeviceArray, StreamRef, item_bytes, numpy_dtype
from headrace_trt.memory import Buffer, DevicePool, PinnedArena, close_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_trt.cuda import Cuda
    from headrace_trt.execution import Execution
    from headrace_trt.signature import Port, Signature

__all__ = ["Outputs", "Raw", "nbytes_of"]


class Raw(NamedTuple):
    """An output as the engine left it.

    Attributes:
        port: Which output.
        shape: Its shape.
        pointer: Its address on the device.
        owner: The block that is its own; None in a buffer that is used again.
        host: The array, where the engine writes it in memory of the host.
    """

    port: Port
    shape: tuple[int, ...]
    pointer: int
    owner: Any
    host: Any


class Outputs:
    """Memory for outputs: a buffer each for what goes to the host, blocks of a pool for what stays.

    Args:
        cuda: The CUDA runtime.
        signature: What the engine gives.
        stream: The instance's stream.
        arena: Pinned memory for what goes to the host.
        ordinal: The device.
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
        self.pool = DevicePool(cuda, stream.handle)
        self.ports = (*signature.outputs, *signature.unwanted)
        self._cuda = cuda
        self._signature = signature
        self._stream = stream
        self._arena = arena
        self._ordinal = ordinal
        self._buffers = {port.name: Buffer(cuda) for port in self.ports}
        self._kinds: dict[str, ArrayKind] = {}

    def buffer(self, port: Port, nbytes: int) -> int:
        """Give the address of the buffer of an output, at least ``nbytes`` large."""
        found = self._buffers[port.name]
        found.reserve(nbytes)
        return found.pointer

    def fits(self, port: Port, nbytes: int) -> bool:
        """Tell whether the buffer of an output is large enough as it is."""
        return self._buffers[port.name].nbytes >= nbytes

    def target(self, execution: Execution, port: Port, shape: tuple[int, ...]) -> Raw:
        """Give an output its memory and tell the context where that is."""
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

    def told(self, raw: Raw) -> Raw:
        """Give an output whose size the data decided with what it became."""
        if -1 not in raw.shape:
            return raw
        allocator = raw.owner
        if allocator.error is not None:
            raise allocator.error
        block = allocator.block
        return Raw(raw.port, allocator.shape, block.pointer if block else 0, block, None)

    def fetch(self, raws: Sequence[Raw], kept: list[Any]) -> list[Any]:
        """Queue what brings outputs to where they are wanted; give arrays that are not finished yet.

        Args:
            raws: Outputs of a run.
            kept: Takes what must live until the work that is queued is done.
        """
        fetched: list[Any] = []
        for raw in raws:
            nbytes = nbytes_of(raw.port, raw.shape)
            if self.on_device:
                fetched.append(self._device_array(raw, nbytes, kept))
            elif raw.host is not None:
                fetched.append(raw.host)
            else:
                pointer, view = self._arena.take(nbytes)
                if nbytes:
                    self._cuda.queue_copy(pointer, raw.pointer, nbytes, self._stream.handle)
                if raw.owner is not None:
                    kept.append(raw.owner)
                fetched.append(view.view(numpy_dtype(raw.port.dtype)).reshape(raw.shape))
        return fetched

    def _device_array(self, raw: Raw, nbytes: int, kept: list[Any]) -> DeviceArray:
        owner, pointer = raw.owner, raw.pointer
        if owner is None:
            owner = self.pool.take(nbytes)
            source = pointer if raw.host is None else raw.host.ctypes.data
            if nbytes:
                self._cuda.copy(owner.pointer, source, nbytes, self._stream.handle)
            kept.append(raw.host)
            pointer = owner.pointer
        return self.array(raw.port, pointer, raw.shape, owner)

    def array(self, port: Port, pointer: int, shape: tuple[int, ...], owner: Any) -> DeviceArray:
        """Give an array on the device of an input or output; ``owner`` is kept as long as it lives."""
        kind = self._kinds.get(port.name)
        if kind is None:
            kind = ArrayKind(self._cuda, self._stream, self._ordinal, port.dtype, shape)
            self._kinds[port.name] = kind
        elif kind.shape != shape:
            kind = self._kinds[port.name] = kind.of_shape(shape)
        return kind.array(pointer, owner)

    def close(self) -> None:
        """Give the memory back that nobody holds."""
        close_all([*self._buffers.values(), self.pool])


def nbytes_of(port: Port, shape: tuple[int, ...]) -> int:
    """Give the size of an output of a shape, in bytes."""
    count = item_bytes(port.dtype)
    for length in shape:
        count *= length
    return count
