"""One execution context: its profile, shapes and addresses, and the call of the engine."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import BackendError, NoMemoryError, SetupError, is_out_of_memory
from headrace_tensors import numpy_dtype
from headrace_trt.libraries.logs import collecting, recent_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from headrace_tensors import Signature
    from headrace_trt.engines.engine import Engine
    from headrace_trt.engines.signature import Port
    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.running.memory import Block, DevicePool

__all__ = ["ContextMemory", "Execution", "ScratchTurn", "SharedScratch", "make_allocator"]


@dataclass
class ContextMemory:
    """Scratch memory that several contexts use in turn. Any thread may close it.

    Attributes:
        ordinal: The number of its device.
        pointer: Its address.
        nbytes: Its size, enough for every profile.
    """

    cuda: Cuda
    ordinal: int
    pointer: int
    nbytes: int

    @classmethod
    def for_engine(cls, engine: Engine, cuda: Cuda) -> ContextMemory:
        """Allocate as much as a context of an engine needs under any profile."""
        plan = engine.engine
        name = "device_memory_size_v2" if hasattr(plan, "device_memory_size_v2") else None
        nbytes = int(getattr(plan, name or "device_memory_size"))
        return cls(cuda, engine.ordinal, cuda.malloc(max(nbytes, 1)), nbytes)

    def close(self) -> None:
        """Free the memory; no context may use it any more."""
        pointer, self.pointer = self.pointer, 0
        if pointer:
            with self.cuda.on_device(self.ordinal):
                self.cuda.free(pointer)


class Execution:
    """An execution context of an engine under one profile.

    Args:
        engine: The engine.
        profile: The index of its optimization profile.
        signature: Inputs and outputs of the engine under that profile.
        stream: The handle of the instance's stream.
        strategy: How the context gets scratch memory: ``"static"``, ``"on_profile_change"``, or
            ``"user_managed"`` with ``memory``.
        memory: Scratch memory that other contexts use too, never at the same time.
        pool: The pool for outputs whose size is known only after the run.

    Raises:
        SetupError: There is not enough memory, or the profile cannot be used.
    """

    def __init__(
        self,
        engine: Engine,
        profile: int,
        signature: Signature,
        stream: int,
        *,
        strategy: str = "static",
        memory: ContextMemory | None = None,
        pool: DevicePool,
    ) -> None:
        self._stream = stream
        self._signature = signature
        self._engine = engine
        self._pool = pool
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._bound: dict[str, int] = {}
        self._allocators: dict[str, Any] = {}
        self._has_shape_inputs = any(port.is_shape for port in signature.inputs)
        self._ports = (*signature.outputs, *signature.unwanted)
        host = engine.library.trt.TensorLocation.HOST
        self._on_host = {
            port.name
            for port in self._ports
            if engine.engine.get_tensor_location(port.name) == host
        }
        self.outputs: dict[str, tuple[int, ...]] = {}
        self.context = self._make(strategy, memory, profile)

    def _make(self, strategy: str, memory: ContextMemory | None, profile: int) -> Any:
        library, engine = self._engine.library, self._engine.engine
        chosen = library.choice("ExecutionContextAllocationStrategy", strategy, "context_memory")
        with collecting() as collected:
            context = engine.create_execution_context(chosen)
            if context is None:
                raise SetupError(
                    f"no execution context of {self._engine.label} can be made: {collected.text()}",
                    hint="Lower the `max` of the profiles or `instance_num` if memory is short.",
                )
            if engine.num_optimization_profiles > 0:
                done = context.set_optimization_profile_async(profile, self._stream)
                if not done:
                    raise SetupError(
                        f"profile {profile} of {self._engine.label} cannot be used:"
                        f" {collected.text()}",
                        hint="A plan of an old version may not share a profile between instances.",
                    )
        if memory is not None:
            if hasattr(context, "set_device_memory"):
                context.set_device_memory(memory.pointer, memory.nbytes)
            else:
                context.device_memory = memory.pointer
        return context

    def set_shapes(
        self, shapes: Mapping[str, tuple[int, ...]], pointers: Mapping[str, int]
    ) -> Mapping[str, tuple[int, ...]]:
        """Set the shapes of a run. Give the shapes of its outputs, with -1 for lengths that depend on the data.

        Raises:
            BackendError: The engine refuses a shape, or the combination of shapes.
        """
        if shapes == self._shapes and not self._has_shape_inputs:
            return self.outputs
        context = self.context
        self._shapes = {}
        for port in self._signature.inputs:
            if port.is_shape:
                context.set_tensor_address(port.name, pointers[port.name])
            if not context.set_input_shape(port.name, shapes[port.name]):
                raise BackendError(
                    f"{self._engine.label} refused the shape {list(shapes[port.name])} of input"
                    f" {port.name!r}: {recent_errors()}"
                )
        missing = context.infer_shapes()
        if missing:
            raise BackendError(
                f"{self._engine.label} cannot tell its shapes: {', '.join(missing)} not given;"
                f" {recent_errors()}"
            )
        self.outputs = {
            port.name: tuple(int(n) for n in context.get_tensor_shape(port.name))
            for port in self._ports
        }
        self._shapes = dict(shapes)
        return self.outputs

    def bind(self, name: str, pointer: int) -> None:
        """Set the address of a tensor, unless it is set already."""
        if self._bound.get(name) != pointer:
            if not self.context.set_tensor_address(name, pointer):
                raise BackendError(
                    f"{self._engine.label} refused the address of {name!r}: {recent_errors()}"
                )
            self._bound[name] = pointer

    def allocator(self, port: Port) -> Any:
        """Return the allocator of an output whose size is known only after the run."""
        if port.name not in self._allocators:
            allocator = make_allocator(self._engine.library, self._pool)
            self.context.set_output_allocator(port.name, allocator)
            self._allocators[port.name] = allocator
        allocator = self._allocators[port.name]
        allocator.begin()
        return allocator

    def host_output(self, port: Port) -> NDArray[Any] | None:
        """Return an array on the host if the engine writes the output to the host; else None."""
        if port.name not in self._on_host:
            return None
        return np.zeros(self.outputs[port.name], numpy_dtype(port.dtype))

    def enqueue(self, stream: int | None = None) -> None:
        """Queue the run on the instance's stream, or on another.

        Raises:
            BackendError: TensorRT refused the run.
            CudaError: There was no memory for an output whose size depends on the data.
        """
        if not self.context.execute_async_v3(self._stream if stream is None else stream):
            for allocator in self._allocators.values():
                if allocator.error is not None:  # TensorRT itself only says that it got no memory
                    raise allocator.error
            why = RuntimeError(recent_errors())
            cls = NoMemoryError if is_out_of_memory(why) else BackendError
            raise cls(f"{self._engine.label} could not be run: {why}")

    def close(self) -> None:
        """Release the context. Its work must be done."""
        self.context = None
        self._allocators = {}


def make_allocator(library: Any, pool: DevicePool) -> Any:
    """Make an ``IOutputAllocator`` that takes memory of a pool."""
    base: Any = library.need("IOutputAllocator", "outputs whose size the data decide")

    class Allocator(base):  # type: ignore[misc]
        """Holds the block and the shape of one output of the last run."""

        def __init__(self) -> None:
            base.__init__(self)
            self.block: Block | None = None
            self.shape: tuple[int, ...] = ()
            self.error: Exception | None = None

        def begin(self) -> None:
            """Drop the block of the last run, which belongs to the result of that run."""
            self.block, self.shape, self.error = None, (), None

        def reallocate_output(
            self, tensor_name: str, memory: int, size: int, alignment: int
        ) -> int:
            """Return memory for ``size`` bytes; 0 tells TensorRT that there is none."""
            try:
                if self.block is None or self.block.nbytes < size:
                    self.block = pool.take(max(size, 1))
            except Exception as error:  # noqa: BLE001 - native code calls this: raised after the run
                self.error = error
                return 0
            return self.block.pointer

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            """Return memory for ``size`` bytes."""
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            """Receive the shape of the output."""
            self.shape = tuple(int(n) for n in shape)

    return Allocator()


class SharedScratch:
    """Scratch memory that all instances of a node share; one of them runs at a time."""

    def __init__(self, engine: Engine, cuda: Cuda) -> None:
        self.memory = ContextMemory.for_engine(engine, cuda)
        # Reentrant, because a thread may use two runners in one batch; both queue their work on the same stream.
        self.lock = threading.RLock()

    def close(self) -> None:
        """Give the memory back."""
        self.memory.close()


class ScratchTurn:
    """The turn of one instance at shared scratch memory, from its first run of a batch to the end of the batch."""

    def __init__(self, scratch: SharedScratch) -> None:
        self.memory, self._lock, self._is_taken = scratch.memory, scratch.lock, False

    def take(self) -> None:
        """Wait until no other instance has it, unless this one has."""
        if not self._is_taken:
            self._lock.acquire()
            self._is_taken = True

    def give(self) -> None:
        """Let the next instance run, if this one has it."""
        if self._is_taken:
            self._is_taken = False
            self._lock.release()
