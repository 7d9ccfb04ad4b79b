"""The words on outputs that an encoder of the test makes of known boxes."""

from __future__ import annotations

import json
import sys
import tracemalloc
import warnings
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import supervision as sv
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import headrace
from headrace.errors import HeadraceError, InputError, SetupError
from headrace_cli.app import app
from headrace_vision import Frame, frame_record, from_records, to_records
from headrace_vision.models.boxes import best_boxes
from headrace_vision.models.layouts import cells_of, fitting_layouts, read_layout

SIZE = (96, 128)  # of the network's input, height and width
LABELS = ["cat", "dog", "cow"]
BOXES = np.array([[10, 20, 110, 90], [150, 30, 199, 149], [3, 4, 30, 40]], np.float64)
CLASSES = np.array([2, 0, 1])
SCORES = np.array([0.9, 0.6, 0.5])


def run(expression, request, **options):
    with headrace.pipe({"backend": expression, **options}) as pipe:
        return pipe(request)["result"]


def letterbox(content_h=96, content_w=128, left=0, top=0):
    """An image of 150 x 200 on a canvas of 96 x 128, as headrace_cv writes it."""
    sizes = {"image_h": 150, "image_w": 200, "canvas_h": 96, "canvas_w": 128}
    return SimpleNamespace(content_h=content_h, content_w=content_w, left=left, top=top, **sizes)


def with_bars():
    return letterbox(72, 96, 16, 12)


def on_canvas(boxes, box):
    scale = np.array([box.content_w / box.image_w, box.content_h / box.image_h] * 2)
    return boxes * scale + np.array([box.left, box.top] * 2)


def centers(boxes):
    return np.concatenate([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]], 1)


def encode(layout, boxes):
    """Write known boxes, in pixels of the canvas, as a network of that layout would."""
    count = cells_of(*SIZE)
    if layout == "end2end":
        out = np.zeros((20, 6), np.float32)
        out[: len(boxes)] = np.column_stack([boxes, SCORES, CLASSES])
        return out
    if layout == "v8":
        out = np.zeros((4 + len(LABELS), count), np.float32)
        for place, (center, score, kind) in enumerate(
            zip(centers(boxes), SCORES, CLASSES, strict=True)
        ):
            out[:4, 7 * place + 1] = center
            out[4 + kind, 7 * place + 1] = score
        return out
    rows = 3 * count if layout == "v5" else count
    out = np.zeros((rows, 5 + len(LABELS)), np.float32)
    for place, (center, score, kind) in enumerate(
        zip(centers(boxes), SCORES, CLASSES, strict=True)
    ):
        row = 5 * place + 2
        if layout == "yolox":  # row 5k+2 of the first grid, whose stride is 8
            x, y = row % (SIZE[1] // 8), row // (SIZE[1] // 8)
            center = np.concatenate([center[:2] / 8 - [x, y], np.log(center[2:] / 8)])
        out[row] = [*center, score / 0.95, *np.eye(len(LABELS))[kind] * 0.95]
    return out


@pytest.mark.parametrize("box", [letterbox(), with_bars()], ids=["resized", "with bars"])
@pytest.mark.parametrize("layout", ["v5", "v8", "end2end", "yolox"])
@pytest.mark.parametrize("said", [True, False], ids=["said", "auto"])
def test_known_boxes_come_back_in_pixels_of_the_source_image(layout, box, said):
    output = encode(layout, on_canvas(BOXES, box))
    expression = f"YoloDetections({layout})" if said else "YoloDetections"
    for data in (output, output[None]):
        found = run(expression, {"data": data, "letterbox": box}, labels=LABELS)
        np.testing.assert_allclose(found.xyxy, BOXES, atol=1e-3)
        np.testing.assert_allclose(found.confidence, SCORES, rtol=1e-5)
        assert found.class_id.tolist() == CLASSES.tolist()
        assert found.data["class_name"].tolist() == ["cow", "cat", "dog"]


def slow_reading(layout, output, threshold):
    """Boxes of the canvas, scores and classes, cell by cell in Python's own numbers."""
    found = []
    for row in (output.T if layout == "v8" else output).tolist():
        if layout == "end2end":
            box, score, kind = row[:4], row[4], int(row[5])
        else:
            classes = row[4:] if layout == "v8" else row[5:]
            x, y, width, height = row[:4]
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
            kind = classes.index(max(classes))
            score = classes[kind] * (1.0 if layout == "v8" else row[4])
        if score >= threshold and score > 0:
            found.append((box, score, kind))
    return found


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["v5", "v8", "end2end"]),
    st.sampled_from([0.0, 0.1, 0.3, 0.7, 1.0]),
    st.integers(0, 10**6),
)
def test_what_is_above_the_threshold_equals_a_slow_loop(layout, threshold, seed):
    random = np.random.default_rng(seed)
    shape = {"v5": (60, 8), "v8": (7, 60), "end2end": (60, 6)}[layout]
    # Of one decimal, so that scores and thresholds meet, and classes tie.
    output = random.random(shape).round(1).astype(np.float32)
    boxes, scores, classes, rest = read_layout(output, layout, None, threshold)
    assert rest.shape == (len(boxes), 0)
    wanted = slow_reading(layout, output, threshold)
    assert boxes.tolist() == [box for box, _, _ in wanted]
    assert scores.tolist() == [score for _, score, _ in wanted]
    assert classes.tolist() == [kind for _, _, kind in wanted]


