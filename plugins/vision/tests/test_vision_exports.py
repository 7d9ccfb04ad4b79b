"""Each layout of `detect` beside a slow loop, on exports with random weights; and what a file must say for it."""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from headrace.errors import InputError
from headrace_vision import detect
from headrace_vision.file.tables import ModelTable
from headrace_vision.models.exports import TABLE, Metadata

SIDE, CLASSES, THRESHOLD = 64, 3, 0.3
NAMES = "{2: 'cow', 0: 'cat', 1: 'dog'}"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WEIGHTS = (
    np.random.default_rng(7).uniform(0.2, 1.8, (1, 3, SIDE, SIDE))
    * np.array([0.3, 0.8, 1.9])[:, None, None]
)
ULTRALYTICS = {"author": "Ultralytics", "task": "detect", "stride": "32", "names": NAMES, "batch": "1"}  # fmt: skip
YOLO = {**ULTRALYTICS, "description": "Ultralytics YOLO11n model", "head": "Detect", "version": "8.4.190"}  # fmt: skip
PARTS = "rtdetr_scores", "rtdetr_end2end"


def scores(random, shape):
    """Scores of which none is near the threshold."""
    found = random.uniform(0.4, 0.9, shape)
    return np.where(random.random(shape) < 0.7, found / 4.5, found)


def places(random, count, side):
    """Centres and sizes, in `side`."""
    return np.concatenate(
        [random.uniform(0.2, 0.8, (count, 2)), random.uniform(0.1, 0.4, (count, 2))], 1
    ) * side  # fmt: skip


def corners(boxes):
    return np.concatenate([boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2], 1)


def logit(values):
    return np.log(values / (1 - values))


def outputs_of(layout, random):
    """The outputs of a network by name, and 1 where the picture moves a number."""
    kind = random.integers(0, CLASSES, 40).astype(float)
    if layout in ("v5", "yolox", "yolox_decoded"):
        count = 252 if layout == "v5" else 84
        rows = np.concatenate([places(random, count, SIDE), scores(random, (count, 1)), random.uniform(0.9, 1, (count, CLASSES))], 1)  # fmt: skip
        if layout == "yolox":
            rows[:, :4] = random.uniform(-1, 1, (count, 4))
        return {"output": (rows, np.eye(8)[4])}
    if layout == "v8":
        rows = np.concatenate([places(random, 84, SIDE), scores(random, (84, CLASSES))], 1)
        return {"output0": (rows.T, (np.arange(7) > 3)[:, None])}
    if layout == "end2end":
        rows = np.concatenate(
            [corners(places(random, 40, SIDE)), scores(random, (40, 1)), kind[:, None]], 1
        )
        return {"output0": (rows, np.eye(6)[4])}
    if layout == "rtdetr_scores":
        rows = np.concatenate([places(random, 40, 1), scores(random, (40, CLASSES))], 1)
        return {"output0": (rows, np.arange(7) > 3)}
    if layout == "rtdetr_end2end":
        rows = np.concatenate([places(random, 40, 1), scores(random, (40, 1)), kind[:, None]], 1)
        return {"output0": (rows, np.eye(6)[4])}
    if layout in ("yolonas", "torchvision"):
        found = {
            "boxes": corners(places(random, 40, SIDE)),
            "scores": scores(random, 40),
            "labels": kind,
        }
        if layout == "yolonas":
            names = ("graph2_pred_boxes", "graph2_pred_scores", "graph2_pred_classes")
            found = {"graph2_num_predictions": np.array([40.0]), **dict(zip(names, found.values(), strict=True))}  # fmt: skip
        return {name: (one, float(name.endswith("scores"))) for name, one in found.items()}
    logits = logit(scores(random, (40, CLASSES)))
    if layout == "detr":
        logits = random.normal(0, 3, (40, CLASSES + 1))
    names = ("dets", "labels") if layout == "rfdetr" else ("pred_boxes", "logits")
    return dict(zip(names, [(places(random, 40, 1), 0.0), (logits, np.eye(logits.shape[1])[0])], strict=True))  # fmt: skip


