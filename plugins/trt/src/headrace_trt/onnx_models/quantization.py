"""Q/DQ nodes for int8 and fp8, made from samples with ONNX Runtime's quantization tool."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import numpy_helper

from headrace.errors import SetupError
from headrace.plugins import library
from headrace_trt.libraries.logs import warn
from headrace_trt.onnx_models.files import MOST_BYTES, all_graphs, names_read, port_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

_FP8_OPSET = 19
_MOST_FP8 = 448.0
"""The largest number of E4M3."""

__all__ = ["is_quantized", "quantize", "read_arrays", "read_samples"]


def is_quantized(model: onnx.ModelProto) -> bool:
    """Tell whether a graph has Q/DQ nodes."""
    types = {node.op_type for graph in all_graphs(model.graph) for node in graph.node}
    return not types.isdisjoint(("QuantizeLinear", "DequantizeLinear"))


def read_samples(path: Path, names: Sequence[str]) -> list[dict[str, NDArray[Any]]]:
    """Read calibration samples.

    Args:
        path: A folder of ``.npy`` files (for a model of one input) or ``.npz`` files (an array per
            input name), each a sample or rows of them, or one ``.npz`` in which every array holds
            all samples along its first axis.
        names: The inputs of the model.

    Returns:
        One dict per run of the model.

    Raises:
        SetupError: There is nothing to read, an input is missing, or a number is not finite.
    """
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".npy", ".npz"))
        samples = [_sample(file, names) for file in files]
    else:
        whole = _sample(path, names)
        lengths = {array.shape[:1] for array in whole.values()}
        if len(lengths) != 1 or () in lengths:
            arrays = ", ".join(f"{name} {list(array.shape)}" for name, array in whole.items())
            raise SetupError(
                f"{path}: every array holds all samples along its first axis, as many as the others; "
                f"there are {arrays}"
            )
        ((count,),) = lengths
        samples = [{name: array[i : i + 1] for name, array in whole.items()} for i in range(count)]
    if not samples:
        raise SetupError(
            f"{path} holds no calibration samples",
            hint="It is a folder of .npy or .npz files, or one .npz with all samples.",
        )
    for number, sample in enumerate(samples):
        for name, array in sample.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise SetupError(
                    f"{path}: sample {number} of input {name!r} has a number that is not finite",
                    hint="A single one would be the range of all that is computed from it.",
                )
    return samples


def read_arrays(file: Path) -> NDArray[Any] | dict[str, NDArray[Any]]:
    """Read an ``.npy`` file, or the arrays of an ``.npz`` file by name.

    Raises:
        SetupError: The file is neither, is broken, or holds Python objects, whose loading could run code.
    """
    try:
        with file.open("rb") as opened:  # numpy leaves a file open that it cannot read
            loaded = np.load(opened, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            return {name: loaded[name] for name in loaded.files}
    except Exception as error:  # whatever numpy and zipfile raise for a file that is broken
        # Of numpy's ValueErrors only the kind is said: their texts advise to load the objects.
        reason = "" if isinstance(error, ValueError) else f" ({type(error).__name__}: {error})"
        raise SetupError(
            f"{file} holds no arrays of numbers that numpy can read{reason}",
            hint="numpy.savez(file, name=array, ...) writes such files.",
        ) from error


def _sample(file: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    loaded = read_arrays(file)
    if isinstance(loaded, np.ndarray):
        if len(names) != 1:
            raise SetupError(
                f"{file} holds one array, and the model has the inputs {', '.join(names)}",
                hint="Save the inputs of a sample together: numpy.savez(file, name=array, ...).",
            )
        return {names[0]: loaded}
    if len(names) == 1 and len(loaded) == 1:
        return {names[0]: next(iter(loaded.values()))}
    missing = [name for name in names if name not in loaded]
    if missing:
        raise SetupError(
            f"{file} lacks input {missing[0]!r}; it has {', '.join(loaded) or 'nothing'}"
        )
    return {name: loaded[name] for name in names}


def quantize(
    model: onnx.ModelProto, precision: str, calibration: Path | str | None
) -> onnx.ModelProto:
    """Return a model with Q/DQ nodes: as it is where it has them, else calibrated on samples.

    Args:
        model: The model with its weights.
        precision: ``"int8"`` (symmetric, weights per channel) or ``"fp8"`` (E4M3).
        calibration: What `read_samples` reads.

    Raises:
        ValueError: ``precision`` is neither.
        SetupError: The graph has no Q/DQ nodes and there are no samples, or the tool fails.
        MissingDependencyError: ONNX Runtime, whose tool it is, is not installed.
    """
    if precision not in ("int8", "fp8"):
        raise ValueError(f"precision is one of int8, fp8, not {precision!r}")
    if is_quantized(model):
        if calibration is not None:
            warn("`calibration` is not read: the graph has Q/DQ nodes of its own")
        return model
    if calibration is None:
        raise SetupError(
            f"precision = {precision!r}, but the graph has no Q/DQ nodes and `calibration` is not"
            " set",
            hint="Give a folder or .npz of samples in `calibration`, or a model that was quantized"
            " explicitly (ModelOpt or ONNX Runtime write such models).",
        )
    tool = _quantization_tool(precision)
    weights = {tensor.name for tensor in model.graph.initializer}
    ports = [port_of(value) for value in model.graph.input if value.name not in weights]
    ranks = {port["name"]: len(port["shape"] or ()) for port in ports}
    samples = (
        {
            name: array[None] if array.ndim + 1 == ranks[name] else array
            for name, array in sample.items()
        }
        for sample in read_samples(Path(calibration), tuple(ranks))
    )
    try:
        if precision == "fp8":
            model = _with_fp8_operators(model)
        quantized = _calibrated(tool, model, samples, floats=precision == "fp8")
    except Exception as error:  # whatever the tool raises
        raise SetupError(
            f"ONNX Runtime's quantization tool failed: {type(error).__name__}: {error}",
            hint="Do the samples fit the inputs of the model?",
        ) from error
    if not is_quantized(quantized):
        raise SetupError(f"the model has no layer that can be computed in {precision}")
    return _as_fp8(quantized) if precision == "fp8" else quantized


def _quantization_tool(precision: str) -> Any:
    # It is read once, at the import. With telemetry ONNX Runtime writes into the user's home and looks up its maker.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    purpose = f"calibration for {precision}"
    return library("onnxruntime.quantization", "headrace-trt[calibration]", purpose)


def _calibrated(
    tool: Any,
    model: onnx.ModelProto,
    samples: Iterator[dict[str, NDArray[Any]]],
    *,
    floats: bool,
) -> onnx.ModelProto:
    """Run the tool: give the model with Q/DQ nodes whose scales cover what the samples reach.

    Args:
        tool: ONNX Runtime's module for quantization.
        model: The model.
        samples: Arrays by the name of their input, each with its batch axis.
        floats: Whether weights stay floats, with nodes that quantize them, of which fp8 can be made. They are quantized
            per tensor then, else per channel.
    """

    class Reader(tool.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, NDArray[Any]] | None:
            return next(samples, None)

    with tempfile.TemporaryDirectory(prefix="headrace-trt-") as folder, _quiet():
        source, target = str(Path(folder, "model.onnx")), str(Path(folder, "quantized.onnx"))
        onnx.save(model, source, save_as_external_data=True, location="model.weights")
        tool.quantize_static(
            source,
            target,
            Reader(),
            quant_format=tool.QuantFormat.QDQ,
            per_channel=not floats,
            activation_type=tool.QuantType.QInt8,
            weight_type=tool.QuantType.QInt8,
            calibrate_method=tool.CalibrationMethod.MinMax,
            use_external_data_format=model.ByteSize() >= MOST_BYTES,
            op_types_to_quantize=["Conv", "ConvTranspose", "Gemm", "MatMul"],
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "QuantizeBias": False,
                "AddQDQPairToWeight": floats,
            },
        )
        quantized = onnx.load(target)
    _free_outputs(quantized.graph)
    return quantized


def _free_outputs(graph: onnx.GraphProto) -> None:
    """Remove the Q/DQ nodes before the outputs of a graph, which would end at the largest values of the samples."""
    makers = {name: node for node in graph.node for name in node.output}
    readers = Counter(name for node in graph.node for name in names_read(node))
    for value in graph.output:
        last = makers.get(value.name)
        if last is None or last.op_type != "DequantizeLinear" or readers[value.name]:
            continue
        first = makers.get(last.input[0])
        if first is None or first.op_type != "QuantizeLinear" or readers[last.input[0]] > 1:
            continue
        maker = makers.get(first.input[0])
        if maker is not None and readers[first.input[0]] == 1:
            place = list(maker.output).index(first.input[0])
            maker.output[place] = value.name
            graph.node.remove(first)
            graph.node.remove(last)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the tool prints, and the handler that its first warning adds for good, from the calling program."""
    root, own = logging.getLogger(), logging.NullHandler()
    root.addHandler(own)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        root.removeHandler(own)


def _with_fp8_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in an operator set that has fp8."""
    version = next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))
    if version >= _FP8_OPSET:
        return model
    return onnx.version_converter.convert_version(model, _FP8_OPSET)


def _as_fp8(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn symmetric int8 Q/DQ nodes into fp8, with scales at which the largest number stays the same."""
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    scales, zeros = set(), set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scales.add(node.input[1])
            zeros.add(node.input[2])
    for name in scales:
        values = numpy_helper.to_array(weights[name]) * np.float32(127 / _MOST_FP8)
        weights[name].CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))
    for name in zeros:
        count = int(np.prod(weights[name].dims))
        tensor = onnx.helper.make_tensor(
            name, onnx.TensorProto.FLOAT8E4M3FN, weights[name].dims, bytes(count), raw=True
        )
        weights[name].CopyFrom(tensor)
    del model.graph.value_info[:]
    model.ir_version = max(model.ir_version, 9)
    return model
