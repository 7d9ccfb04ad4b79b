"""Loads a plan for a tool, as a pipeline loads it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import headrace
from headrace.errors import SetupError
from headrace_trt.backends.load_engine import LoadTensorrtEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_trt.engines.engine import Engine
    from headrace_trt.libraries.cuda import Cuda

__all__ = ["opened"]

_PLAN_SUFFIXES: Final = (".trt", ".engine", ".plan")


@contextlib.contextmanager
def opened(path: Path | str, **options: Any) -> Iterator[tuple[Engine, Cuda]]:
    """Load a plan for the time of a block.

    Args:
        path: The plan.
        options: Options of `LoadTensorrtEngine`, and ``device`` (as ``"cuda:1"``), as in a configuration.

    Raises:
        ConfigError: An option is wrong.
        SetupError: The file is no plan, there is no device, or the plan does not fit it.
        MissingDependencyError: TensorRT is not installed.
    """
    if Path(path).suffix.lower() not in _PLAN_SUFFIXES:
        raise SetupError(
            f"{path} is no plan",
            hint=f"Build one first: `headrace trt build {path} -o net.plan`.",
        )
    from headrace_trt.libraries.cuda import load_cuda

    model = str(path).replace("${", "$${")
    source = {"backend": "LoadTensorrtEngine", **options, "model": model}
    with headrace.plugins.build(source) as built:
        assert isinstance(built.root, LoadTensorrtEngine)  # noqa: S101 - for mypy
        engine: Any = built.root._engine
        cuda = load_cuda()
        cuda.set_device(engine.ordinal)
        yield engine, cuda