def export(
    path, layout, said, *, dtype="float32", channels=3, batch="n", unit=1.0, second=None, axes=4
):
    """Write a network whose scores move with all pixels of its input, and return its arrays."""
    arrays = outputs_of(layout, np.random.default_rng(len(layout)))
    kinds = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}  # fmt: skip
    weights = np.resize(WEIGHTS, (1, channels, SIDE, SIDE)) / WEIGHTS[0, 0].size / unit
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "weights"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "axes"], ["sum"], keepdims=0),
        helper.make_node("Tanh", ["sum"], ["moved"]),
    ]
    made = [
        numpy_helper.from_array(weights.astype(np.float32), "weights"),
        numpy_helper.from_array(np.array([1, 2, 3]), "axes"),
    ]
    infos = []
    is_free = layout == "torchvision"
    for name, (array, mask) in arrays.items():
        constants = {"base": array, "mask": 0.05 * mask * np.ones_like(array)}
        made += [numpy_helper.from_array(one.astype(np.float32), f"{name}_{key}") for key, one in constants.items()]  # fmt: skip
        shape = [1] * array.ndim if is_free else [-1] + [1] * array.ndim
        made.append(numpy_helper.from_array(np.array(shape), f"{name}_shape"))
        is_whole = name.endswith(("classes", "num_predictions")) or (is_free and name == "labels")
        kind = TensorProto.INT64 if is_whole else TensorProto.FLOAT
        nodes += [
            helper.make_node("Reshape", ["moved", f"{name}_shape"], [f"{name}_moved"]),
            helper.make_node("Mul", [f"{name}_moved", f"{name}_mask"], [f"{name}_more"]),
            helper.make_node("Add", [f"{name}_more", f"{name}_base"], [f"{name}_all"]),
            helper.make_node("Cast", [f"{name}_all"], [name], to=kind),
        ]
        rows = ["k", *array.shape[1:]] if is_free else [batch, *array.shape]
        infos.append(helper.make_tensor_value_info(name, kind, rows))
    first = 1 if is_free else batch
    shape = [first, channels, SIDE, SIDE][-axes:]
    image = helper.make_tensor_value_info("images", kinds[dtype], shape)
    inputs = [image]
    if second is not None:
        inputs.append(helper.make_tensor_value_info(second, TensorProto.INT64, [first, 2]))
    graph = helper.make_graph(nodes, "random", inputs, infos, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, said)
    onnx.save(model, path)
    return arrays, weights


def fed(layout, color, channels, dtype):
    """The input for a picture of 32 x 128 of one colour, and what of the input is a pixel of it."""
    canvas = np.full((SIDE, SIDE, 3), 114.0)
    canvas_of = {"yolox": (0, 16), "yolox_decoded": (0, 16), "v5": (24, 40), "v8": (24, 40), "end2end": (24, 40), "yolonas": (24, 40), "torchvision": (24, 40)}  # fmt: skip
    top, end = canvas_of.get(layout, (0, SIDE))
    canvas[top:end] = color[::-1]  # red first
    if layout.startswith("yolox"):
        canvas = canvas[..., ::-1]
    if channels == 1:
        canvas[top:end] = round(0.114 * color[0] + 0.587 * color[1] + 0.299 * color[2])
        canvas = canvas[..., :1]
    if dtype != "uint8" and not layout.startswith("yolox"):
        canvas = canvas / 255
        if layout in ("rfdetr", "detr"):
            canvas = (canvas - MEAN[:channels]) / STD[:channels]
    return canvas.transpose(2, 0, 1), (top, end)


