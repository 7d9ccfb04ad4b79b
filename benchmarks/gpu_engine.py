"""Engines of TensorRT: built and measured alone, and as one thread of a program written by hand would call them."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.figures import Figure
    from numpy.typing import NDArray

__all__ = ["EngineBench", "EngineRunner"]


class EngineBench:
    """The engines and figures of one run of a script.

    Args:
        folder: Where models go. Engines go into the user's cache.
        quick: Whether to show that the script runs, not how fast.
    """

    def __init__(self, folder: Path, *, quick: bool) -> None:
        from headrace_trt.libraries.cuda import load_cuda
        from headrace_trt.libraries.tensorrt import find_library

        self.folder = folder
        self.quick = quick
        self.seconds = 0.3 if quick else 2.0
        self.cuda = load_cuda()
        self.cuda.set_device(0)
        self.library = find_library()
        self.figures: dict[str, Any] = {}
        self.kept: list[Figure] = []

    def built(self, model: Path, **settings: Any) -> Any:
        """Return an engine, built or out of the cache."""
        from headrace_trt.building.obtaining import build_engine
        from headrace_trt.building.settings import BuildSettings
        from headrace_trt.engines.engine import load_plan

        found = build_engine(
            BuildSettings(model=model, **settings),
            device=self.cuda.describe(0),
            library=self.library,
        )
        return load_plan(self.library, self.cuda, found.plan, label=str(found.path))

    def alone(self, engine: Any, rows: int, *, streams: int, graph: bool = False) -> Any:
        """Measure an engine by the loop of trtexec."""
        from headrace_trt.engines.signature import read_signature
        from headrace_trt.tools.benching import bench_engine

        (port,) = read_signature(engine).inputs
        shapes = {port.name: (rows, *port.best[1:])}
        most = 0.8 if self.quick else 2.5
        return bench_engine(
            engine,
            self.cuda,
            shapes=shapes,
            streams=streams,
            cuda_graph=graph,
            most_s=most,
        )


class EngineRunner:
    """A context with its stream and buffers: pictures are gathered in pinned memory, results come back.

    Args:
        engine: An engine with one input ``uint8 [N, H, W, 3]`` and one output ``float32 [N, ...]``.
        cuda: The CUDA runtime.
        rows: Most pictures in one call.
        shape: ``H, W, 3``.
    """

    def __init__(self, engine: Any, cuda: Any, rows: int, shape: tuple[int, ...]) -> None:
        plan = engine.engine
        self._cuda, self._shape = cuda, shape
        self._input, self._output = (plan.get_tensor_name(i) for i in range(plan.num_io_tensors))
        self._context = plan.create_execution_context()
        self._stream = cuda.stream_create()
        self._context.set_optimization_profile_async(0, self._stream)
        self._context.set_input_shape(self._input, (rows, *shape))
        row = tuple(self._context.get_tensor_shape(self._output))[1:]
        self._taken, self._takes = self._memory(rows, shape, np.uint8)
        self._given, self._gives = self._memory(rows, row, np.float32)
        self._device = [cuda.malloc(array.nbytes) for array in (self._taken, self._given)]
        for name, pointer in zip((self._input, self._output), self._device, strict=True):
            self._context.set_tensor_address(name, pointer)

    def _memory(self, rows: int, shape: tuple[int, ...], dtype: Any) -> tuple[NDArray[Any], int]:
        """Return pinned memory as an array, and its address."""
        nbytes = rows * math.prod(shape) * np.dtype(dtype).itemsize
        pointer = self._cuda.host_malloc(nbytes)
        memory = (ctypes.c_uint8 * nbytes).from_address(pointer)
        return np.frombuffer(memory, dtype).reshape((rows, *shape)), pointer

    def __call__(self, pictures: list[NDArray[np.uint8]]) -> list[NDArray[np.float32]]:
        """Wait for the rows of the output for a batch of pictures, and give them."""
        count, cuda, stream = len(pictures), self._cuda, self._stream
        taken, given = self._taken[:count], self._given[:count]
        for row, picture in zip(taken, pictures, strict=True):
            row[...] = picture
        cuda.queue_copy(self._device[0], self._takes, taken.nbytes, stream)
        self._context.set_input_shape(self._input, (count, *self._shape))
        self._context.execute_async_v3(stream)
        cuda.queue_copy(self._gives, self._device[1], given.nbytes, stream)
        cuda.stream_synchronize(stream)
        return list(given.copy())

    def close(self) -> None:
        """Release the context, the stream and all memory."""
        self._context = None
        self._cuda.stream_destroy(self._stream)
        for pointer in self._device:
            self._cuda.free(pointer)
        for pointer in (self._takes, self._gives):
            self._cuda.host_free(pointer)
