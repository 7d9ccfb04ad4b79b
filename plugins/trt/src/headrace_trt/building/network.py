"""Makes networks, by parsing ONNX or by calling a function; an error has all errors of the parser."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError, among
from headrace_trt.building.plugin_libraries import import_object
from headrace_trt.building.profiles import NetworkInput
from headrace_trt.libraries.logs import warn

if TYPE_CHECKING:
    import onnx

    from headrace_trt.building.settings import BuildSettings
    from headrace_trt.libraries.logs import Collected
    from headrace_trt.libraries.tensorrt import Library

__all__ = ["Network", "make_network", "prepare_model"]


@dataclass
class Network:
    """A network that is ready to be built, with the objects that must live as long.

    Attributes:
        builder: The builder of the network.
        definition: TensorRT's ``INetworkDefinition``.
        inputs: The inputs of the network.
        kept: Objects that own memory to which the network points.
    """

    builder: Any
    definition: Any
    inputs: tuple[NetworkInput, ...]
    kept: list[Any] = field(default_factory=list)

    def tensor_types(self) -> set[str]:
        """Return the names of TensorRT's types of all tensors between layers."""
        kinds = set()
        for i in range(self.definition.num_layers):
            layer = self.definition.get_layer(i)
            for k in range(layer.num_outputs):
                kinds.add(layer.get_output(k).dtype.name)
        return kinds


def prepare_model(settings: BuildSettings) -> onnx.ModelProto | None:
    """Prepare the graph for the build: inline its functions, fold in mean and std, convert and quantize it.

    Returns:
        The changed model. None if the file is built unchanged.

    Raises:
        SetupError: A setting does not fit the graph.
    """
    if settings.model is None:
        return None
    from headrace_trt.onnx_models.files import (
        add_default_operators,
        forget_unknown_axes,
        load_model,
    )
    from headrace_trt.onnx_models.image_input import fold_image_input

    folds = settings.mean is not None or settings.std is not None or settings.image_input
    if settings.precision == "model" and not folds:
        written = load_model(settings.model, weights=False, inline=False)
        _warn_of_doubles(written)
        unchanged = not (written.functions or written.graph.sparse_initializer)
        if unchanged and not forget_unknown_axes(written):
            return None
        model = load_model(settings.model)
        forget_unknown_axes(model)
        return model
    model = load_model(settings.model)
    add_default_operators(model)
    _warn_of_doubles(model)
    forget_unknown_axes(model)
    if settings.precision in ("int8", "fp8"):
        from headrace_trt.onnx_models.quantization import quantize

        # Quantized before folding, because the samples for calibration are inputs of the model in the file.
        model = quantize(model, settings.precision, settings.calibration)
    model = fold_image_input(
        model, mean=settings.mean, std=settings.std, image_input=settings.image_input
    )
    if settings.precision in ("fp16", "bf16"):
        from headrace_trt.onnx_models.precision import convert_precision

        model = convert_precision(model, settings.precision, settings.keep_fp32)
    return model


def _warn_of_doubles(model: onnx.ModelProto) -> None:
    """Warn that TensorRT has no float64, because its parser silently uses float32 instead."""
    from onnx import TensorProto

    graph = model.graph
    ports = (*graph.input, *graph.output, *graph.value_info)
    wide = [port.name for port in ports if port.type.tensor_type.elem_type == TensorProto.DOUBLE]
    wide += [tensor.name for tensor in graph.initializer if tensor.data_type == TensorProto.DOUBLE]
    if wide:
        warn(f"TensorRT has no float64: {wide[0]!r} and what is computed from it are float32")