def found_by_hand(layout, arrays, moved, place):
    """Boxes, scores and classes, of one picture, one after the other."""
    values = {
        name: array + moved * 0.05 * mask * np.ones_like(array)
        for name, (array, mask) in arrays.items()
    }
    rows = []
    first = next(iter(values.values()))
    if layout in ("v5", "yolox_decoded", "yolox"):
        for number, (x, y, w, h, score, *kinds) in enumerate(first):
            best = int(np.argmax(kinds))
            box = [x, y, w, h]
            if layout == "yolox":
                start, stride = max(one for one in ((0, 8), (64, 16), (80, 32)) if one[0] <= number)
                row, column = divmod(number - start, SIDE // stride)
                box = [x + column, y + row, np.exp(w), np.exp(h)]
                box = [one * stride for one in box]
            rows.append((score * kinds[best], best, box))
    elif layout == "v8":
        rows = [(max(one[4:]), int(np.argmax(one[4:])), one[:4]) for one in first.T]
    elif layout == "rtdetr_scores":
        rows = [(max(one[4:]), int(np.argmax(one[4:])), one[:4] * SIDE) for one in first]
    elif layout == "rtdetr_end2end":
        rows = [(one[4], int(one[5]), one[:4] * SIDE) for one in first]
    elif layout == "end2end":
        rows = [(one[4], int(one[5]), one[:4]) for one in first]
    elif layout in ("yolonas", "torchvision"):
        boxes, score, kinds = list(values.values())[-3:]
        rows = [(s, int(k), b) for s, k, b in zip(score, kinds, boxes, strict=True)]
    else:
        boxes, logits = values.values()
        for box, one in zip(boxes * SIDE, logits, strict=True):
            if layout == "detr":
                parts = np.exp(one) / np.exp(one).sum()
                rows.append((max(parts[:-1]), int(np.argmax(parts[:-1])), box))
            else:
                rows += [(1 / (1 + np.exp(-v)), k, box) for k, v in enumerate(one)]
    is_corners = layout in ("end2end", "yolonas", "torchvision")
    rows = [(s, k, b if is_corners else corners(np.array([b]))[0]) for s, k, b in rows if s >= THRESHOLD]  # fmt: skip
    rows.sort(key=lambda one: -one[0])
    kept = []
    for score, kind, box in rows:
        if layout in ("v5", "v8", "yolox", "yolox_decoded") and any(
            kind == k and overlap(box, b) > 0.5 for _, k, b in kept
        ):
            continue
        kept.append((score, kind, box))
    top, end = place
    scale = np.array([128 / SIDE, 32 / (end - top)] * 2)
    boxes = [(np.array(b) - [0, top, 0, top]) * scale for _, _, b in kept]
    limits = np.array([128, 32, 128, 32])
    return [(s, k, np.clip(b, 0, limits)) for (s, k, _), b in zip(kept, boxes, strict=True)]


def overlap(one, other):
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    both = max(width, 0) * max(height, 0)
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, other)]
    return both / (sum(areas) - both)


SAID = {
    "v5": {"stride": "32", "names": NAMES},
    "v8": {**YOLO, "end2end": "False"},
    "end2end": {**YOLO, "end2end": "True"},
    "rtdetr_scores": {
        **ULTRALYTICS,
        "description": "Ultralytics rtdetr-l model",
        "version": "8.3.0",
    },
    "rtdetr_end2end": {
        **YOLO,
        "description": "Ultralytics rtdetr-l model",
        "head": "RTDETRDecoder",
    },
    "rfdetr": {"rfdetr_notes": "of March"},
    "yolonas": {},
    "torchvision": {},
}
"""What tells a layout; nothing tells the others."""
USUAL = {"yolonas": "uint8"}
CASES = [
    *((layout, USUAL.get(layout, "float32"), 3, "n") for layout in TABLE),
    *((layout, "float16", 3, "n") for layout in ("v8", "yolox", "rfdetr", "rtdetr_end2end")),
    *((layout, "float32", 1, "n") for layout in ("v8", "rfdetr")),
    *((layout, "float32", 3, 4) for layout in ("v5", "end2end", "detr")),
    ("yolonas", "uint8", 3, 2), ("yolonas", "float32", 3, "n"), ("v8", "float16", 1, 2), ("v8", "uint8", 3, "n"),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "dtype", "channels", "batch"), CASES)
def test_a_layout_finds_what_a_slow_loop_finds(tmp_path, layout, dtype, channels, batch):
    path, said = tmp_path / "net.onnx", SAID.get(layout, {})
    unit = 255.0 if layout.startswith("yolox") or dtype == "uint8" else 1.0
    sizes = {"dtype": dtype, "channels": channels, "batch": batch, "unit": unit}
    arrays, weights = export(path, layout, said, **sizes)
    colors = [10, 80, 240], [200, 90, 0], [10, 80, 240]
    pictures = [np.full((32, 128, 3), color, np.uint8) for color in colors]
    is_told = layout in SAID and (layout, dtype) != ("yolonas", "float32")
    options = {"layout": "auto" if is_told else layout, "score_threshold": THRESHOLD}
    if "names" not in said:
        options["labels"] = ["cat", "dog", "cow"]
    found = detect(path, {"a": pictures}, **options)
    assert f"layout {layout}, " in found.took
    assert f"fed with {dtype}, " in found.took
    frames = list(found)
    assert [one.error for one in frames] == [None] * 3
    counts = []
    for frame, color in zip(frames, colors, strict=True):
        canvas, place = fed(layout, color, channels, dtype)
        wanted = found_by_hand(layout, arrays, np.tanh((canvas * weights[0]).sum()), place)
        ours = frame.result
        order = 2e-3 if dtype == "float16" else 2e-5
        np.testing.assert_allclose(ours.confidence, [one[0] for one in wanted], atol=order)
        assert ours.class_id.tolist() == [one[1] for one in wanted]
        np.testing.assert_allclose(ours.xyxy, [one[2] for one in wanted], atol=2e-3)
        assert ours.data["class_name"].tolist() == [["cat", "dog", "cow"][k] for _, k, _ in wanted]
        counts.append(len(wanted))
    assert min(counts) > 5
    assert frames[0].result.confidence.tolist() != frames[1].result.confidence.tolist()


