"""`detect`: a detector in a file, and something to look at, in one line."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import InputError
from headrace.plugins import library
from headrace_vision.models.exports import TABLE, Metadata, check_layout, find_layout

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["NETWORKS", "Detecting", "configuration_of", "detect"]

NETWORKS = {
    ".onnx": "OnnxTensor",
    ".engine": "TensorrtTensor",
    ".plan": "TensorrtTensor",
    ".trt": "TensorrtTensor",
    ".pt2": "GpuTensor,TorchModule,CpuTensor(numpy=true)",
}
"""What runs a network, by the end of its file's name."""

_MEAN, _STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
"""Mean and deviation of the colours of ImageNet, red, green, blue, of 255."""


class Detecting:
    """The frames of `detect`, to loop over once.

    Attributes:
        took: What was taken from the ONNX file, in words.
        config: The configuration that runs.
    """

    def __init__(self, frames: Iterator[Frame], took: str, config: dict[str, Any]) -> None:
        self._frames = frames
        self.took = took
        self.config = config

    def __iter__(self) -> Iterator[Frame]:
        return self._frames

    def __next__(self) -> Frame:
        return next(self._frames)


def detect(  # noqa: PLR0913 - each is what somebody changes in one line
    model: str | os.PathLike[str],
    source: Any,
    *,
    track: str | None = None,
    layout: str = "auto",
    labels: list[str] | None = None,
    score_threshold: float | None = None,
    iou_threshold: float | None = None,
    classes: list[str | int] | None = None,
    size: int | None = None,
    device: str | None = None,
    sinks: Iterable[Any] = (),
    network: Iterable[str] = (),
    **options: Any,
) -> Detecting:
    """Return the frames of a source with what a detector found in them.

    It needs headrace-cv, and headrace-ort, headrace-trt or headrace-torch. Layout, labels, size, channels and type of the input
    are those of an ONNX file, by its metadata (`headrace_vision.models.exports`). What was read, and what was assumed, is in ``took``
    of what this returns, and logged.

    Args:
        model: An ONNX file with one input, ``float32``, ``float16`` or ``uint8 [N, 1 or 3, H, W]``. Or a TensorRT engine
            (``.engine``, ``.plan``, ``.trt``), or a program of torch (``.pt2``), which say neither layout, size nor labels.
        source: See ``VideoRunner.run``.
        track: A tracker (``"bytetrack"``, ...) that numbers the objects of each source. None for none.
        layout: A name in `headrace_vision.models.exports.TABLE`, as ``"v8"``. ``"auto"``: the one that the file tells.
        labels: Names of the classes. None: those in the file, if it has any.
        score_threshold: Boxes of a lower score are dropped, 0 to 1. None: the default of the word.
        iou_threshold: Overlap above which the lesser box is dropped, 0 to 1. None: the default of YoloDetections.
        classes: Names or numbers of the classes that are kept. None keeps all.
        size: Height and width of the input in pixels, where the file leaves them open. None: those in ``imgsz`` of the
            file, else 640.
        device: Where the network runs, as ``"cuda:0"``. None: the default of the word that runs it.
        sinks: See ``VideoRunner``.
        network: See ``VideoRunner``.
        options: See ``SourceOptions``.

    Raises:
        InputError: The file is no such network, is one for another task, or does not tell its layout.
        HeadraceError: The pipeline cannot be built.
    """
    from headrace_vision.running.runner import VideoRunner

    of_model = (layout, labels, score_threshold, iou_threshold, classes, size, device)
    config, took = configuration_of(model, *of_model)
    logging.getLogger("headrace.vision").info("%s", took)
    ordered = None if track is None else {"backend": "Track", "tracker": track}
    runner = VideoRunner(config, ordered=ordered, sinks=sinks, network=network, **options)
    try:
        inner = runner.run(source)
    except BaseException:
        runner.close()
        raise

    def frames() -> Iterator[Frame]:
        with runner:
            yield from inner

    return Detecting(frames(), took, config)