@pytest.mark.parametrize("layout", ["v5", "v8", "yolox"])
def test_no_copy_is_made_of_an_output_whose_cells_are_below_the_threshold(layout):
    shape = {"v5": (25200, 85), "v8": (84, 8400), "yolox": (8400, 85)}[layout]
    output = np.zeros(shape, np.float32)
    request = {"data": output, "image": np.zeros((64, 64, 3), np.uint8)}
    with headrace.pipe({"backend": f"YoloDetections({layout})", "input_size": [640, 640]}) as pipe:
        pipe(dict(request))
        tracemalloc.start()
        try:
            assert not len(pipe(dict(request))["result"])
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak_bytes < output.nbytes


def test_without_a_letterbox_input_size_and_image_say_how_it_was_resized():
    output = encode("v8", BOXES * np.array([128 / 200, 96 / 150] * 2))
    image = np.zeros((150, 200, 3), np.uint8)
    found = run(
        "YoloDetections", {"data": output, "image": image}, input_size=[96, 128], labels=LABELS
    )
    np.testing.assert_allclose(found.xyxy, BOXES, atol=1e-3)
    with pytest.raises(InputError, match="how the image was resized"):
        run("YoloDetections(v8)", {"data": output, "image": image})
    with pytest.raises(InputError, match="size of the source image"):
        run("YoloDetections(v8)", {"data": output}, input_size=[96, 128])


def test_boxes_are_clipped_to_the_image():
    output = encode("end2end", on_canvas(np.array([[-50, -20, 500, 400]] * 3, float), with_bars()))
    found = run("YoloDetections", {"data": output, "letterbox": with_bars()})
    np.testing.assert_array_equal(found.xyxy, [[0, 0, 200, 150]] * 3)


def test_auto_refuses_when_two_layouts_fit_or_none():
    assert fitting_layouts((100, 6), None, None) == ["v5", "end2end", "yolox"]
    with pytest.raises(InputError, match="several layouts fit"):
        run("YoloDetections", {"data": np.zeros((100, 6)), "image": np.zeros((9, 9, 3), np.uint8)})
    with pytest.raises(InputError, match="no layout fits"):
        run("YoloDetections", {"data": np.zeros((3, 3)), "letterbox": letterbox()})
    with pytest.raises(InputError, match="does not fit"):
        run("YoloDetections(end2end)", {"data": np.zeros((3, 7)), "letterbox": letterbox()})


def slow_nms(boxes, scores, classes, threshold):
    kept = []
    for one in sorted(range(len(boxes)), key=lambda k: -scores[k]):
        for other in kept:
            if classes is not None and classes[one] != classes[other]:
                continue
            a, b = boxes[one], boxes[other]
            width = min(a[2], b[2]) - max(a[0], b[0])
            height = min(a[3], b[3]) - max(a[1], b[1])
            shared = max(width, 0) * max(height, 0)
            areas = sum((c[2] - c[0]) * (c[3] - c[1]) for c in (a, b))
            if shared / (areas - shared) > threshold:
                break
        else:
            kept.append(one)
    return kept


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 60), st.sampled_from([0.13, 0.317, 0.5001, 0.771]))
def test_suppression_equals_a_slow_loop(seed, count, threshold):
    random = np.random.default_rng(seed)
    corner = random.uniform(0, 50, (count, 2))
    boxes = np.hstack([corner, corner + random.uniform(5, 30, (count, 2))])
    scores = random.permutation(np.linspace(0.1, 0.9, count))
    classes = random.integers(0, 3, count)
    for agnostic in (False, True):
        found = best_boxes(boxes, scores, classes, iou_threshold=threshold, class_agnostic=agnostic)
        expected = slow_nms(boxes, scores, None if agnostic else classes, threshold)
        assert found.tolist() == expected


def test_the_record_of_a_frame_has_results_but_of_a_picture_only_its_form():
    def recorded(result):
        return json.loads(json.dumps(frame_record(Frame("door", 1, 0.5, result=result))))["result"]

    assert recorded({"a": np.arange(3), "b": (1, "x", None)}) == {
        "a": [0, 1, 2],
        "b": [1, "x", None],
    }
    assert recorded(np.zeros((2, 2))) == [[0, 0], [0, 0]]
    picture = np.zeros((48, 64, 3), np.uint8)
    assert recorded([picture]) == [{"shape": [48, 64, 3], "dtype": "uint8"}]