PICTURE = np.zeros((SIDE, SIDE, 3), np.uint8)


def took(path, **options):
    return detect(path, PICTURE, **options).took


def refused(path, **options):
    with pytest.raises(InputError) as caught:
        detect(path, PICTURE, **options)
    return str(caught.value)


def test_a_vision_toml_knows_each_layout():
    assert get_args(ModelTable.model_fields["layout"].annotation) == ("auto", *TABLE)


@pytest.mark.parametrize(
    ("layout", "listed"),
    [
        ("v5", ["v5"]),
        ("v8", ["v8"]),
        ("yolox", ["yolox", "yolox_decoded"]),
        ("end2end", ["end2end", "rtdetr_end2end"]),
        ("rtdetr_scores", ["rtdetr_scores"]),
        ("rtdetr", ["rtdetr", "detr"]),
    ],
)
def test_a_file_without_metadata_is_refused_and_the_layouts_that_fit_are_listed(
    tmp_path, layout, listed
):
    export(tmp_path / "net.onnx", layout, {})
    text = refused(tmp_path / "net.onnx", labels=["cat", "dog", "cow"])
    assert [name for name in TABLE if f"{name} (" in text] == listed
    assert "layout = ..." in text
    assert f"layout {layout}, " in took(tmp_path / "net.onnx", layout=layout)


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("{10: 'ten', 2: 'two', 0: 'zero'}", {0: "zero", 2: "two", 10: "ten"}),
        ('{"1": "dog", "0": "cat"}', {0: "cat", 1: "dog"}),
        ("['cat', 'dog']", {0: "cat", 1: "dog"}),
        ("{0: 7, 1: 8}", {0: "7", 1: "8"}),
    ],
)
def test_names_are_taken_by_their_number(names, wanted):
    found = Metadata({"names": names}).names
    assert {number: name for number, name in enumerate(found) if name} == wanted


@pytest.mark.parametrize(
    ("said", "layout", "found"),
    [
        ({**YOLO, "args": "{'nms': True}"}, "end2end", "end2end"),
        (ULTRALYTICS, "end2end", "end2end"),
        (ULTRALYTICS, "v8", "v8"),
        ({"names": NAMES, "stride": "32"}, "v8", "v8"),  # YOLOv9
        ({"names": NAMES, "stride": "32"}, "end2end", None),
        ({"names": NAMES}, "v8", None),
        ({**YOLO, "end2end": "False"}, "end2end", None),
        ({**YOLO, "head": "RTDETRDecoder"}, "end2end", "rtdetr_end2end"),
        ({**ULTRALYTICS, "description": "Ultralytics RT-DETR-l model"}, "rtdetr_end2end", "rtdetr_end2end"),
        ({**ULTRALYTICS, "description": "Ultralytics RT-DETR-l model"}, "v8", None),
        ({**YOLO, "quantity": "3"}, "v8", None),
    ],
)  # fmt: skip
def test_metadata_tell_the_layout_or_the_file_is_refused(tmp_path, said, layout, found):
    export(tmp_path / "net.onnx", layout, said)
    if found is None:
        assert "layout = " in refused(tmp_path / "net.onnx")
        assert f"layout {layout}, " in took(tmp_path / "net.onnx", layout=layout)
    else:
        text = took(tmp_path / "net.onnx")
        assert f"layout {found}, " in text
        assert "read: " in text
        assert "stride" in text


