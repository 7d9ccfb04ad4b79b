"""`LoadTensorrtEngine`: an engine from an existing plan file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_trt.backends.base import EngineWord
from headrace_trt.backends.options import LoadOptions

if TYPE_CHECKING:
    import headrace
    from headrace_trt.backends.base import EngineSource
    from headrace_trt.engines.engine import Engine
    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.libraries.tensorrt import Library

__all__ = ["LoadTensorrtEngine"]


class LoadTensorrtEngine(EngineWord):
    """Load a plan file (``.trt``, ``.engine``, ``.plan``).

    Use it in the first phase of an IoC, before TensorrtInferTensor. All instances of the node on one
    device share the engine.

    Reads:
        Nothing. It is never called.
    Writes:
        Nothing.
    Batch:
        1 or more, though it is never called.

    Raises:
        BackendError: It was called.
    Source:
        own. A plan is an engine serialized by TensorRT, without any header.
    """

    Options = LoadOptions

    def source(self, options: Any, context: headrace.InitContext) -> EngineSource:
        """Return the identity of the plan file, and what loads it."""
        about = options.model.stat()
        return (repr(options), about.st_mtime_ns, about.st_size), partial(_engine, options, context)


def _engine(
    options: LoadOptions,
    context: headrace.InitContext,
    library: Library,
    cuda: Cuda,
    ordinal: int,
) -> Engine:
    from headrace_trt.building.cache import origin_of
    from headrace_trt.building.plugin_libraries import load_plugins
    from headrace_trt.engines.engine import load_plan

    load_plugins(library, options.plugins, allow_import=context.allow_import)
    engine = load_plan(
        library,
        cuda,
        options.model.read_bytes(),
        label=str(options.model),
        origin=origin_of(options.model),
        ordinal=ordinal,
        trust=options.trust_engine,
        weights=options.weights,
        weight_streaming_bytes=options.weight_streaming_bytes,
    )
    engine.about = {"device": cuda.describe(ordinal)}
    if options.weights is not None:
        engine.about["weights"] = str(options.weights)
    return engine
