"""Engines: a plan loaded on one device, with its weights in memory once for all instances of a node."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_tensors.entering import device_context
from headrace_trt.engines.layers import Layer, count_types, layers_from_json, verify_precision
from headrace_trt.libraries.logs import collecting, logger_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx

    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.libraries.tensorrt import Library

__all__ = ["Engine", "load_plan"]


class Engine:
    """An engine that the instances of one node share, each with a context of its own.

    Attributes:
        library: The TensorRT that has loaded it.
        engine: The ``ICudaEngine``.
        label: The file or model it came from, for messages.
        ordinal: The number of its device.
        about: Further entries of ``describe()``.
    """

    def __init__(
        self, library: Library, runtime: Any, engine: Any, *, label: str, ordinal: int
    ) -> None:
        self.library = library
        self.engine = engine
        self.label = label
        self.ordinal = ordinal
        self.about: dict[str, Any] = {}
        self._runtime = runtime
        self._layers: list[Layer] | None = None

    @property
    def profiles(self) -> int:
        """How many optimization profiles it has."""
        return int(self.engine.num_optimization_profiles)

    def layers(self) -> list[Layer]:
        """Return its layers, in the detail with which it was built."""
        if self._layers is None:
            self._layers = self._read_layers()
        return self._layers

    def _read_layers(self) -> list[Layer]:
        if not hasattr(self.engine, "create_engine_inspector"):
            return []
        inspector = self.engine.create_engine_inspector()
        if inspector is None:
            return []
        kind = self.library.trt.LayerInformationFormat.JSON
        return layers_from_json(inspector.get_engine_information(kind))

    def verify(self, precision: str, types: Iterable[str]) -> None:
        """Check the precision in which the engine was built; see `verify_precision`."""
        verify_precision(self.layers(), precision, types, label=self.label)

    def describe(self) -> dict[str, Any]:
        """Return library, plan, profiles and the count of layers by type. JSON-able."""
        return {
            "library": self.library.text,
            "plan": self.label,
            "profiles": self.profiles,
            "layers_by_type": count_types(self.layers()),
            **self.about,
        }

    def close(self) -> None:
        """Release the engine. Its contexts are closed by then, since instances end before their node."""
        with device_context(self.ordinal):
            self.engine = self._runtime = None


def load_plan(  # noqa: PLR0913 - all by name
    library: Library,
    cuda: Cuda,
    plan: bytes,
    *,
    label: str,
    origin: str = "",
    ordinal: int = 0,
    trust: bool = False,
    weights: Path | onnx.ModelProto | None = None,
    weight_streaming_bytes: int | None = None,
) -> Engine:
    """Make an engine of a plan.

    Args:
        library: The TensorRT to run it with.
        cuda: The CUDA runtime.
        plan: The bytes of the plan.
        label: The file or model the plan came from, for messages.
        origin: A text with the library that built it and its device, if known.
        ordinal: The number of the device.
        trust: Whether the plan may hold code that runs on the host.
        weights: A model whose weights replace the plan's. Needed if the plan has none.
        weight_streaming_bytes: For a plan that streams weights, the bytes of weights that stay on the device.

    Raises:
        SetupError: The plan was built by another version or for another GPU (both sides named),
            holds code and is not trusted, or is no plan.
    """
    trt = library.trt
    cuda.set_device(ordinal)
    with collecting() as collected:
        runtime = trt.Runtime(logger_for(library))
        if runtime is None:
            raise SetupError(f"{library.text} cannot run here: {collected.text()}")
        if trust:
            library.need("Runtime.engine_host_code_allowed", "trust_engine")
            runtime.engine_host_code_allowed = True
        loaded = runtime.deserialize_cuda_engine(plan)
        if loaded is None:
            device = cuda.describe(ordinal)
            built = f" ({origin})" if origin else ""
            raise SetupError(
                f"{label}{built} cannot be run by {library.text} on {device['name']}"
                f" (compute capability {device['compute_capability']}): {collected.text()}",
                hint=_hint(collected.text()),
            )
        if weights is not None:
            refit(library, loaded, weights, label)
    if weight_streaming_bytes is not None:
        _stream_weights(library, loaded, weight_streaming_bytes, label)
    return Engine(library, runtime, loaded, label=label, ordinal=ordinal)


def _hint(text: str) -> str:
    lower = text.lower()
    if "host code" in lower or "lean runtime" in lower or "host_code" in lower:
        return (
            "The plan holds code that runs on the host, as version-compatible plans do; set"
            " trust_engine = true if you trust where it comes from."
        )
    if "version" in lower or "serialization" in lower:
        return (
            "A plan runs on the version of TensorRT that built it; build it again from the model."
        )
    if "compute capability" in lower or "different device" in lower or "target gpu" in lower:
        return "A plan runs on the kind of GPU it was built for; build it again on this one."
    if "magic" in lower or "header" in lower:
        return "The file is no plan of TensorRT, or only a part of one."
    return "Build it again from the model with `headrace trt build`."


def refit(library: Library, engine: Any, weights: Path | onnx.ModelProto, label: str) -> None:
    """Replace the weights of an engine by those of a model with the same graph.

    Raises:
        SetupError: The engine was built without ``refit``, or the model does not fit it.
    """
    trt = library.trt
    parser_class = library.need("OnnxParserRefitter", "weights")
    if not engine.refittable:
        raise SetupError(
            f"{label} was built without `refit`: its weights cannot be changed",
            hint="Build it with refit = true (and strip = true to leave the weights out).",
        )
    logger = logger_for(library)
    with collecting() as collected:
        refitter = trt.Refitter(engine, logger)
        parser = parser_class(refitter, logger)
        done = _refit_parsed(parser, weights)
        if not done:
            errors = "; ".join(
                str(parser.get_error(i).desc()) for i in range(getattr(parser, "num_errors", 0))
            )
            raise SetupError(
                f"{label}: the weights do not fit: {errors or collected.text()}",
                hint="The model must have the same graph as the one the plan was built from.",
            )
        missing = list(refitter.get_missing_weights())
        if missing:
            raise SetupError(
                f"{label}: the model has no weights for {', '.join(missing[:5])}",
                hint="The model must have the same graph as the one the plan was built from.",
            )
        if not refitter.refit_cuda_engine():
            raise SetupError(f"{label} could not be refitted: {collected.text()}")


def _refit_parsed(parser: Any, weights: Path | onnx.ModelProto) -> bool:
    import onnx as onnx_module

    from headrace_trt.onnx_models.files import load_model

    if isinstance(weights, Path):
        if not load_model(weights, weights=False, inline=False).functions:
            return bool(parser.refit_from_file(str(weights)))
        weights = load_model(
            weights
        )  # inlined as at the build, because inside of functions weights have other names
    with tempfile.TemporaryDirectory(prefix="headrace-trt-") as folder:
        path = Path(folder, "model.onnx")
        large = weights.ByteSize() >= 1_900_000_000
        onnx_module.save(weights, str(path), save_as_external_data=large)
        return bool(parser.refit_from_file(str(path)))


def _stream_weights(library: Library, engine: Any, budget: int, label: str) -> None:
    library.need("ICudaEngine.weight_streaming_budget_v2", "weight_streaming_bytes")
    if not engine.streamable_weights_size:
        raise SetupError(
            f"{label} has no weights that could be streamed",
            hint="It must be built with weight_streaming_bytes set.",
        )
    engine.weight_streaming_budget_v2 = budget


def io_names(engine: Any, library: Library) -> tuple[Sequence[str], Sequence[str]]:
    """Return the names of an engine's inputs and of its outputs, in the engine's order."""
    mode = library.trt.TensorIOMode
    names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
    takes = [name for name in names if engine.get_tensor_mode(name) == mode.INPUT]
    return takes, [name for name in names if name not in takes]
