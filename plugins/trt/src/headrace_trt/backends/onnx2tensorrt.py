"""`Onnx2Tensorrt`: an engine from an ONNX file, built once and kept."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_trt.backends.base import EngineWord
from headrace_trt.backends.options import BuildOptions

if TYPE_CHECKING:
    import headrace
    from headrace_trt.backends.base import EngineSource
    from headrace_trt.building.settings import BuildSettings
    from headrace_trt.engines.engine import Engine
    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.libraries.tensorrt import Library

__all__ = ["Onnx2Tensorrt"]


class Onnx2Tensorrt(EngineWord):
    """Build an engine from an ONNX file, or take it from the engine cache.

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
        own. Options as in TensorRT's builder and trtexec.
    """

    Options = BuildOptions

    def source(self, options: Any, context: headrace.InitContext) -> EngineSource:
        """Return the identity of what is built, and what takes it from the cache or builds it."""
        settings = _settings(options, context)
        return _identity(options, settings), partial(_engine, options, settings, context)


def _settings(options: BuildOptions, context: headrace.InitContext) -> BuildSettings:
    """Return the settings of the build, without mean and std if an earlier element applies the same values.

    A key of a node reaches every element with that option. So if Mat2Tensor and this backend are in one node,
    both get ``mean`` and ``std``, but only one of them may apply them.
    """
    settings = options.settings(min=context.batch.min, max=context.batch.max)
    if settings.image_input or (settings.mean is None and settings.std is None):
        return settings
    for mean, std in context.store.instance.get("normalized", ()):
        if (_numbers(mean), _numbers(std)) == (settings.mean, settings.std):
            context.logger.info(
                "mean and std are applied before the network and not folded into it"
            )
            return settings.with_(mean=None, std=None)
    context.logger.warning(
        "mean and std are folded into the network of %s: nothing before it may apply them too",
        settings.label,
    )
    return settings


def _numbers(value: Any) -> tuple[float, ...] | None:
    if value is None or isinstance(value, tuple):
        return value
    return (float(value),)


def _identity(options: BuildOptions, settings: BuildSettings) -> str:
    """Return an equal text for backends that ask for the same engine."""
    file: Any = None
    if options.model is not None:
        about = options.model.stat()
        file = (str(options.model.resolve()), about.st_mtime_ns, about.st_size)
    return repr((options, settings, file))


def _engine(
    options: BuildOptions,
    settings: BuildSettings,
    context: headrace.InitContext,
    library: Library,
    cuda: Cuda,
    ordinal: int,
) -> Engine:
    from headrace_trt.building.obtaining import build_engine, load_built
    from headrace_trt.building.plugin_libraries import load_plugins

    device = cuda.describe(ordinal)
    load_plugins(library, settings.plugins, allow_import=context.allow_import)
    built = build_engine(
        settings,
        library=library,
        engine=options.engine,
        cache_dir=options.cache_dir,
        cache_size_bytes=options.cache_size_bytes,
        device=device,
        cancelled=context.cancelled,
        progress=context.progress,
        allow_import=context.allow_import,
    )
    streaming_bytes = options.weight_streaming_bytes
    engine = load_built(built, settings, library, cuda, ordinal, streaming_bytes)
    types = built.sidecar.get("network_types") or ()
    engine.verify(settings.precision, types)
    engine.about = {
        "model": settings.label,
        "cache_hit": built.hit,
        "built_in_s": built.sidecar.get("seconds"),
        "precision": settings.precision,
        "tf32": settings.tf32,
        "folded": {"mean": settings.mean, "std": settings.std, "image_input": settings.image_input},
        "device": device,
    }
    if not engine.layers():
        engine.about["layers_by_type"] = built.sidecar.get("layers_by_type")
    return engine