def configuration_of(
    model: str | os.PathLike[str],
    layout: str = "auto",
    labels: list[str] | None = None,
    score_threshold: float | None = None,
    iou_threshold: float | None = None,
    classes: list[str | int] | None = None,
    size: int | None = None,
    device: str | None = None,
) -> tuple[dict[str, Any], str]:
    """Return the configuration that runs a detector, and what was taken from its file, in words.

    Args:
        model: See `detect`.
        layout: See `detect`.
        labels: See `detect`.
        score_threshold: See `detect`.
        iou_threshold: See `detect`.
        classes: See `detect`.
        size: See `detect`.
        device: See `detect`.

    Raises:
        InputError: See `detect`.
        MissingDependencyError: onnxruntime is not installed.
    """
    path = Path(model)
    if not path.is_file():
        expected = f"a file {', '.join(NETWORKS)}"
        raise InputError("there is no such model", expected=expected, got=str(path))
    runner = NETWORKS.get(path.suffix.lower(), NETWORKS[".onnx"])
    # Two instances: while the network computes for one batch, another one is prepared, or its boxes are found.
    config: dict[str, Any] = {"model": str(path), "max": 8, "instance_num": 2}
    if runner == NETWORKS[".onnx"]:
        network = _of_onnx(path, layout, labels, size)
    elif size is None or layout == "auto":
        unknown = "size of the input" if size is None else "layout"
        expected = "size=, in pixels, and layout=: only an ONNX file says them"
        raise InputError(f"the {unknown} is unknown", expected=expected, got=path.name)
    else:
        check_layout(layout)
        network = _Network(layout, labels or [], (size, size))
        config = {"model": str(path)}  # how many it takes at once is in no file
    row, (height, width) = TABLE[network.layout], network.size_hw
    scaled = {} if network.dtype == "uint8" else _scaled(row.pixels, network.channels)
    config |= network.options | {f"Mat2Tensor::{key}": value for key, value in scaled.items()}
    config |= {f"{row.word}::{key}": value for key, value in row.options.items()}
    color = "gray" if network.channels == 1 else row.color
    chain = [f"{row.fit}({height},{width})"]
    chain += [f"CvtColorMat({color})"] * (color != "bgr")  # frames are bgr
    chain += ["Mat2Tensor", *([f"Call(numpy:{network.dtype})"] * (network.dtype != "float32"))]
    chain += [runner, row.word]
    if classes is not None:
        chain.append("FilterDetections")
        config["FilterDetections::classes"] = list(classes)
    config["backend"] = f"S[{','.join(chain)}]"
    if network.names:
        config["labels"] = list(network.names)
    values: dict[str, Any] = {"iou_threshold": iou_threshold, "device": device}
    values[f"{row.word}::score_threshold"] = score_threshold
    config |= {key: value for key, value in values.items() if value is not None}
    by = " (from the file)" * (labels is None and bool(network.names))
    named = f"{len(network.names) or 'unnamed'} classes{by}{network.more}"
    took = [
        f"{path.name}: layout {network.layout}, input {height} x {width}, {named}",
        f"fed with {network.dtype}, {color}, {row.normalisation if scaled else 'pixels 0 to 255'}",
    ]
    keys_by_origin = {"read": network.read, "assumed": network.assumed}
    took += [f"{origin}: {', '.join(keys)}" for origin, keys in keys_by_origin.items() if keys]
    return config, "; ".join(took)


def _scaled(pixels: str, channels: int) -> dict[str, Any]:
    """Return the options of `Mat2Tensor` that make what a network takes of pixels from 0 to 255."""
    if pixels == "mean":
        return {"mean": _MEAN[:channels], "std": _STD[:channels]}
    return {"scale": 1 / 255} if pixels == "0 to 1" else {}


class _Network(NamedTuple):
    """What is known of a network. ``options`` are keys of its node, ``more`` is for ``took``."""

    layout: str
    names: list[str]
    size_hw: tuple[int, int]
    channels: int = 3
    dtype: str = "float32"
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    more: str = ""
    read: Sequence[str] = ()
    assumed: Sequence[str] = ()


_TYPES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(uint8)": "uint8"}