def test_records_are_read_from_what_headrace_run_writes(tmp_path):
    found = sv.Detections(
        np.array([[1, 2, 3.5, 4], [5, 6, 7, 8.25]], np.float32),
        confidence=np.array([0.1, 0.7], np.float32),
        class_id=np.array([3, 1]),
        data={"class_name": np.array(["cat", "dog"])},
    )
    (tmp_path / "words.py").write_text(
        "import headrace, numpy as np, supervision as sv\n"
        "@headrace.register('VisionFixed')\n"
        "def fixed(data):\n"
        "    return sv.Detections(np.array([[1, 2, 3.5, 4], [5, 6, 7, 8.25]], np.float32),\n"
        "        confidence=np.array([0.1, 0.7], np.float32), class_id=np.array([3, 1]),\n"
        "        data={'class_name': np.array(['cat', 'dog'])})\n"
    )
    (tmp_path / "p.toml").write_text('import = ["words.py"]\nbackend = "VisionFixed"\n')
    (tmp_path / "a.bin").write_bytes(b"x")
    files = [str(tmp_path / name) for name in ("p.toml", "a.bin")]
    done = CliRunner().invoke(app, ["run", *files, "--json"])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)["result"]
    assert written == to_records(found)
    assert from_records(written) == found
    fields = {name: getattr(found, name) for name in ("xyxy", "confidence", "class_id")}
    by_field = {name: values.tolist() for name, values in fields.items()}
    by_field["data"] = {"class_name": ["cat", "dog"]}
    assert from_records(by_field) == found
    with pytest.raises(InputError, match="no detections"):
        from_records({"boxes": []})


def test_labels_are_read_from_a_file(tmp_path):
    (tmp_path / "names.txt").write_text("cat\ndog\ncow\n")
    output = encode("end2end", BOXES)
    path = str(tmp_path / "names.txt")
    found = run("YoloDetections(end2end)", {"data": output, "letterbox": letterbox()}, labels=path)
    assert found.data["class_name"].tolist() == ["cow", "cat", "dog"]
    assert run("YoloDetections(end2end)", {"data": output, "letterbox": letterbox()}).data[
        "class_name"
    ].tolist() == ["2", "0", "1"]


@pytest.mark.parametrize("content", [b"\xef\xbb\xbfcat\r\n\r\ncow\r\n", b"cat\n\ncow"])
def test_line_n_of_a_file_of_labels_names_class_n_minus_1(tmp_path, content):
    (tmp_path / "names.txt").write_bytes(content)
    request = {"data": np.array([0.5, 0.3, 0.2]), "image": np.zeros((30, 40, 3), np.uint8)}
    found = run("ClassDetections(3)", request, labels=str(tmp_path / "names.txt"))
    assert found.data["class_name"].tolist() == ["cat", "1", "cow"]
    assert found.class_id.tolist() == [0, 1, 2]


def test_labels_that_are_not_utf_8_are_an_error_with_file_and_line(tmp_path):
    (tmp_path / "names.txt").write_bytes("cat\nf\u00fcchsin\n".encode("latin-1"))
    with pytest.raises(SetupError, match=r"names\.txt:2: "):
        run("ClassDetections", {}, labels=str(tmp_path / "names.txt"))


def logit(p):
    return np.log(p / (1 - p))


def detr_outputs(activation):
    boxes = np.zeros((10, 4))
    boxes[3:6] = centers(BOXES / np.array([200, 150] * 2))
    boxes[[0, 1, 2, 6, 7, 8, 9]] = 0.5
    if activation == "softmax":
        scores = np.full((10, 4), -20.0)
        scores[:, 3] = 0
        for row, (kind, score) in enumerate(zip(CLASSES, SCORES, strict=True)):
            scores[3 + row, kind] = np.log(score / (1 - score))
    else:
        scores = np.full((10, 3), 0.01)
        scores[[3, 4, 5], CLASSES] = SCORES
        scores = logit(scores) if activation == "sigmoid" else scores
    return boxes, scores


@pytest.mark.parametrize("activation", ["sigmoid", "softmax", "identity"])
@pytest.mark.parametrize("fitted", [True, False])
def test_known_boxes_come_back_from_a_detr(activation, fitted):
    boxes, scores = detr_outputs(activation)
    request = {"image": np.zeros((150, 200, 3), np.uint8)}
    if fitted:
        box = with_bars()
        request = {"letterbox": box}
        canvas = on_canvas(BOXES, box) / np.array([128, 96] * 2)
        boxes[3:6] = centers(canvas)
    for data in (
        {"dets": boxes[None], "labels": scores[None]},
        [scores, boxes],
        np.hstack([boxes, scores]),
    ):
        if activation == "softmax" and isinstance(data, list):
            continue  # four columns each: only names tell which are the boxes
        found = run(f"DetrDetections({activation},0.4)", {"data": data, **request}, labels=LABELS)
        np.testing.assert_allclose(found.xyxy, BOXES, atol=1e-3)
        np.testing.assert_allclose(found.confidence, SCORES, rtol=1e-5)
        assert found.data["class_name"].tolist() == ["cow", "cat", "dog"]


