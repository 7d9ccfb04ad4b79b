"""`detect`: a detector in a file, and something to look at, in one line."""

from __future__ import annotations

import ast
import logging
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import InputError
from headrace.plugins import library
from headrace_vision.layouts import guess_layout

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

_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
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

    It needs headrace-cv, and headrace-ort, headrace-trt or headrace-torch. Layout, labels and size are taken from an ONNX file,
    as Ultralytics writes them too (``task``, ``names``, ``imgsz``, ``stride``, ``kpt_shape``). What was taken is in ``took`` of
    what this returns, and logged.

    Args:
        model: An ONNX file: a network of the YOLO family (one output, and prototypes of masks), or of the DETR family (boxes,
            logits, and masks). Or a TensorRT engine (``.engine``, ``.plan``, ``.trt``), or a program of torch (``.pt2``), which
            say neither size nor labels.
        source: See ``VideoRunner.run``.
        track: A tracker (``"bytetrack"``, ...) that numbers the objects of each source. None for none.
        layout: ``"auto"``, ``"v5"``, ``"v8"``, ``"end2end"``, ``"yolox"`` or ``"detr"``.
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
        InputError: The file is no such network, is one for another task, or two layouts fit.
        HeadraceError: The pipeline cannot be built.
    """
    from headrace_vision.runner import VideoRunner

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
        raise InputError(
            "there is no such model", expected=f"a file {', '.join(NETWORKS)}", got=str(path)
        )
    runner = NETWORKS.get(path.suffix.lower(), NETWORKS[".onnx"])
    # Two instances: while the network computes for one batch, another one is prepared, or its boxes are found.
    config: dict[str, Any] = {"model": str(path), "max": 8, "instance_num": 2}
    if runner == NETWORKS[".onnx"]:
        network = _of_onnx(path, layout, labels, size)
    elif size is None:
        raise InputError(
            "the size of the input is unknown",
            expected="size=, in pixels: only an ONNX file says it",
            got=path.name,
        )
    else:
        network = _Network(layout, labels or [], (size, size))
        config = {"model": str(path)}  # how many it takes at once is in no file
    layout, names, (height, width), keypoints, has_masks, is_oriented = network
    scaled: dict[str, Any] = {"scale": 1 / 255}
    word, fit = "YoloDetections", "LetterBoxMat"
    if layout == "detr":
        word, fit, scaled = "DetrDetections", "ResizeMat", {"mean": list(_MEAN), "std": list(_STD)}
    elif layout == "yolox":
        fit, scaled = "TopLeftResizeMat", {}
    if layout != "detr":
        config["layout"] = layout
    extra = {"keypoints": keypoints, "oriented": is_oriented}
    config |= {key: value for key, value in extra.items() if value}
    color = [] if layout == "yolox" else ["CvtColorMat(rgb)"]
    chain = [f"{fit}({height},{width})", *color, "Mat2Tensor", runner, word]
    if classes is not None:
        chain.append("FilterDetections")
        config["classes"] = list(classes)
    config["backend"] = f"S[{','.join(chain)}]"
    config |= {f"Mat2Tensor::{key}": value for key, value in scaled.items()}
    if names:
        config["labels"] = list(names)
    given = {
        f"{word}::score_threshold": score_threshold,
        "iou_threshold": iou_threshold,
        "device": device,
    }
    config |= {key: value for key, value in given.items() if value is not None}
    took = (
        f"{path.name}: layout {layout}, input {height} x {width}, "
        f"{len(names) or 'unnamed'} classes{'' if labels is not None else ' (from the file)' * bool(names)}"
        f"{f', {keypoints[0]} keypoints' if keypoints else ''}{', masks' if has_masks else ''}{', oriented boxes' if is_oriented else ''}"
    )
    return config, took


class _Network(NamedTuple):
    layout: str
    names: list[str]
    size_hw: tuple[int, int]
    keypoints: list[int] | None = None
    has_masks: bool = False
    is_oriented: bool = False


def _of_onnx(path: Path, layout: str, labels: list[str] | None, size: int | None) -> _Network:
    """Return what an ONNX file says; what is given wins."""
    session = _session(path)
    described = _Described(session.get_modelmeta().custom_metadata_map)
    names = labels if labels is not None else described.names
    size_hw = described.input_size(session.get_inputs()[0].shape, size)
    outputs = _output_shapes(session, size_hw)
    keypoints = described.keypoints()
    named = [one.name for one in session.get_outputs()]
    family, extra = _family(dict(zip(named, outputs, strict=True)), described.task, keypoints)
    if layout == "auto":
        rows, columns = outputs[0][1:]
        layout = family or guess_layout((rows, columns), size_hw, len(names) or None, extra)
    is_oriented = described.task == "obb"
    return _Network(layout, names, size_hw, keypoints, len(outputs[-1]) == 4, is_oriented)


_TASKS = ("detect", "segment", "pose", "obb")


class _Described:
    """What the metadata of an ONNX file say, as Ultralytics' export writes them.

    Args:
        metadata: Texts by name.

    Attributes:
        task: What the network is for. None where the file says nothing.
        names: Names of the classes. None where the file says none.

    Raises:
        InputError: The network is for another task than `_TASKS`.
    """

    def __init__(self, metadata: dict[str, str]) -> None:
        self._metadata = metadata
        self.task = metadata.get("task")
        if self.task not in (None, *_TASKS):
            raise InputError(
                "this is no detector",
                expected=f"a network for one of the tasks {', '.join(_TASKS)}",
                got=f"one for the task {self.task!r}, as its file says",
            )
        names = self._value("names") or []
        self.names = [str(one) for one in (names.values() if isinstance(names, dict) else names)]

    def _value(self, name: str) -> Any:
        try:
            return ast.literal_eval(self._metadata.get(name, "None"))
        except (ValueError, SyntaxError):
            return None

    def keypoints(self) -> list[int] | None:
        """Return how many keypoints each box has, and of how many numbers.

        Raises:
            InputError: The network is for keypoints, and the file does not say it.
        """
        if self.task != "pose":
            return None
        said = self._value("kpt_shape")
        if isinstance(said, (list, tuple)) and len(said) == 2:
            return [int(one) for one in said]
        raise InputError(
            "it is unknown how many keypoints there are",
            expected="kpt_shape in the file, as [17, 3]",
            got=self._metadata.get("kpt_shape", "nothing"),
        )

    def input_size(self, shape: list[Any], size: int | None) -> tuple[int, int]:
        """Return height and width of the input, in pixels.

        Args:
            shape: The shape of the input ``[N, 3, H, W]``, where what is open is no number.
            size: Height and width where the shape leaves them open. None: what the file says.

        Raises:
            InputError: The network cannot take this size.
        """
        said = self._value("imgsz") if size is None else size
        sides = said if isinstance(said, (list, tuple)) and len(said) == 2 else [said or 640] * 2
        height, width = (
            one if isinstance(one, int) else int(side)
            for one, side in zip(shape[2:], sides, strict=True)
        )
        stride = self._value("stride") or 1
        if height % stride or width % stride:
            raise InputError(
                "the network cannot take this size",
                expected=f"a multiple of {stride}, the stride in its file",
                got=f"{height} x {width}",
            )
        return height, width


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
        chosen = (
            onnxruntime.SessionOptions()
        )  # it only says what it is: nothing is optimised, and no thread begins
        chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        chosen.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            str(path), chosen, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise InputError("this is no model", expected="an ONNX file", got=str(error)) from error
    inputs = session.get_inputs()
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        got = ", ".join(f"{one.name} {one.shape}" for one in inputs)
        raise InputError("this is no detector", expected="one input [N, 3, H, W]", got=got)
    return session


def _output_shapes(session: Any, size: tuple[int, int]) -> list[list[Any]]:
    """Return the shapes of the outputs; those that the file leaves open are those for one black image."""
    shapes = [list(one.shape) for one in session.get_outputs()]
    if all(isinstance(side, int) for shape in shapes for side in shape[1:]):
        return shapes
    import numpy as np

    image = session.get_inputs()[0]
    count = image.shape[0] if isinstance(image.shape[0], int) else 1
    kind = {"tensor(float16)": np.float16, "tensor(uint8)": np.uint8}.get(image.type, np.float32)
    try:
        answers = session.run(None, {image.name: np.zeros((count, 3, *size), kind)})
    except Exception as error:
        raise InputError(
            "the network does not run",
            expected=f"one that takes an image of {size}",
            got=str(error),
        ) from error
    return [list(one.shape) for one in answers]


def _family(
    outputs: dict[str, list[Any]], task: str | None, keypoints: list[int] | None
) -> tuple[str | None, int]:
    """Return ``"detr"``, or None for the YOLO family, and how many numbers of each box follow its classes.

    Args:
        outputs: The shapes by name.
        task: What the network is for, if the file says it.
        keypoints: How many keypoints each box has, and of how many numbers.

    Raises:
        InputError: These are the outputs of neither.
    """
    shapes = list(outputs.values())
    axes = [len(one) for one in shapes]
    if axes in ([3, 3], [3, 3, 4]) and "keypoints" not in outputs:
        return "detr", 0
    if axes == [3] and task != "segment":
        return None, 1 if task == "obb" else math.prod(keypoints or [0])
    if axes == [3, 4] and not keypoints:
        return None, shapes[1][1]
    raise InputError(
        "this is no detector that is known",
        expected="an output [N, R, C], of a network for masks with prototypes [N, M, h, w], or boxes and logits [N, Q, ...], "
        "of one for masks with [N, Q, h, w]",
        got=" and ".join(f"{name} {shape}" for name, shape in outputs.items()),
    )