def make_network(
    library: Library, logger: Any, settings: BuildSettings, collected: Collected
) -> Network:
    """Make the network of a build, strongly typed.

    Raises:
        SetupError: The model cannot be parsed (with every error of the parser and its node), a
            function of ``network`` fails, or an output to mark is unknown.
    """
    trt = library.trt
    builder = trt.Builder(logger)
    if builder is None:
        raise SetupError(f"{library.text} has no builder here: {collected.text()}")
    flags = 0
    if library.has("NetworkDefinitionCreationFlag.STRONGLY_TYPED"):
        flags |= 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    definition = builder.create_network(flags)
    owners: list[Any] = []
    if settings.network is not None:
        _call(settings.network, trt, builder, definition)
    else:
        owners.append(_parse(library, logger, definition, settings, collected))
    if definition.num_outputs == 0:
        raise SetupError(f"the network of {settings.label} has no output")
    _mark_outputs(definition, settings.mark_outputs)
    inputs = []
    for i in range(definition.num_inputs):
        tensor = definition.get_input(i)
        shape = tuple(int(n) for n in tensor.shape)
        axes = range(len(shape)) if hasattr(tensor, "get_dimension_name") else ()
        names = tuple(tensor.get_dimension_name(axis) or "" for axis in axes)
        inputs.append(NetworkInput(tensor.name, shape, bool(tensor.is_shape_tensor), names))
    return Network(builder, definition, tuple(inputs), owners)


def _call(path: str, trt: Any, builder: Any, definition: Any) -> None:
    function = import_object(path, "network")
    try:
        function(trt, builder, definition)
    except SetupError:
        raise
    except Exception as error:
        raise SetupError(
            f"the function {path} failed to build a network: {type(error).__name__}: {error}",
            hint="It is called with TensorRT's module, the builder and an empty network, and marks"
            " the outputs.",
        ) from error


def _parse(
    library: Library, logger: Any, definition: Any, settings: BuildSettings, collected: Collected
) -> Any:
    assert settings.model is not None  # noqa: S101 - one of model and network is set
    from headrace_trt.onnx_models.files import external_files

    parser = library.trt.OnnxParser(definition, logger)
    prepared = prepare_model(settings)
    if prepared is None:
        external_files(settings.model)  # its error for a missing file is clearer than the parser's
        done = parser.parse_from_file(str(settings.model))
    else:
        done = _parse_model(parser, prepared)
    if not done:
        raise SetupError(
            f"{library.text} cannot take {settings.label}:{parser_errors(parser, collected)}",
            hint="`polygraphy inspect capability MODEL` lists every node that it cannot take.",
        )
    return parser


def _parse_model(parser: Any, model: onnx.ModelProto) -> bool:
    """Let TensorRT's parser read a model, from a file where a message cannot hold it; return whether it took it."""
    import onnx

    from headrace_trt.onnx_models.files import MOST_BYTES

    if model.ByteSize() < MOST_BYTES:
        return bool(parser.parse(model.SerializeToString()))
    with tempfile.TemporaryDirectory(prefix="headrace-trt-") as folder:
        path = Path(folder, "model.onnx")
        onnx.save(model, str(path), save_as_external_data=True)
        return bool(parser.parse_from_file(str(path)))


def parser_errors(parser: Any, collected: Collected) -> str:
    """Return every error of a parser, one per line, with the node where it has one."""
    lines = []
    for i in range(parser.num_errors):
        error = parser.get_error(i)
        place = ""
        name = error.node_name() if hasattr(error, "node_name") else ""
        kind = error.node_operator() if hasattr(error, "node_operator") else ""
        if name or kind:
            place = f"node {name or '(nameless)'!r} ({kind or 'unknown operator'}): "
        lines.append(f"\n  {place}{error.desc()}")
    return "".join(dict.fromkeys(lines)) or f" {collected.text()}"


def _mark_outputs(definition: Any, names: tuple[str, ...]) -> None:
    if not names:
        return
    tensors = {}
    for i in range(definition.num_layers):
        layer = definition.get_layer(i)
        for k in range(layer.num_outputs):
            tensor = layer.get_output(k)
            tensors[tensor.name] = tensor
    outputs = {definition.get_output(i).name for i in range(definition.num_outputs)}
    for name in names:
        if name not in tensors:
            lists = "`polygraphy inspect model` lists the tensors; constants cannot become outputs."
            raise SetupError(
                f"`mark_outputs` names {name!r}, which is no tensor of the network",
                hint=among(name, tensors, lists),
            )
        if name not in outputs:
            definition.mark_output(tensors[name])