def test_one_query_of_a_detr_with_sigmoid_may_have_two_classes():
    data = [np.array([[0.5, 0.5, 1, 1]]), logit(np.array([[0.9, 0.8, 0.1]]))]
    found = run("DetrDetections", {"data": data, "image": np.zeros((4, 4, 3), np.uint8)})
    assert found.class_id.tolist() == [0, 1]
    with pytest.raises(InputError, match="unclear"):
        run(
            "DetrDetections",
            {"data": [np.zeros((2, 3)), np.zeros((2, 3))], "letterbox": letterbox()},
        )


@pytest.mark.parametrize("unit", ["image", "input", "part"])
@pytest.mark.parametrize("corners", ["xyxy", "cxcywh", "xywh"])
def test_boxes_by_name(unit, corners):
    box = with_bars()
    boxes = BOXES if unit == "image" else on_canvas(BOXES, box)
    boxes = boxes / np.array([128, 96] * 2) if unit == "part" else boxes
    if corners == "cxcywh":
        boxes = centers(boxes)
    elif corners == "xywh":
        boxes = np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]])
    data = {"b": boxes[None], "s": SCORES[None], "c": CLASSES[None]}
    found = run(
        f"BoxDetections(b,s,c,unit={unit},corners={corners})", {"data": data, "letterbox": box}
    )
    np.testing.assert_allclose(found.xyxy, BOXES, atol=1e-3)
    assert found.class_id.tolist() == CLASSES.tolist()
    with pytest.raises(InputError, match="no array 'boxes'"):
        run("BoxDetections", {"data": data, "letterbox": box})


@pytest.mark.parametrize("words", ["DecodeMat", "DecodeMat,LetterBoxMat(64,64)"])
def test_boxes_in_pixels_of_the_image_need_no_size_and_are_clipped_where_it_is_known(words):
    boxes = np.array([[-2, 2, 30, 40], [60, 1, 99, 99]], np.float32)

    def torchvision_detector(image):
        return {"boxes": boxes, "scores": np.array([0.9, 0.8]), "labels": np.array([1, 3])}

    headrace.register("TorchvisionDetector", torchvision_detector, replace=True)
    file = cv2.imencode(".png", np.zeros((48, 64, 3), np.uint8))[1].tobytes()
    found = run(f"S[{words},TorchvisionDetector,BoxDetections]", {"data": file})
    clipped = np.array([[0, 2, 30, 40], [60, 1, 64, 48]], np.float32)
    np.testing.assert_array_equal(found.xyxy, clipped if "LetterBox" in words else boxes)
    with pytest.raises(InputError, match="the size of the source image is unknown"):
        run("S[DecodeMat,TorchvisionDetector,BoxDetections(unit=part)]", {"data": file})


def test_classes_are_detections_of_the_whole_image():
    image = np.zeros((30, 40, 3), np.uint8)
    found = run(
        "ClassDetections(2)", {"data": np.log([0.2, 0.7, 0.1]), "image": image}, labels=LABELS
    )
    np.testing.assert_allclose(found.confidence, [0.7, 0.2], rtol=1e-6)
    np.testing.assert_array_equal(found.xyxy, [[0, 0, 40, 30]] * 2)
    assert found.data["class_name"].tolist() == ["dog", "cat"]


def detections(boxes=BOXES, track=None, scores=SCORES, classes=CLASSES):
    return sv.Detections(
        xyxy=np.asarray(boxes, np.float32).reshape(-1, 4),
        confidence=np.asarray(scores, np.float32),
        class_id=np.asarray(classes),
        tracker_id=None if track is None else np.asarray(track),
        data={"class_name": np.array([LABELS[k] for k in classes], dtype=str)},
    )


def test_a_filter_keeps_what_fulfils_all_conditions():
    def kept(expression, data=None):
        return run(expression, {"data": data or detections()}).class_id.tolist()

    assert kept("FilterDetections") == [2, 0, 1]
    assert kept("FilterDetections([cat,1])") == [0, 1]
    assert kept("FilterDetections(score_threshold=0.55)") == [2, 0]
    assert kept("FilterDetections(min_area=1000,max_area=6500)") == [0]


def moving(frame, order):
    """Two objects that cross each other's way, in any order of the rows."""
    boxes = np.array(
        [[5 * frame, 10, 5 * frame + 20, 40], [200 - 5 * frame, 60, 220 - 5 * frame, 90]]
    )
    return detections(
        boxes[order], scores=np.array([0.9, 0.8])[order], classes=np.array([0, 1])[order]
    )