def _of_onnx(path: Path, layout: str, labels: list[str] | None, size: int | None) -> _Network:
    """Return what an ONNX file says; what is given wins."""
    session = _session(path)
    is_of_transformers = {"logits", "pred_boxes"} <= {out.name for out in session.get_outputs()}
    folder = path.parent if is_of_transformers else None
    metadata = Metadata(session.get_modelmeta().custom_metadata_map, folder)
    names = labels if labels is not None else metadata.names
    (image,) = session.get_inputs()
    shape = [1, *image.shape][-4:]
    size_hw, channels = metadata.input_size(shape, size), metadata.channels(shape)
    dtype = _TYPES[image.type]
    outputs = _output_shapes(session, (channels, *size_hw), dtype)
    assumed = []
    if layout == "auto":
        layout, by = find_layout(metadata, names, outputs, size_hw)
        assumed += [by] if by else []
        if layout == "yolonas" and dtype != "uint8":
            text = "the file does not say what pixels become"
            expected = "an export of super-gradients with preprocessing, which takes uint8"
            hint = "If it is a YOLO-NAS, write layout = 'yolonas': pixels 0 to 1."
            raise InputError(text, expected=expected, got=dtype, hint=hint)
    check_layout(layout, metadata, outputs)
    row, keypoints = TABLE[layout], metadata.keypoints()
    options: dict[str, Any] = {}
    if isinstance(shape[0], int):
        options = {"max": shape[0], "pad": shape[0] > 1}
    if row.word == "YoloDetections":
        extra = {"keypoints": keypoints, "oriented": metadata.task == "obb"}
        options |= {key: value for key, value in extra.items() if value}
    if layout == "torchvision" and len(outputs["boxes"]) == 2:
        options["unbatched"] = [*outputs, *([image.name] * (len(image.shape) == 3))]
    if dtype == "uint8":
        assumed.append("the network scales pixels itself")
    is_open = not all(isinstance(side, int) for side in shape[2:])
    if is_open and size is None and metadata.value("imgsz") is None:
        assumed.append("640 pixels")
    more = f", {keypoints[0]} keypoints" if keypoints else ""
    more += ", masks" * any(len(axes) == 4 for axes in outputs.values())
    more += ", oriented boxes" * (metadata.task == "obb")
    return _Network(layout, names, size_hw, channels, dtype, options, more, metadata.read, assumed)


def _session(path: Path) -> Any:
    """Open a network of one image.

    Raises:
        InputError: It is none.
        MissingDependencyError: onnxruntime is not installed.
    """
    # It is read when ONNX Runtime is imported, which else looks up its maker; headrace-ort sets the same.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    onnxruntime = library("onnxruntime", "headrace-ort")
    try:
        # It only says what it is: nothing is optimised, and no thread begins.
        chosen = onnxruntime.SessionOptions()
        chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        chosen.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), chosen, ["CPUExecutionProvider"])
    except Exception as error:
        raise InputError("this is no model", expected="an ONNX file", got=str(error)) from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) not in (3, 4) or inputs[0].type not in _TYPES:
        got = ", ".join(f"{image.name} {image.type} {image.shape}" for image in inputs)
        is_rtdetr = any(tensor.name == "orig_target_sizes" for tensor in inputs)
        hint = "Export it without its postprocessor, and say layout = 'rtdetr'." * is_rtdetr or None
        expected = f"one input [N, C, H, W], {', '.join(_TYPES)}"
        raise InputError("this is no detector", expected=expected, got=got, hint=hint)
    return session


def _output_shapes(session: Any, shape: tuple[int, ...], dtype: str) -> dict[str, list[Any]]:
    """Return the shapes of the outputs by name; those that the file leaves open are those for one black image."""
    shapes = {output.name: list(output.shape) for output in session.get_outputs()}
    if all(isinstance(side, int) for sides in shapes.values() for side in sides[1:]):
        return shapes
    import numpy as np

    image = session.get_inputs()[0]
    count = image.shape[0] if isinstance(image.shape[0], int) else 1
    shape = shape if len(image.shape) == 3 else (count, *shape)
    try:
        answers = session.run(None, {image.name: np.zeros(shape, dtype)})
    except Exception as error:
        expected, got = f"one that takes an image {list(shape)}", str(error)
        raise InputError("the network does not run", expected=expected, got=got) from error
    return {name: list(answer.shape) for name, answer in zip(shapes, answers, strict=True)}
