"""Time per layer of an engine, as TensorRT's profiler reports it."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import SetupError
from headrace_trt.arrays import item_bytes
from headrace_trt.execution import Execution
from headrace_trt.memory import Buffer, DevicePool, Stream, close_all
from headrace_trt.outputs import nbytes_of
from headrace_trt.signature import read_signature
from headrace_trt.tools.benching import shapes_to_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace_tensors import Signature
    from headrace_trt.cuda import Cuda
    from headrace_trt.engine import Engine
    from headrace_trt.library import Library

__all__ = ["profile_layers", "run_once"]


def profile_layers(
    engine: Engine,
    cuda: Cuda,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    profile: int = 0,
    runs: int = 50,
    nvtx: bool = False,
) -> dict[str, Any]:
    """Measure the layers of an engine one by one.

    The profiler waits between layers, so the sum of their times is greater than the time of a run without it.

    Args:
        engine: The engine.
        cuda: The CUDA runtime.
        shapes: Shapes of inputs by name; an input that is left out has the profile's best shape.
        profile: The index of the optimization profile.
        runs: The number of measured runs; two warm-up runs are not measured.
        nvtx: Whether the context marks layers by NVTX ranges, which Nsight Systems shows.

    Returns:
        ``layers``: name, mean in ms and share, longest first; ``total_ms``; ``run_ms``: a run
        without the profiler, by the host's clock.

    Raises:
        SetupError: The profile does not take a shape, or the size of an output depends on the data.
    """
    signature = read_signature(engine, profile)
    with running(engine, cuda, signature, profile, shapes or {}) as (execution, stream):
        context = execution.context
        if nvtx:
            engine.library.need("ProfilingVerbosity", "nvtx")
            context.nvtx_verbosity = engine.library.trt.ProfilingVerbosity.DETAILED
        begun = time.perf_counter()
        for _ in range(runs):
            execution.enqueue()
        cuda.stream_synchronize(stream)
        run_ms = 1e3 * (time.perf_counter() - begun) / runs
        profiler = make_profiler(engine.library)
        context.profiler = profiler
        for _ in range(runs):
            execution.enqueue()
            cuda.stream_synchronize(stream)
        times = {name: total / runs for name, total in profiler.times.items()}
    total = sum(times.values())
    layers = [
        {"name": name, "ms": ms, "share": ms / total if total else 0.0}
        for name, ms in sorted(times.items(), key=lambda pair: -pair[1])
    ]
    return {"layers": layers, "total_ms": total, "run_ms": run_ms, "runs": runs}


def make_profiler(library: Library) -> Any:
    """Make an ``IProfiler`` that adds up the times of layers."""
    base: Any = library.need("IProfiler", "profile")

    class Profiler(base):  # type: ignore[misc]
        """Gets the time of every layer of a run."""

        def __init__(self) -> None:
            base.__init__(self)
            self.times: dict[str, float] = {}

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            """Add a time."""
            self.times[layer_name] = self.times.get(layer_name, 0.0) + ms

    return Profiler()


@contextlib.contextmanager
def running(
    engine: Engine,
    cuda: Cuda,
    signature: Signature,
    profile: int,
    shapes: Mapping[str, Sequence[int]],
) -> Iterator[tuple[Execution, int]]:
    """Return a context that has run twice on inputs of zeros, and its stream."""
    chosen = shapes_to_run(signature, shapes)
    stream = Stream(cuda)
    pool = DevicePool(cuda, stream.handle)
    execution: Execution | None = None
    buffers: list[Buffer] = []
    kept = []
    try:
        execution = Execution(engine, profile, signature, stream.handle, pool=pool)
        pointers = {}
        for port in signature.inputs:
            if port.is_shape:
                kept.append(np.asarray(port.best, port.dtype))
                pointers[port.name] = kept[-1].ctypes.data
                continue
            count = math.prod(chosen[port.name])
            zeros = np.zeros(item_bytes(port.dtype) * count, np.uint8)
            pointers[port.name] = _filled(cuda, buffers, zeros, stream.handle)
        outputs = execution.set_shapes(chosen, pointers)
        for port in (*signature.outputs, *signature.unwanted):
            if -1 in outputs[port.name]:
                raise SetupError(f"the size of output {port.name!r} depends on the data")
            buffer = Buffer(cuda)
            buffers.append(buffer)
            buffer.reserve(nbytes_of(port, outputs[port.name]))
            pointers[port.name] = buffer.pointer
        for name, pointer in pointers.items():
            execution.bind(name, pointer)
        for _ in range(2):
            execution.enqueue()
        cuda.stream_synchronize(stream.handle)
        yield execution, stream.handle
    finally:
        cuda.stream_synchronize(stream.handle)
        if execution is not None:
            execution.close()
        close_all([stream, pool, *buffers])


def _filled(cuda: Cuda, buffers: list[Buffer], content: Any, stream: int) -> int:
    buffer = Buffer(cuda)
    buffers.append(buffer)
    buffer.reserve(content.nbytes)
    if content.nbytes:
        cuda.copy(buffer.pointer, content.ctypes.data, content.nbytes, stream)
    cuda.stream_synchronize(stream)
    return buffer.pointer


def run_once(engine: Engine, cuda: Cuda, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Run an engine once on arrays of the host; give its outputs by name, on the host.

    Raises:
        InputError: An array does not fit its input.
        BackendError: The engine refused the run.
    """
    from headrace_trt.runner import Runner, RunSettings

    signature = read_signature(engine)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(contextlib.closing(Stream(cuda)))
        made = Runner(
            engine,
            cuda,
            stream.handle,
            profile=0,
            signature=signature,
            keys={port.name: port.name for port in signature.inputs},
            settings=RunSettings(),
        )
        runner = stack.enter_context(contextlib.closing(made))
        rows = max(
            (len(feeds[p.name]) for p in signature.inputs if p.batched and p.name in feeds),
            default=1,
        )
        request: dict[str, Any] = {**feeds, "request_size": rows}
        outcomes = runner.forward([request])
        runner.finish()
        if outcomes is not None and outcomes[0] is not None:
            raise outcomes[0]
        result = request["result"]
        if len(signature.outputs) == 1:
            return {signature.outputs[0].name: result}
        return dict(result)