def context(source, frame, **more):
    return {"source": source, "frame": frame, "timestamp": frame / 30, "gap": False, **more}


@pytest.mark.parametrize("name", ["bytetrack", "ocsort", "sort", "botsort"])
def test_each_source_has_the_tracks_of_a_tracker_of_its_own(name):
    import trackers

    from headrace_vision.tracking.track import TRACKERS

    image = np.zeros((100, 240, 3), np.uint8)
    cv2.rectangle(image, (30, 30), (90, 80), (255, 255, 255), -1)
    alone = {s: getattr(trackers, TRACKERS[name])() for s in "ab"}
    with headrace.pipe({"backend": f"Track({name})", "max": 4}) as pipe:
        for frame in range(12):
            for source in "ab":
                order = [0, 1] if (frame + (source == "b")) % 2 else [1, 0]
                data = moving(frame, order)
                expected = alone[source].update(
                    data, frame=image if name == "botsort" else None, timestamp=frame / 30
                )
                request = {"data": data, "image": image, "context": context(source, frame)}
                found = pipe(request)["result"]
                np.testing.assert_array_equal(found.xyxy, data.xyxy)
                assert data.tracker_id is None
                by_class = dict(zip(expected.class_id, expected.tracker_id, strict=True))
                assert found.tracker_id.tolist() == [by_class[k] for k in found.class_id]
    assert sorted(found.tracker_id.tolist()) == [0, 1]


@pytest.mark.parametrize("name", ["bytetrack", "ocsort", "sort", "botsort"])
@pytest.mark.parametrize("step_s", [0.04, 1.5, 5.0])
def test_an_object_keeps_its_number_however_slow_its_source_is(name, step_s):
    """It stands still, is missing from every seventh frame, and has the number that the tracker gives it by frames."""
    import trackers

    from headrace_vision.tracking.track import TRACKERS

    alone = getattr(trackers, TRACKERS[name])()
    image, ids = np.zeros((100, 240, 3), np.uint8), []
    with headrace.pipe({"backend": f"Track({name})"}) as pipe:
        for frame in range(30):
            data = moving(0, [0, 1])[[] if frame % 7 == 6 else [0, 1]]
            expected = alone.update(data, frame=image if name == "botsort" else None)
            about = {"source": "gate", "frame": frame, "timestamp": frame * step_s}
            found = pipe({"data": data, "image": image, "context": about})["result"]
            ids.append(found.tracker_id.tolist())
            assert sorted(ids[-1]) == sorted(expected.tracker_id.tolist()), frame
    assert {one for row in ids for one in row} - {-1} == {0, 1}


def test_steps_that_no_tracker_waits_for_are_logged_once(caplog):
    times = [*range(10), 29, 30, 31, 32, 33, 52]
    with headrace.pipe({"backend": "Track"}) as pipe, caplog.at_level("WARNING"):
        for frame, time_s in enumerate(times):
            about = {"source": "gate", "frame": frame, "timestamp": time_s}
            found = pipe({"data": moving(0, [0, 1]), "context": about})["result"].tracker_id
            assert [one.getMessage().partition(":")[0] for one in caplog.records] == (
                []
                if time_s < 29
                else ["Track has no frame of gate for 20.0 s, and keeps lost tracks for 3.0 s"]
            )
            if time_s == 33:
                assert sorted(found) == [2, 3]


def test_frames_out_of_order_are_refused():
    with headrace.pipe({"backend": "Track"}) as pipe:

        def ask(source, frame):
            request = {"data": moving(frame, [0, 1]), "context": context(source, frame)}
            return pipe(request)["result"].tracker_id.tolist()

        for frame in range(5):
            ask("a", frame)
        assert ask("a", 5) == [0, 1]
        for wrong in (5, 2):
            with pytest.raises(InputError, match="out of order"):
                ask("a", wrong)
        ask("b", 0)
        assert ask("a", 6) == [0, 1]


class Own:
    """Numbers by row."""

    def update(self, detections, frame=None, timestamp=None):
        detections.tracker_id = np.arange(len(detections)) + int(10 * timestamp)
        return detections[np.arange(len(detections))[::-1]]


def test_a_tracker_of_your_own_and_a_wrong_name():

    sys.modules["own_tracker"] = SimpleNamespace(Own=Own)
    try:
        request = {"data": detections(), "context": {"timestamp": 2.0}}
        assert run('Track("own_tracker:Own")', request).tracker_id.tolist() == [20, 21, 22]
    finally:
        del sys.modules["own_tracker"]
    with pytest.raises(HeadraceError, match="Did you mean 'bytetrack'"):
        headrace.pipe({"backend": "Track(bytetrak)"})
    with pytest.raises(HeadraceError, match="refuses its settings"):
        headrace.pipe({"backend": "Track", "settings": {"no_such": 1}})


