"""`detect`: a detector in an ONNX file, and something to look at, in one line."""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import InputError, MissingDependencyError
from headrace_vision.layouts import fitting_layouts, guess_layout

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["Detecting", "configuration_of", "detect"]

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
    size: int = 640,
    sinks: Iterable[Any] = (),
    network: Iterable[str] = (),
    **options: Any,
) -> Detecting:
    """Return the frames of a source with what a detector found in them.

    It needs headrace-cv and headrace-ort. Layout and labels are guessed from the file; what was taken is in ``took`` of what this
    returns, and logged.

    Args:
        model: An ONNX file: a network of the YOLO family (one output), or of the DETR family (boxes and logits).
        source: See ``VideoRunner.run``.
        track: A tracker (``"bytetrack"``, ...) that numbers the objects of each source; None for none.
        layout: ``"auto"``, ``"v5"``, ``"v8"``, ``"end2end"``, ``"yolox"`` or ``"detr"``.
        labels: Names of the classes; None: those in the file, if it has any.
        score_threshold: Boxes of a lower score are dropped, 0 to 1; None: the default of the word.
        size: Height and width of the input in pixels, where the file leaves them open.
        sinks: See ``VideoRunner``.
        network: See ``VideoRunner``.
        options: See ``SourceOptions``.

    Raises:
        InputError: The file is no such network, or two layouts fit.
        HeadraceError: The pipeline cannot be built.
    """
    from headrace_vision.runner import VideoRunner

    config, took = configuration_of(
        model, layout=layout, labels=labels, score_threshold=score_threshold, size=size
    )
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
    *,
    layout: str = "auto",
    labels: list[str] | None = None,
    score_threshold: float | None = None,
    size: int = 640,
) -> tuple[dict[str, Any], str]:
    """Return the configuration that runs a detector, and what was taken from its file, in words.

    Args:
        model: See `detect`.
        layout: See `detect`.
        labels: See `detect`.
        score_threshold: See `detect`.
        size: See `detect`.

    Raises:
        InputError: See `detect`.
        MissingDependencyError: onnxruntime is not installed.
    """
    path = Path(model)
    if not path.is_file():
        raise InputError(
            "there is no such model", expected="the path of an ONNX file", got=str(path)
        )
    input_shape, outputs, found = _signature(path)
    names = labels if labels is not None else found
    sides = [one if isinstance(one, int) and one > 0 else size for one in input_shape[2:]]
    height, width = sides
    if layout == "auto":
        layout = _guess(outputs, (height, width), len(names) or None)
    # Two instances: while the network computes for one batch, another one is prepared, or its boxes are found.
    config: dict[str, Any] = {"model": str(path), "max": 8, "instance_num": 2}
    scaled: dict[str, Any] = {"scale": 1 / 255}
    word, fit = "YoloDetections", "LetterBoxMat"
    if layout == "detr":
        word, fit, scaled = "DetrDetections", "ResizeMat", {"mean": list(_MEAN), "std": list(_STD)}
    elif layout == "yolox":
        fit, scaled = "TopLeftResizeMat", {}
    if layout != "detr":
        config["layout"] = layout
    color = [] if layout == "yolox" else ["CvtColorMat(rgb)"]
    chain = [f"{fit}({height},{width})", *color, "Mat2Tensor", "OnnxTensor", word]
    config["backend"] = f"S[{','.join(chain)}]"
    config |= {f"Mat2Tensor::{key}": value for key, value in scaled.items()}
    if names:
        config["labels"] = list(names)
    if score_threshold is not None:
        config["score_threshold"] = score_threshold
    took = (
        f"{path.name}: layout {layout}, input {height} x {width}, "
        f"{len(names) or 'unnamed'} classes{'' if labels is not None else ' (from the file)' * bool(names)}"
    )
    return config, took


def _signature(path: Path) -> tuple[list[Any], list[list[Any]], list[str]]:
    """Return the shape of the input, those of the outputs, and the labels in the file."""
    # It is read when ONNX Runtime is imported, which else looks up its maker; headrace-ort sets the same.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            f"onnxruntime cannot be imported: {error}",
            distribution="headrace-ort",
            hint="Type `pip install headrace-cv headrace-ort`.",
        ) from error
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
    text = session.get_modelmeta().custom_metadata_map.get("names", "")
    try:
        names = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        names = []
    labels = list(names.values()) if isinstance(names, dict) else list(names)
    shapes = [list(one.shape) for one in session.get_outputs()]
    return list(inputs[0].shape), shapes, [str(one) for one in labels]


def _guess(outputs: list[list[Any]], size: tuple[int, int], classes: int | None) -> str:
    if len(outputs) == 2 and all(len(one) == 3 for one in outputs):
        return "detr"
    rank = [len(one) for one in outputs]
    if rank != [3]:
        raise InputError(
            "this is no detector that is known",
            expected="one output [N, R, C], or boxes and logits [N, Q, ...]",
            got=" and ".join(map(str, outputs)),
        )
    rows, columns = outputs[0][1:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise InputError(
            "the file leaves the shape of its output open",
            got=str(outputs[0]),
            hint='Write layout="v5", "v8", "end2end" or "yolox".',
        )
    if classes is not None and not fitting_layouts((rows, columns), size, classes):
        classes = None
    return guess_layout((rows, columns), size, classes)
