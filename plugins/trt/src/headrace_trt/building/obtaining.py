"""Gets the plan for settings in one call: from the cache if it is there, else built and kept."""

from __future__ import annotations

import hashlib
import inspect
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_trt.building.builder import build_plan
from headrace_trt.building.cache import (
    CachedPlan,
    default_cache_dir,
    file_identity,
    get_or_build,
    key_of,
    sidecar_of,
    was_built_here,
)
from headrace_trt.building.plugin_libraries import import_object
from headrace_trt.building.settings import require_settings
from headrace_trt.building.timing import keep_apart, refuse_without_timings
from headrace_trt.libraries.tensorrt import Library, find_library
from headrace_trt.onnx_models.files import content_hash, external_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from headrace_trt.building.builder import BuiltPlan
    from headrace_trt.building.settings import BuildSettings
    from headrace_trt.engines.engine import Engine
    from headrace_trt.libraries.cuda import Cuda

__all__ = ["DEFAULT_CACHE_BYTES", "build_engine", "load_built", "what_is_asked"]

DEFAULT_CACHE_BYTES = 20 << 30


def what_is_asked(
    settings: BuildSettings, library: Library, device: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return everything on which an engine depends. The key of its cache entry is made from it.

    Args:
        settings: What to build.
        library: The TensorRT that builds it.
        device: Name, compute capability and driver of the GPU. None: no GPU takes part.
    """
    recipe: dict[str, Any] = {
        "library": library.name,
        "version": library.version,
        "device": dict(device) if device is not None else None,
        "settings": settings.that_matter(),
    }
    if settings.model is not None:
        recipe["model"] = content_hash(settings.model)
    if settings.calibration is not None:
        recipe["calibration"] = _content(settings.calibration)
    recipe["plugins"] = [_plugin_content(name) for name in settings.plugins]
    recipe["conversions"] = {name: _source_hash(name) for name in _conversions(settings)}
    return recipe


def _conversions(settings: BuildSettings) -> list[str]:
    """Name the modules of `onnx_models` that change the graph before it is built."""
    folds = settings.mean is not None or settings.std is not None or settings.image_input
    conversions = {
        "fp16": "precision",
        "bf16": "precision",
        "int8": "quantization",
        "fp8": "quantization",
    }
    changes = [conversions[settings.precision]] if settings.precision in conversions else []
    return [*changes, *(["image_input"] if folds else [])]


def _source_hash(module: str) -> str:
    """Return the hash of a module's source, so that no engine outlives a change of what makes its graph."""
    source = pkgutil.get_data("headrace_trt.onnx_models", f"{module}.py") or b""
    return hashlib.sha256(source).hexdigest()


def _content(path: Path) -> Any:
    if path.is_dir():
        return {file.name: file_identity(file) for file in sorted(path.iterdir()) if file.is_file()}
    return file_identity(path) if path.is_file() else None


def _plugin_content(name: str) -> Any:
    path = Path(name).expanduser()
    if path.is_file():
        return file_identity(path)
    if ":" in name:
        source = inspect.getsourcefile(import_object(name, "plugins"))
        if source is not None:
            return hashlib.sha256(Path(source).read_bytes()).hexdigest()
    return name


def build_engine(  # noqa: PLR0913 - all by name
    settings: BuildSettings,
    *,
    library: Library | None = None,
    engine: Path | str | None = None,
    cache_dir: Path | str | None = None,
    cache_size_bytes: int = DEFAULT_CACHE_BYTES,
    device: Mapping[str, Any] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    progress: Callable[[int | None, str], AbstractContextManager[Any]] | None = None,
    allow_import: bool = True,
) -> CachedPlan:
    """Return the plan for ``settings``. It is built only if it is not in the cache.

    The network of a function has no content to compare, so it is built every time
    (and kept only in the file ``engine``).

    Args:
        settings: What to build.
        library: The TensorRT to build with. None: the one that ``settings`` names.
        engine: A file to keep the plan in. None: a file in ``cache_dir``, named by the key.
        cache_dir: The folder of the engine cache. None: the user's. A timing cache is kept there
            too, if the settings name none and the library measures kernels.
        cache_size_bytes: Size limit of the folder. Beyond it the plans unused for longest are removed.
        device: Name, compute capability and driver of the GPU, for the key. None: no GPU takes part.
        cancelled: Called at every step of the build, and while another process builds. True ends it.
        progress: Shows the phases of a build.
        allow_import: Whether ``network`` and ``plugins`` may bring in code.

    Raises:
        TypeError: ``settings`` is no `BuildSettings`.
        ValueError: ``cache_size_bytes`` is negative or no whole number.
        SetupError: See `build_plan`, or the files cannot be written. ``engine`` exists and was not built here, or
            ``engine``, or the file of timings, is another one that the build reads.
        MissingDependencyError: TensorRT is not installed.
    """
    require_settings(settings)
    if not isinstance(cache_size_bytes, int) or cache_size_bytes < 0:
        raise ValueError(
            f"cache_size_bytes is a whole number of at least 0, not {cache_size_bytes!r}"
        )
    library_used = library if library is not None else find_library(settings.library)
    _keep_apart(None if engine is None else Path(engine), settings)
    folder = Path(cache_dir) if cache_dir is not None else default_cache_dir()
    if settings.timing_cache is not None:
        refuse_without_timings(library_used)
    elif not library_used.is_rtx and device is not None:
        settings = settings.with_(timing_cache=folder / timing_name(library_used, device))

    def build() -> BuiltPlan:
        return build_plan(
            settings,
            library=library_used,
            cancelled=cancelled,
            progress=progress,
            allow_import=allow_import,
        )

    if settings.network is not None and engine is None:
        built = build()
        return CachedPlan(
            _nowhere(settings),
            built.plan,
            False,
            {**built.describe(), "layers": [layer.as_dict() for layer in built.layers]},
        )
    if settings.plugins and not allow_import:
        build()  # refuses imports before plugins are imported for the key

    recipe = what_is_asked(settings, library_used, device)
    if settings.network is not None:
        recipe["network_built_at"] = _fresh()
    if engine is not None:
        return get_or_build(Path(engine), recipe, build, cancelled=cancelled)
    path = folder / f"{key_of(recipe)}.plan"
    return get_or_build(path, recipe, build, cancelled=cancelled, most_bytes=cache_size_bytes)


def load_built(
    cached: CachedPlan,
    settings: BuildSettings,
    library: Library,
    cuda: Cuda,
    ordinal: int,
    weight_streaming_bytes: int | None,
) -> Engine:
    """Make the engine of a plan that `build_engine` has given, with the weights of the model if it was stripped.

    Args:
        cached: The plan.
        settings: The settings from which it was built.
        library: The TensorRT to run it with.
        cuda: The CUDA runtime.
        ordinal: The number of the device.
        weight_streaming_bytes: Bytes of weights that stay on the device. None: all.

    Raises:
        SetupError: The plan does not fit this library or device.
    """
    from headrace_trt.building.network import prepare_model
    from headrace_trt.engines.engine import load_plan

    weights: Any = None
    if settings.strip and settings.model is not None:
        weights = prepare_model(settings) or settings.model
    return load_plan(
        library,
        cuda,
        cached.plan,
        label=str(cached.path),
        ordinal=ordinal,
        weights=weights,
        weight_streaming_bytes=weight_streaming_bytes,
    )


def timing_name(library: Library, device: Mapping[str, Any]) -> str:
    """Return the name of the timing cache of a version and a device."""
    kind = "".join(c if c.isalnum() else "-" for c in str(device["name"])).lower()
    return f"timing-{library.name}-{library.version}-{kind}.cache"


def _keep_apart(engine: Path | None, settings: BuildSettings) -> None:
    """Refuse to write over another file that the build reads: a file of an option, external data, a plugin library.

    A folder, or a file that was not built here, is not overwritten either.
    """
    if engine is not None and engine.is_dir():
        raise SetupError(
            f"`engine` names the folder {str(engine)!r}", hint="Name a file for the plan."
        )
    options = ("model", "calibration", "timing_cache")
    read = {f"`{option}`": getattr(settings, option) for option in options}
    written = {
        "`engine`": engine,
        "the sidecar of `engine`": None if engine is None else sidecar_of(engine),
        "`timing_cache`": settings.timing_cache,
    }
    if not any(written.values()):
        return
    if settings.model is not None and settings.model.is_file():
        read |= {f"{file.name} of `model`": file for file in external_files(settings.model)}
    read |= {f"{plugin} of `plugins`": Path(plugin).expanduser() for plugin in settings.plugins}
    for name, path in written.items():
        if path is not None:
            keep_apart(path, {other: file for other, file in read.items() if other != name})
    if engine is not None and engine.exists() and not was_built_here(engine):
        raise SetupError(
            f"`engine` names {engine}, which is there and was not built here: it has no sidecar of Headrace's",
            hint="LoadTensorrtEngine loads a plan that was built elsewhere. To build one, name another file.",
        )


def _nowhere(settings: BuildSettings) -> Path:
    return Path(f"<{settings.label}>")


def _fresh() -> str:
    import uuid

    return uuid.uuid4().hex