ONE_PER_NODE = [
    "Track",
    "CountLine([0,0,1,1])",
    "CountZone([[0,0],[9,0],[9,9]])",
    "DrawDetections([box,trace])",
]


def instances_of(backend, number, threads=6):
    """How many instances a node has, and why, by a plan for which nothing is built."""
    table = {"backend": backend, "instance_num": number, "global": {"threads": threads}}
    node = headrace.explain(table)["nodes"]["main"]
    return node["instance_num"], node.get("auto")


@pytest.mark.parametrize("word", ONE_PER_NODE)
def test_several_instances_are_refused_before_anything_is_built(word):
    (name, *_) = word.partition("(")
    with pytest.raises(HeadraceError) as caught:
        headrace.explain({"backend": f"S[Identity,{word}]", "instance_num": 2})
    (problem,) = caught.value.problems
    assert problem.text[slice(*problem.span)] == name
    assert problem.hint == "Write instance_num = 1."
    with pytest.raises(SetupError, match=f"{name} keeps state by source, and 2 instances"):
        headrace.pipe({"backend": f"Process[{word}]", "instance_num": 2})


@pytest.mark.parametrize("word", ONE_PER_NODE)
def test_a_node_that_keeps_state_by_source_has_one_instance_by_auto(word):
    (name, *_) = word.partition("(")
    assert instances_of(f"S[DecodeMat,{word}]", "auto") == (1, f"{name} carries 1")


def test_what_draws_a_frame_alone_has_as_many_instances_as_one_likes():
    assert instances_of("DrawDetections([box,label])", 3) == (3, None)
    assert instances_of("S[DecodeMat,DrawDetections([box,label])]", "auto")[0] == 6


def test_a_line_counts_each_crossing_once_and_by_source():
    with headrace.pipe({"backend": "CountLine([0,50,100,50],name=door)"}) as pipe:

        def ask(source, frame, *tops):
            boxes = [[10 * k, top, 10 * k + 8, top + 8] for k, top in enumerate(tops)]
            data = detections(
                boxes, range(len(tops)), [0.9] * len(tops), [k % 3 for k in range(len(tops))]
            )
            answer = pipe({"data": data, "context": context(source, frame)})
            assert answer["result"] is data
            return answer

        ask("a", 0, 20, 80)
        ask("b", 0, 20, 80)
        answer = ask("a", 1, 70, 90)
        again = ask("a", 2, 70, 20)
        other = ask("b", 1, 20, 80)
    (event,) = answer["events"]
    assert (event["track_id"], event["class_name"], event["frame"]) == (0, "cat", 1)
    first, second = event["direction"], again["events"][0]["direction"]
    assert {first, second} == {"in", "out"}
    assert again["counts"] == {"door": {"in": 1, "out": 1}}
    assert other["counts"] == {"door": {"in": 0, "out": 0}}
    assert other["events"] == []
    with pytest.raises(InputError, match="Put Track before"):
        run("CountLine([0,50,100,50])", {"data": detections()})


def test_the_directions_of_a_line_are_those_that_its_docstring_says():
    """From (0, 50) to (100, 50) the way goes to the right: above is its left side, below its right."""
    with headrace.pipe({"backend": "CountLine([0,50,100,50])"}) as pipe:
        for frame, top in enumerate((80, 20)):  # from below, the right side, to above
            data = detections([[40, top, 48, top + 8]], [1], [0.9], [0])
            answer = pipe({"data": data, "context": context("a", frame)})
    assert answer["counts"]["line"] == {"in": 1, "out": 0}


def test_a_zone_says_who_enters_and_leaves_and_how_long_each_was_inside():
    zone = "CountZone([[0,0],[50,0],[50,50],[0,50]],patience_s=0.5)"
    with headrace.pipe({"backend": zone}) as pipe:

        def ask(frame, tracks):
            boxes = [[x, 10, x + 4, 20] for x in tracks.values()]
            count = len(tracks)
            data = detections(boxes, list(tracks), [0.9] * count, [0] * count)
            answer = pipe({"data": data, "context": context("a", frame)})
            return answer["counts"]["zone"], [
                (e["direction"], e["track_id"], e.get("dwell_s")) for e in answer["events"]
            ]

        assert ask(0, {1: 10, 2: 80, -1: 10}) == ({"inside": 1, "entered": 1}, [("enter", 1, None)])
        assert ask(15, {1: 20, 2: 30})[1] == [("enter", 2, None)]
        counts, ((kind, who, dwell),) = ask(30, {1: 80, 2: 30})
        assert (counts, kind, who) == ({"inside": 1, "entered": 2}, "leave", 1)
        assert dwell == pytest.approx(1.0)
        assert ask(40, {})[1] == []
        counts, ((kind, who, dwell),) = ask(60, {})
        assert (counts["inside"], kind, who) == (0, "leave", 2)
        assert dwell == pytest.approx(0.5)


