"""Time per layer of an engine, as TensorRT's profiler reports it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headrace_trt.signature import read_signature
from headrace_trt.tools.benching import Lane, shapes_to_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_trt.cuda import Cuda
    from headrace_trt.engine import Engine
    from headrace_trt.library import Library

__all__ = ["profile_layers"]


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
        shapes: Shapes of inputs by name. An input that is left out has the profile's best shape.
        profile: The index of the optimization profile.
        runs: The number of measured runs. One run before them is not measured.
        nvtx: Whether the context marks layers by NVTX ranges, which Nsight Systems shows.

    Returns:
        ``layers``: name, mean in ms and share, longest first. ``total_ms``. ``run_ms``: a run
        without the profiler, by the host's clock.

    Raises:
        SetupError: The profile does not take a shape, or the size of an output depends on the data.
    """
    signature = read_signature(engine, profile)
    chosen = shapes_to_run(signature, shapes or {})
    lane = Lane(engine, cuda, signature, chosen, profile=profile, copies=False)
    try:
        context, stream = lane.execution.context, lane.stream.handle
        if nvtx:
            engine.library.need("ProfilingVerbosity", "nvtx")
            context.nvtx_verbosity = engine.library.trt.ProfilingVerbosity.DETAILED
        begun = time.perf_counter()
        for _ in range(runs):
            lane.enqueue()
        cuda.stream_synchronize(stream)
        run_ms = 1e3 * (time.perf_counter() - begun) / runs
        profiler = make_profiler(engine.library)
        context.profiler = profiler
        for _ in range(runs):
            lane.enqueue()
            cuda.stream_synchronize(stream)
        times = {name: total / runs for name, total in profiler.times.items()}
    finally:
        lane.close()
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