RTDETR = {**ULTRALYTICS, "names": "{0: 'cat', 1: 'dog'}"}


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"description": "Ultralytics rtdetr-l model"}, None),
        ({"description": "Ultralytics rtdetr-l model", "version": "8.3.7"}, "rtdetr_scores"),
        ({"description": "Ultralytics rtdetr-l model", "head": "RTDETRDecoder"}, "rtdetr_end2end"),
        ({"description": "Ultralytics mine model"}, None),
        ({"description": "Ultralytics YOLOv10n model"}, "end2end"),
    ],
)
def test_a_network_of_two_classes_is_no_other_network(tmp_path, said, found):
    """Its rows of six numbers may be four layouts."""
    export(tmp_path / "net.onnx", "end2end", {**RTDETR, **said})
    if found is None:
        assert "rtdetr_scores (" in refused(tmp_path / "net.onnx")
    else:
        assert f"layout {found}, " in took(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({"names": "{0: 'cat"}, "names of the file"),
        ({"names": "{-1: 'cat'}"}, "names of the file"),
        ({"head": "Depth"}, "head 'Depth'"),
        ({"channels": "1"}, "channels 1"),
        ({"namess": NAMES}, "Did you mean 'names'"),
    ],
)
def test_what_metadata_say_and_nobody_can_obey_is_refused_by_its_name(tmp_path, said, text):
    export(tmp_path / "net.onnx", "v8", {**YOLO, **said})
    assert text in refused(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"channels": 2}, "1 (grey)"),
        ({"dtype": "int8"}, "tensor(int8)"),
        ({"second": "orig_target_sizes"}, "without its postprocessor"),
    ],
)
def test_an_input_that_no_picture_fits_is_refused_at_once(tmp_path, change, text):
    export(tmp_path / "net.onnx", "rtdetr", {}, **change)
    assert text in refused(tmp_path / "net.onnx", layout="rtdetr")


@pytest.mark.parametrize(
    ("kind", "pictures", "layout"),
    [
        ("rt_detr", {"do_normalize": False, "image_mean": list(MEAN)}, "rtdetr"),
        ("d_fine", None, "rtdetr"),
        ("detr", {"do_normalize": True, "image_mean": list(MEAN), "image_std": list(STD)}, "detr"),
        ("detr", {"image_mean": [0.5, 0.5, 0.5]}, None),
        ("rt_detr", {"do_normalize": True}, None),
        ("conditional_detr", None, None),
    ],
)
def test_what_transformers_writes_beside_a_network_tells_its_layout(
    tmp_path, kind, pictures, layout
):
    export(tmp_path / "model.onnx", layout or "rtdetr", {})
    config = {"model_type": kind, "id2label": {"2": "cow", "0": "cat", "1": "dog"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    if pictures is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(pictures))
    if layout is None:
        text = refused(tmp_path / "model.onnx")
        assert "rtdetr (" in text
        assert "model_type of config.json" in text
        return
    found = detect(tmp_path / "model.onnx", PICTURE, score_threshold=0.0)
    assert f"layout {layout}, " in found.took
    assert "3 classes (from the file)" in found.took
    (frame,) = found
    assert {*frame.result.data["class_name"]} == {"cat", "dog", "cow"}
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in refused(tmp_path / "model.onnx")


def test_a_picture_without_a_batch_axis_is_that_of_torchvision(tmp_path):
    found = []
    for axes in (3, 4):
        export(tmp_path / f"{axes}.onnx", "torchvision", {}, axes=axes)
        (frame,) = detect(tmp_path / f"{axes}.onnx", PICTURE)
        assert frame.error is None
        found.append(frame.result)
    np.testing.assert_allclose(found[0].xyxy, found[1].xyxy)
    np.testing.assert_allclose(found[0].confidence, found[1].confidence, rtol=1e-6)
    assert len(found[0]) > 5


def test_a_super_gradients_network_without_its_preprocessing_is_refused(tmp_path):
    export(tmp_path / "net.onnx", "yolonas", {})
    assert "layout = 'yolonas'" in refused(tmp_path / "net.onnx")


def test_what_was_assumed_is_told(tmp_path):
    export(tmp_path / "net.onnx", "torchvision", {})
    assert took(tmp_path / "net.onnx").endswith(
        "assumed: torchvision by the names boxes, scores, labels"
    )
    export(tmp_path / "net.onnx", "v8", {**YOLO, "end2end": "False"}, dtype="uint8")
    text = took(tmp_path / "net.onnx")
    assert "pixels 0 to 255" in text
    assert text.endswith("assumed: the network scales pixels itself")
    export(tmp_path / "net.onnx", "v8", {**YOLO, "end2end": "False"})
    assert "assumed" not in took(tmp_path / "net.onnx")


def test_a_fixed_batch_is_filled_up_without_a_warning(tmp_path, caplog):
    export(tmp_path / "net.onnx", "v8", {**YOLO, "end2end": "False"}, batch=4)
    (frame,) = detect(tmp_path / "net.onnx", PICTURE)
    assert frame.error is None
    assert [one for one in caplog.records if one.levelname == "WARNING"] == []
