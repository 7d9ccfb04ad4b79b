"""`LoadTensorrtEngine`: an engine from an existing plan file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_trt.backends.base import EngineWord, cuda_for, device_errors_in_setup
from headrace_trt.backends.options import LoadOptions

if TYPE_CHECKING:
    import headrace
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

    def init(self, options: LoadOptions, context: headrace.InitContext) -> None:
        """Take the engine from the node's store, or load it."""
        from headrace_trt.libraries.tensorrt import find_library

        with device_errors_in_setup():
            library = find_library(options.library)
            cuda, ordinal = cuda_for(context)
            about = options.model.stat()
            key = ("headrace_trt.engine", ordinal, repr(options), about.st_mtime_ns, about.st_size)
            engine = context.store.node.get_or_create(
                key, lambda: _engine(options, context, library, cuda, ordinal)
            )
            self._offer(context, engine)


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
