"""Gets an engine for a tool: loads a plan, or builds a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_trt.cuda import Cuda, device_of, load_cuda
from headrace_trt.engine import Engine, load_plan
from headrace_trt.library import find_library

if TYPE_CHECKING:
    from headrace_trt.settings import BuildSettings

__all__ = ["engine_of_settings", "open_engine"]


def open_engine(
    path: Path | str,
    *,
    library: str = "auto",
    device: str | None = None,
    trust: bool = False,
    weights: Path | str | None = None,
) -> tuple[Engine, Cuda]:
    """Load a plan for a tool.

    Raises:
        SetupError: There is no device, or the plan does not fit it.
        MissingDependencyError: TensorRT is not installed.
    """
    found = find_library(library, build=False)
    cuda = load_cuda()
    ordinal = device_of(device, cuda)
    cuda.set_device(ordinal)
    engine = load_plan(
        found,
        cuda,
        Path(path).read_bytes(),
        label=str(path),
        ordinal=ordinal,
        trust=trust,
        weights=None if weights is None else Path(weights),
    )
    return engine, cuda


def engine_of_settings(
    settings: BuildSettings,
    *,
    device: str | None = None,
    weight_streaming_bytes: int | None = None,
    **where: Any,
) -> tuple[Engine, Cuda]:
    """Build the engine of some settings for a tool, or take it from the cache.

    Args:
        settings: The settings of the build.
        device: The device, as ``"cuda:1"``. None: ``"cuda:0"``.
        weight_streaming_bytes: Bytes of weights that stay on the device. None: all.
        where: More arguments of `build_engine`.

    Raises:
        SetupError: There is no device, or the build fails.
    """
    from headrace_trt.obtaining import build_engine, load_built

    found = find_library(settings.library)
    cuda = load_cuda()
    ordinal = device_of(device, cuda)
    cuda.set_device(ordinal)
    kept = build_engine(settings, library=found, device=cuda.describe(ordinal), **where)
    return load_built(kept, settings, found, cuda, ordinal, weight_streaming_bytes), cuda