def test_who_is_inside_for_long_is_told_while_inside_and_once_a_stay():
    """At 30 pictures a second: track 1 is inside from 0 to 4 s and again from 6 s on, track 2 for 1 s, track 3 leaves unseen."""
    zone = "CountZone([[0,0],[50,0],[50,50],[0,50]],dwell_s=2)"
    told = []
    with headrace.pipe({"backend": zone}) as pipe:
        for frame in range(0, 301, 15):
            at = {1: 10 if frame < 120 or frame >= 180 else 80, 2: 10 if frame < 30 else 80}
            at |= {3: 10} if frame <= 75 else {}
            data = detections(
                [[x, 10, x + 4, 20] for x in at.values()], [*at], [0.9] * len(at), [0] * len(at)
            )
            given = context("a", frame)
            if frame == 75:
                del given["timestamp"]  # no time has passed
            events = pipe({"data": data, "context": given})["events"]
            told += [
                (frame, e["track_id"], e["direction"], e["dwell_s"])
                for e in events
                if "dwell_s" in e
            ]
    assert told == [
        (30, 2, "leave", pytest.approx(1.0)),
        (60, 1, "dwell", pytest.approx(2.0)),
        (60, 3, "dwell", pytest.approx(2.0)),
        (105, 3, "leave", pytest.approx(2.0)),
        (120, 1, "leave", pytest.approx(4.0)),
        (240, 1, "dwell", pytest.approx(2.0)),
    ]


def test_a_stay_that_ends_unseen_between_two_pictures_is_told_too():
    with headrace.pipe({"backend": "CountZone([[0,0],[50,0],[50,50]],dwell_s=2)"}) as pipe:
        told = []
        for frame, x in ((0, 30), (90, 80)):
            data = detections([[x, 10, x + 4, 20]], [1], [0.9], [0])
            found = pipe({"data": data, "context": context("a", frame)})["events"]
            told += [(e["direction"], e.get("dwell_s")) for e in found]
    assert told == [("enter", None), ("dwell", 3.0), ("leave", 3.0)]


def test_a_drawing_changes_the_copy_where_the_boxes_are():
    image = np.zeros((150, 200, 3), np.uint8)
    drawn = run("DrawDetections([box])", {"data": detections(track=[1, 2, 3]), "image": image})
    assert not image.any()
    assert drawn[20, 50].any()
    assert not drawn[50, 50].any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run("DrawDetections", {"data": detections(), "image": image}).any()
    none = run("DrawDetections", {"data": sv.Detections.empty(), "image": image})
    assert not none.any()
    assert none is not image


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 5), st.booleans(), st.booleans())
def test_records_are_json_and_lose_nothing(seed, count, has_tracks, has_data):
    random = np.random.default_rng(seed)
    found = detections(
        random.uniform(0, 99, (count, 4)),
        random.integers(-1, 9, count) if has_tracks and count else None,
        random.uniform(0, 1, count),
        random.integers(0, 3, count),
    )
    if has_data and count:
        found.data["speed"] = random.normal(0, 1, count)
    back = from_records(json.loads(json.dumps(to_records(found))))
    if count:
        assert back == found
        assert back.xyxy.dtype == np.float32
    assert len(back) == count


def test_records_that_differ_are_refused():
    with pytest.raises(InputError, match="these records differ"):
        from_records([{"box": [0, 0, 1, 1], "score": 1.0}, {"box": [0, 0, 1, 1]}])


def outlined():
    """Two objects with masks and three keypoints each, of which one is not there."""
    masks = np.zeros((2, 30, 40), bool)
    masks[0, 4:9, 3:20] = masks[1, 12:28, 22] = True
    points = np.array([[[5, 5, 1], [9, 6, 0.5], [30, 25, 0]]] * 2, np.float32)
    boxes = [[3, 4, 20, 9], [22, 12, 23, 28]]
    found = detections(boxes, scores=[0.9, 0.5], classes=[0, 1])
    found.mask, found.data["keypoints"] = masks, points
    return found


def test_masks_are_run_lengths_of_coco_in_records_and_come_back_with_keypoints():
    found = outlined()
    records = json.loads(json.dumps(to_records(found)))
    # By hand: one column of 16 pixels behind 22 columns of 30 and 12 more, and what is left.
    assert records[1]["mask"] == {"size": [30, 40], "counts": [22 * 30 + 12, 16, 2 + 17 * 30]}
    assert sum(records[0]["mask"]["counts"]) == 30 * 40
    back = from_records(records)
    np.testing.assert_array_equal(back.mask, found.mask)
    np.testing.assert_array_equal(back.data["keypoints"], found.data["keypoints"])
    assert frame_record(Frame("a", 0, 0.0, result=found))["detections"] == to_records(found)


