"""What the exporters of detectors write into ONNX files, and what is made of it here: keys of metadata, and layouts.

A key that has no row is refused by its name, so that nothing is guessed. The rows follow

- ultralytics 8.0 to 8.4.190: ``engine/exporter.py``, ``nn/modules/head.py`` (all keys but those named below);
- YOLOv5 and YOLOv9: ``export.py`` (``names`` and ``stride`` alone);
- rfdetr 1.11.2: ``export/prepare.py``, ``export/_onnx/exporter.py`` (names of outputs, ``rfdetr_notes``);
- YOLOX 0.3.0: ``tools/export_onnx.py`` (no metadata);
- super-gradients 3.7.1: ``module_interfaces/exportable_detector.py``, ``conversion/onnx/nms.py`` (names of outputs);
- RT-DETR, D-FINE and DETR as transformers has them: ``logits`` and ``pred_boxes``, which tell neither pixels nor scores, and beside
  the network ``config.json`` (``model_type``, ``id2label``) and ``preprocessor_config.json`` (``do_normalize``, ``image_mean``);
- torchvision 0.24: ``models/detection`` (names of outputs, as its documentation exports them).
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from headrace.errors import InputError, among
from headrace_formats import FormatError, read_labels
from headrace_formats.reader_table import Row, rows
from headrace_vision.models.layouts import fitting_layouts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["FAMILIES", "KEYS", "TABLE", "Layout", "Metadata", "check_layout", "find_layout"]

_HEADS = "Detect Segment Segment26 OBB OBB26 Pose Pose26 WorldDetect YOLOEDetect YOLOESegment YOLOESegment26 LRPCHead v10Detect RTDETRDecoder"

KEYS: Final = {
    **rows("obeyed", "", "names stride imgsz kpt_shape channels end2end args description version"),
    "task": Row("obeyed", "this is no detector", ("detect", "segment", "pose", "obb")),
    "head": Row("obeyed", "this head has no layout here", tuple(_HEADS.split())),
    **rows("harmless", "it is for people", "author date license docs kpt_names rfdetr_notes"),
    **rows("harmless", "the network says it", "batch"),
    **rows("harmless", "it is for another runtime", "dla"),
    **rows("harmless", "onnxruntime.quantization tells that it ran", "onnx.infer onnx.quant.pre_process"),
}  # fmt: skip
"""Keys of metadata."""


class Layout(NamedTuple):
    """How a network is fed, and how its outputs are read.

    Attributes:
        networks: Whose it is.
        word: The backend that reads the outputs.
        options: Options of that backend.
        fit: The backend that fits a picture into the input.
        pixels: What pixels become: 0 to 1, 0 to 255, or less the mean of ImageNet, divided by its deviation.
        color: The order of the colours.
    """

    networks: str
    word: Literal["YoloDetections", "DetrDetections", "BoxDetections"]
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    fit: str = "LetterBoxMat"
    pixels: Literal["0 to 1", "0 to 255", "mean"] = "0 to 1"
    color: Literal["rgb", "bgr"] = "rgb"

    def __str__(self) -> str:
        """Return in words what the outputs cannot tell."""
        scores = self.options.get("activation", "sigmoid")
        of_detr = f", scores by {scores}" if self.word == "DetrDetections" else ""
        return f"{self.networks}: {self.color}, {self.normalisation}{of_detr}"

    @property
    def normalisation(self) -> str:
        """What pixels become, in words."""
        return "pixels less ImageNet's mean" if self.pixels == "mean" else f"pixels {self.pixels}"


_OF_NAS = {key: f"graph2_pred_{key}" for key in ("boxes", "scores", "classes")}

TABLE: Final = {
    "v5": Layout("YOLOv5 and v7", "YoloDetections", {"layout": "v5"}),
    "v8": Layout("YOLOv8, v9, 11 and 12", "YoloDetections", {"layout": "v8"}),
    "end2end": Layout("YOLOv10, 26, suppression inside", "YoloDetections", {"layout": "end2end"}),
    "yolox": Layout("YOLOX", "YoloDetections", {"layout": "yolox"}, "TopLeftResizeMat", "0 to 255", "bgr"),
    "yolox_decoded": Layout("YOLOX, --decode_in_inference", "YoloDetections", {"layout": "v5"}, "TopLeftResizeMat", "0 to 255", "bgr"),
    "rfdetr": Layout("RF-DETR", "DetrDetections", {}, "ResizeMat", "mean"),
    "rtdetr": Layout("RT-DETR and D-FINE", "DetrDetections", {}, "ResizeMat"),
    "rtdetr_scores": Layout("RT-DETR of Ultralytics before 8.4", "DetrDetections", {"activation": "identity"}, "ResizeMat"),
    "rtdetr_end2end": Layout("RT-DETR of Ultralytics since 8.4", "DetrDetections", {"activation": "best"}, "ResizeMat"),
    "detr": Layout("DETR", "DetrDetections", {"activation": "softmax"}, "ResizeMat", "mean"),
    "yolonas": Layout("super-gradients, suppression inside", "BoxDetections", {**_OF_NAS, "unit": "input"}),
    "torchvision": Layout("torchvision", "BoxDetections", {"boxes": "boxes", "scores": "scores", "classes": "labels", "unit": "input"}),
}  # fmt: skip
"""Layouts by name."""


FAMILIES: Final = {**dict.fromkeys(("rt_detr", "rt_detr_v2", "d_fine"), "rtdetr"), "detr": "detr"}
"""The layouts by ``model_type`` of ``config.json``, where ``preprocessor_config.json`` has the pixels of the layout."""

_STATISTICS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def _object_of(folder: Path | None, name: str) -> dict[str, Any]:
    """Return the object in a file of JSON, empty where there is no such file."""
    path = folder / name if folder else None
    if path is None or not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        problem = f"{path} cannot be read"
        raise InputError(problem, expected="JSON", got=str(error)) from error
    return value if isinstance(value, dict) else {}


class Metadata:
    """What the metadata of an ONNX file say.

    Args:
        texts: Texts by key.
        folder: Where transformers wrote configurations beside the network, if it did.

    Attributes:
        read: The keys that are obeyed.
        names: Names of the classes by number.
        task: What the network is for. None where the file does not say it.

    Raises:
        InputError: A value is unknown, or cannot be read.
    """

    def __init__(self, texts: Mapping[str, str], folder: Path | None = None) -> None:
        self.texts = texts
        self._config = _object_of(folder, "config.json")
        self._pictures = _object_of(folder, "preprocessor_config.json")
        self.read = [key for key in texts if key in KEYS and KEYS[key].mark == "obeyed"]
        files = {"config.json": self._config, "preprocessor_config.json": self._pictures}
        obeyed = ("model_type", "id2label", "do_normalize", *_STATISTICS)
        beside = [f"{key} of {name}" for name in files for key in obeyed if key in files[name]]
        for key in self.read:
            row = KEYS[key]
            if not row.takes(texts[key]):
                expected = f"the {key} {', '.join(row.values)}"
                got = f"one for the {key} {texts[key]!r}, as its file says"
                raise InputError(row.why, expected=expected, got=got)
        self.read += beside
        self.task = texts.get("task")
        labels = self.value("names") or self._config.get("id2label") or []
        items = labels.items() if isinstance(labels, dict) else enumerate(labels)
        try:
            self.names = read_labels(json.dumps({str(k): str(v) for k, v in items}), ".json")
        except FormatError as error:
            expected = "names by number, as {0: 'cat', 1: 'dog'}"
            got = str(labels)[:200]
            raise InputError(f"names of the file: {error}", expected=expected, got=got) from error

    def value(self, key: str) -> Any:
        """Return the value of a key, None where the file has none.

        Raises:
            InputError: It is no literal of Python or JSON.
        """
        try:
            return ast.literal_eval(self.texts.get(key) or "None")
        except (ValueError, SyntaxError) as error:
            problem = f"{key} of the file cannot be read"
            raise InputError(problem, expected="a literal", got=self.texts[key][:200]) from error

    def keypoints(self) -> list[int] | None:
        """Return how many keypoints each box has, and of how many numbers.

        Raises:
            InputError: The network is for keypoints, and the file does not say it.
        """
        if self.task != "pose":
            return None
        shape = self.value("kpt_shape")
        if isinstance(shape, (list, tuple)) and len(shape) == 2:
            return [int(number) for number in shape]
        expected, got = "kpt_shape in the file, as [17, 3]", self.texts.get("kpt_shape", "nothing")
        raise InputError("it is unknown how many keypoints there are", expected=expected, got=got)

    def input_size(self, shape: list[Any], size: int | None) -> tuple[int, int]:
        """Return height and width of the input, in pixels.

        Args:
            shape: The shape of the input ``[N, C, H, W]``, where what is open is no number.
            size: Height and width where the shape leaves them open. None: what the file says, else 640.

        Raises:
            InputError: The network cannot take this size.
        """
        hw = self.value("imgsz") if size is None else size
        sides = hw if isinstance(hw, (list, tuple)) and len(hw) == 2 else [hw or 640] * 2
        pairs = zip(shape[2:], sides, strict=True)
        height, width = (axis if isinstance(axis, int) else int(side) for axis, side in pairs)
        stride = self.value("stride") or 1
        if height % stride or width % stride:
            expected, got = f"a multiple of {stride}, the stride in its file", f"{height} x {width}"
            raise InputError("the network cannot take this size", expected=expected, got=got)
        return height, width

    def channels(self, shape: list[Any]) -> int:
        """Return how many channels the input ``[N, C, H, W]`` has.

        Raises:
            InputError: They are neither 1 nor 3, or others than the file says.
        """
        meta = self.value("channels")
        channels = shape[1] if isinstance(shape[1], int) else meta or 3
        if channels not in (1, 3) or meta not in (None, channels):
            got = f"an input {shape}{'' if meta is None else f', and channels {meta} in its file'}"
            raise InputError("these channels have no picture", expected="3, or 1 (grey)", got=got)
        return int(channels)

    def layouts(self) -> list[str]:
        """Return the layouts that the metadata allow. None: they name no family."""
        description = self.texts.get("description", "").lower()
        if (kind := self._config.get("model_type")) is not None:
            layout = FAMILIES.get(kind)
            needs = {"do_normalize": layout == "detr", **(_STATISTICS if layout == "detr" else {})}
            wrong = [key for key in needs if self._pictures.get(key) not in (None, needs[key])]
            return [layout] if layout and not wrong else []
        if self.task is None:
            return ["v5", "v8"] if {"names", "stride"} <= self.texts.keys() else []
        if "head" in self.texts:
            if self.texts["head"] == "RTDETRDecoder":
                return ["rtdetr_end2end"]
        elif re.search(r"rt-?detr", description):
            is_old = re.match(r"8\.[0-3]\.", self.texts.get("version", ""))
            return ["rtdetr_scores"] if is_old else ["rtdetr_scores", "rtdetr_end2end"]
        if self.value("end2end") or (self.value("args") or {}).get("nms"):
            return ["end2end"]
        if "end2end" in self.texts:
            return ["v8"]
        is_named = "yolo" in description or not description
        return ["v8", "end2end"] if is_named else ["v8", "end2end", "rtdetr_scores"]

    def check_keys(self, layout: str) -> None:
        """Refuse a key that has no row, as it may change what the numbers of the network mean.

        Raises:
            InputError: There is one.
        """
        for key in self.texts:
            if key not in KEYS:
                near = among(key, KEYS, "") or ""
                hint = f"{near} If it changes nothing, say layout = {layout!r}.".strip()
                problem = f"the key {key!r} of the file is not known"
                got = self.texts[key][:200]
                raise InputError(problem, expected="keys of known exporters", got=got, hint=hint)


def _extra_of(meta: Metadata, outputs: Mapping[str, list[Any]]) -> int:
    """Return how many numbers of each box follow its classes: coefficients of its mask, keypoints, or an angle."""
    shapes = list(outputs.values())
    if [len(shape) for shape in shapes] == [3, 4]:
        return int(shapes[1][1])
    return 1 if meta.task == "obb" else math.prod(meta.keypoints() or [0])


def _suits(layout: Layout, meta: Metadata, outputs: Mapping[str, list[Any]]) -> bool:
    """Tell whether outputs have the names, or the axes, that the backend of a layout reads."""
    axes = [len(shape) for shape in outputs.values()]
    if layout.word == "BoxDetections":
        return {output for key, output in layout.options.items() if key != "unit"} <= outputs.keys()
    if layout.word == "YoloDetections":
        other = "pose" if axes == [3, 4] else "segment"
        return axes in ([3], [3, 4]) and meta.task != other
    if layout.options.get("activation") in ("identity", "best"):
        return axes == [3]
    return axes in ([3, 3], [3, 3, 4]) and "keypoints" not in outputs


def _fitting(
    meta: Metadata, names: list[str], outputs: Mapping[str, list[Any]], size_hw: tuple[int, int]
) -> list[str]:
    """Return the layouts that the names and shapes of outputs may have; the arguments are those of `find_layout`."""
    layouts = [name for name, layout in TABLE.items() if _suits(layout, meta, outputs)]
    first = next(iter(outputs.values()))
    if len(first) == 3 and len(outputs) - any(len(shape) == 4 for shape in outputs.values()) == 1:
        rows, columns = first[1:]
        extra = _extra_of(meta, outputs)
        shaped = fitting_layouts((rows, columns), size_hw, len(names) or None, extra)
        shaped += ["yolox_decoded"] * ("yolox" in shaped)
        if not {"v5", "v8", "yolox"} & {*shaped}:
            shaped += ["rtdetr_scores"] * (columns > 4 and len(names) in (0, columns - 4))
            shaped += ["rtdetr_end2end"] * (columns == 6)
        return [name for name in layouts if name in shaped]
    if {"dets", "labels"} <= outputs.keys():
        return [name for name in layouts if name == "rfdetr"]
    if "pred_boxes" in outputs:
        return [name for name in layouts if name != "rfdetr"]
    return layouts


_BY_NAMES = ("rfdetr", "yolonas", "torchvision")
"""Layouts that have names of outputs that no other one has."""


def find_layout(
    meta: Metadata, names: list[str], outputs: Mapping[str, list[Any]], size_hw: tuple[int, int]
) -> tuple[str, str | None]:
    """Return the layout that metadata, else names of outputs tell, and what was assumed for that.

    Args:
        meta: What the metadata say.
        names: Names of the classes, none where they are unknown.
        outputs: The shapes by name, ``[N, ...]``.
        size_hw: Height and width of the input, in pixels.

    Raises:
        InputError: They tell none, or the file has a key that is not known.
    """
    fits = _fitting(meta, names, outputs, size_hw)
    allowed = meta.layouts()
    named = ", ".join(outputs)
    assumed = None if len(allowed) == 1 else f"{{}} by the shape of {named}"
    if not allowed and len(fits) == 1 and fits[0] in _BY_NAMES:
        allowed, assumed = fits, f"{{}} by the names {named}"
    layouts = [layout for layout in allowed if layout in fits]
    if len(layouts) == 1:
        meta.check_keys(layouts[0])
        return layouts[0], assumed and assumed.format(layouts[0])
    shapes = " and ".join(f"{name} {shape}" for name, shape in outputs.items())
    keys = f"the keys {', '.join(meta.read)} of its metadata" if meta.read else "no metadata"
    raise InputError(
        "the file does not say its layout" if fits else "no layout fits",
        expected="; ".join(f"{layout} ({TABLE[layout]})" for layout in layouts or fits)
        or f"one of {', '.join(TABLE)}",
        got=f"{shapes} for an input of {size_hw}, and {keys}",
        hint="Write layout = ... with one of these. The options labels and size may leave fewer.",
    )


def check_layout(
    layout: str, meta: Metadata | None = None, outputs: Mapping[str, list[Any]] | None = None
) -> None:
    """Refuse a name that no layout has, and outputs that its backend cannot read.

    Raises:
        InputError: The layout is unknown, or has other outputs.
    """
    if layout not in TABLE:
        hint = among(layout, TABLE, "")
        raise InputError("no such layout", expected=", ".join(TABLE), got=repr(layout), hint=hint)
    if meta and outputs and not _suits(TABLE[layout], meta, outputs):
        raise InputError(
            f"the outputs do not fit the layout {layout!r}",
            expected="an output [N, R, C], of a network for masks with prototypes [N, M, h, w], or boxes and logits "
            "[N, Q, ...], of one for masks with [N, Q, h, w], or boxes, scores and classes by name",
            got=" and ".join(f"{name} {shape}" for name, shape in outputs.items()),
        )
