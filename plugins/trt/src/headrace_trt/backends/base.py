"""Shared by the backends: the scope keys by which they find each other, their device, errors in setup."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import headrace
from headrace.errors import BackendError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from headrace.keys import Request
    from headrace_trt.engines.engine import Engine
    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.libraries.tensorrt import Library
    from headrace_trt.running.gathering import Gathering

    EngineSource = tuple[Hashable, Callable[[Library, Cuda, int], Engine]]

__all__ = [
    "ENGINE",
    "GATHERING",
    "EngineWord",
    "Held",
    "cuda_for",
    "device_errors_in_setup",
    "gathering_of",
    "stream_of",
]

ENGINE: Final = "headrace_trt.engine"
"""The key of ``context.store.scope`` for the engine, from the backend that provides it to the backend that runs it."""

GATHERING: Final = "headrace_trt.gathering"
"""The key of ``context.store.scope`` for the `Gathering` of TensorrtCat, TensorrtInferTensor and TensorrtSplit."""


class EngineWord(headrace.Backend):
    """Base of the backends that provide an engine. They are built, but never called."""

    owns_thread = True
    reads: tuple[str, ...] | type = ()
    writes: tuple[str, ...] | type = ()
    _engine: Engine | None = None

    def source(self, options: Any, context: headrace.InitContext) -> EngineSource:
        """Return an identity, equal for backends that ask for the same engine, and what makes the engine."""
        raise NotImplementedError

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take the engine from the node's store, or make it. Put it where TensorrtInferTensor looks for it."""
        from headrace_trt.libraries.tensorrt import find_library

        with device_errors_in_setup():
            library = find_library(options.library)
            cuda, ordinal = cuda_for(context)
            identity, make = self.source(options, context)
            engine = context.store.node.get_or_create(
                ("headrace_trt.engine", ordinal, identity), lambda: make(library, cuda, ordinal)
            )
            cell = context.store.scope.get_or_create(ENGINE, lambda: Held(engine))
            if cell.value is not engine:
                cell.value = None  # two backends provide an engine, so `engine_of` raises an error
            self._engine = engine

    def forward(self, batch: list[Request]) -> None:
        """Refuse the call, since TensorrtInferTensor runs the engine."""
        name = type(self).__name__
        raise BackendError(
            f"{name} only brings an engine and cannot be called",
            hint=f"Write IoC[{name},TensorrtInferTensor;TensorrtInferTensor], or TensorrtTensor.",
        )

    def describe(self) -> dict[str, Any]:
        """Return the engine's library, plan, precision and number of layers by type."""
        return self._engine.describe() if self._engine is not None else {}

    def close(self) -> None:
        """Drop the reference to the engine, which is closed with the node."""
        self._engine = None


def engine_of(context: headrace.InitContext) -> Engine:
    """Return the engine of the backend in ``[ ]``, else of the backend before in the same IoC.

    Raises:
        SetupError: No backend provides an engine, or two backends before in the same IoC do.
    """
    if context.children:
        (child,) = context.children
        inner = getattr(child, "child", child)  # what a ModelLoader or Fallback has chosen
        engine: Engine | None = getattr(inner, "_engine", None)
        if engine is None:
            raise SetupError(
                f"{type(inner).__name__} brings no engine",
                hint="Write TensorrtInferTensor[Onnx2Tensorrt], or [LoadTensorrtEngine].",
            )
        return engine
    cell = context.store.scope.get(ENGINE)
    if cell is None:
        raise SetupError(
            "TensorrtInferTensor has no engine before it",
            hint="Write IoC[Onnx2Tensorrt,TensorrtInferTensor;TensorrtInferTensor], or"
            " TensorrtTensor, which puts the backends together.",
        )
    if cell.value is None:
        raise SetupError(
            "two backends bring an engine into one IoC",
            hint="Give each engine an IoC of its own.",
        )
    value: Engine = cell.value
    return value


class Held:
    """Wraps an object in a scope that must not close it: the scope finds no ``close`` in the wrapper."""

    def __init__(self, value: Any) -> None:
        self.value = value


def cuda_for(context: headrace.InitContext) -> tuple[Cuda, int]:
    """Return the CUDA runtime and the ordinal of the node's device, made current in this thread.

    Raises:
        SetupError: The node's ``device`` is no CUDA device of this machine.
        MissingDependencyError: cuda-bindings is not installed.
    """
    from headrace_trt.libraries.cuda import device_of, load_cuda

    cuda = load_cuda()
    ordinal = device_of(context.device, cuda)
    cuda.set_device(ordinal)
    return cuda, ordinal


def stream_of(context: headrace.InitContext, cuda: Cuda, ordinal: int) -> int:
    """Return the handle of the instance's stream. The first plugin that asks for it makes it."""
    from headrace_trt.running.memory import Stream

    stream = context.store.instance.get_or_create(("cuda.stream", ordinal), lambda: Stream(cuda))
    return int(stream.handle)


def gathering_of(context: headrace.InitContext, name: str) -> Gathering:
    """Return the `Gathering` of the TensorrtInferTensor before this backend in the same IoC.

    Raises:
        SetupError: There is no TensorrtInferTensor before it.
    """
    cell = context.store.scope.get(GATHERING)
    if cell is None:
        raise SetupError(
            f"{name} belongs behind a TensorrtInferTensor in the first phase of an IoC",
            hint="TensorrtTensor puts the backends together in the right order.",
        )
    gathering: Gathering = cell.value
    return gathering


@contextlib.contextmanager
def device_errors_in_setup() -> Iterator[None]:
    """Turn an error of the device within the block into a SetupError."""
    from headrace_trt.libraries.cuda import CudaError

    try:
        yield
    except CudaError as error:
        hint = "Lower `max` or `instance_num`." if error.out_of_memory else None
        raise SetupError(str(error), hint=hint) from error