def test_masks_and_keypoints_are_drawn_where_they_are():
    found, image = outlined(), np.zeros((30, 40, 3), np.uint8)
    drawn = run(
        "DrawDetections",
        {"data": found, "image": image},
        annotators=["mask", "box", "keypoints"],
    )
    assert drawn[6, 15].any()  # inside of the first mask, and of its box: not its border
    np.testing.assert_array_equal(drawn[5, 5], (0, 255, 255))
    assert not drawn[25, 30].any()  # a keypoint that is not there
    found.mask = None
    plain = run(
        "DrawDetections",
        {"data": found, "image": image},
        annotators=["mask", "box", "keypoints"],
    )
    assert not plain[6, 15].any()


def test_masks_and_keypoints_stay_with_their_detection_behind_a_filter():
    found = outlined()
    kept = run("FilterDetections", {"data": found}, classes=[1])
    np.testing.assert_array_equal(kept.mask, found.mask[1:])
    np.testing.assert_array_equal(kept.data["keypoints"], found.data["keypoints"][1:])


def walking(count=6):
    """One confirmed track of 10 x 10 pixels that goes to the right by 20 pixels each frame."""
    for step in range(count):
        found = detections([[20 * step, 40, 20 * step + 10, 50]], [7], [0.9], [0])
        yield {
            "data": found,
            "image": np.zeros((100, 200, 3), np.uint8),
            "context": {"source": "a", "frame": step},
        }


def drawn_by(expression, requests):
    with headrace.pipe({"backend": expression}) as pipe:
        return [pipe(request)["result"] for request in requests]


def test_a_trace_shows_where_a_track_was_and_a_heat_map_where_all_were():
    traced = drawn_by("DrawDetections([trace])", walking())
    assert not traced[0].any()
    columns = np.nonzero(traced[-1].any((0, 2)))[0]
    ends = (columns.min(), columns.max())
    assert ends == pytest.approx((5, 105), abs=1)  # from the first center to the last
    assert np.nonzero(traced[-1].any((1, 2)))[0] == pytest.approx(45, abs=1)
    hot = drawn_by("DrawDetections([heatmap])", walking())
    assert [one[60, 5].any() for one in hot] == [True] * 6  # the first place stays warm
    assert hot[0][60, 105].any() < hot[-1][60, 105].any()
    # Each source has its own.
    requests = [one | {"context": {"source": f"s{n}"}} for n, one in enumerate(walking())]
    assert not any(one.any() for one in drawn_by("DrawDetections([trace])", requests))


def test_a_trace_needs_tracks_in_their_order_and_one_instance():
    request = {"data": detections(), "image": np.zeros((150, 200, 3), np.uint8)}
    with pytest.raises(InputError, match="Put Track before this word"):
        run("DrawDetections([trace])", request)
    with pytest.raises(InputError, match="out of order"):
        drawn_by("DrawDetections([trace])", reversed(list(walking())))
    with pytest.raises(HeadraceError, match="DrawDetections allows no more than 1 instances"):
        run("DrawDetections([heatmap])", request, instance_num=2)
    with pytest.raises(HeadraceError, match="annotators"):
        run("DrawDetections([glow])", request)


@pytest.mark.parametrize("name", ["blur", "pixelate"])
def test_who_is_found_can_be_made_unrecognisable(name):
    image = np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)
    found = detections([[20, 30, 80, 90]], None, [0.9], [0])
    drawn = run(f"DrawDetections([{name}])", {"data": found, "image": image})
    changed = (drawn != image).any(2)
    assert changed[30:90, 20:80].mean() > 0.95
    changed[30:90, 20:80] = False
    assert not changed.any()
    assert drawn[35:85, 25:75].std() < image.std() / 2


def test_counted_lines_and_zones_are_drawn_with_their_counts():
    image = np.zeros((100, 200, 3), np.uint8)
    found = detections([[20, 40, 30, 50]], [7], [0.9], [0])
    request = {"data": found, "image": image, "context": {"source": "a", "frame": 0}}
    words = "S[CountLine([150,5,150,95],name=door),CountZone([[5,5],[90,5],[90,95],[5,95]]),DrawDetections([])]"
    with headrace.pipe({"backend": words}) as pipe:
        request = pipe(request)
    assert request["lines"] == {"door": [150, 5, 150, 95]}
    assert request["zones"] == {"zone": [(5, 5), (90, 5), (90, 95), (5, 95)]}
    drawn = request["result"]
    for x, y in ((150, 20), (150, 80), (5, 20), (90, 70), (30, 5), (60, 95)):
        assert drawn[y, x].min() > 200
    for x, y in ((190, 20), (100, 10), (20, 20), (70, 80)):
        assert not drawn[y, x].any()
    assert drawn[50, 140].any()  # the name of the line, in its middle
