"""What sinks write, read again by other libraries; and what happens when they cannot."""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
from pathlib import Path

import av
import cv2
import numpy as np
import onnx
import pytest
import supervision as sv
from onnx import TensorProto, helper
from processes import run_process

import headrace
from headrace.errors import InputError
from headrace_vision import (
    SaveImages,
    SaveJSONL,
    SaveVideo,
    Sink,
    VideoRunner,
    Webhook,
    detect,
    from_records,
)


def find(image):
    """The red square of `picture`, as a detection."""
    if image.ndim != 3:
        raise ValueError("no picture")
    y, x = np.nonzero((image[..., 2] > 200) & (image[..., 1] < 60))
    if not len(x):
        return sv.Detections.empty()
    box = np.array([[x.min(), y.min(), x.max() + 1, y.max() + 1]], np.float32)
    data = {"class_name": np.array(["square"])}
    return sv.Detections(
        box, confidence=np.array([0.9], np.float32), class_id=np.array([4]), data=data
    )


@pytest.fixture(scope="module", autouse=True)
def _find():
    headrace.register("VisionFind", find)


def run(sinks, x, **options):
    with VideoRunner({"backend": "VisionFind", "max": 4}, sinks=sinks, **options) as runner:
        frames = list(runner.run(x))
    return frames, runner.status()["sinks"]


def test_videos_have_every_frame_at_its_time_and_are_finished(kit, tmp_path):
    times = [0, 40, 90, 300, 310, 700, 1000]
    video = kit.render(tmp_path / "street.mp4", count=7, times=times)
    other = kit.render(tmp_path / "yard.mp4", count=5, size=(34, 48))
    frames, sinks = run([SaveVideo(tmp_path / "out")], [video, other])
    assert sinks["SaveVideo"]["error"] is None
    assert sorted(p.name for p in (tmp_path / "out").glob("*.mp4*")) == ["street.mp4", "yard.mp4"]
    with av.open(str(tmp_path / "out" / "street.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.pix_fmt) == ("h264", "yuv420p")
        saved = [(f.time, f.to_ndarray(format="bgr24")) for f in container.decode(video=0)]
    data = (tmp_path / "out" / "street.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    assert [time for time, _ in saved] == pytest.approx([t / 1000 for t in times], abs=1e-3)
    for (_, image), frame in zip(saved, [f for f in frames if f.path == video], strict=True):
        below = image[30:].astype(int) - frame.image[30:]
        assert np.abs(below).mean() < 12


def test_a_new_size_begins_a_new_file_and_odd_sides_are_padded(tmp_path):
    images = [np.full((33, 41, 3), 90, np.uint8)] * 3 + [np.full((48, 64, 3), 90, np.uint8)] * 2
    run([SaveVideo(tmp_path, codec="mpeg4")], {"cam": images})
    sizes = {}
    for path in tmp_path.glob("*.mp4*"):
        with av.open(str(path)) as container:
            shapes = [(f.height, f.width) for f in container.decode(video=0)]
        sizes[path.name] = shapes
    assert sizes == {"cam.mp4": [(34, 42)] * 3, "cam-size2.mp4": [(48, 64)] * 2}


def test_a_loop_that_is_left_leaves_a_video_that_is_whole(kit, tmp_path):
    with VideoRunner({"backend": "VisionFind"}, sinks=[SaveVideo(tmp_path)]) as runner:
        pictures = (kit.picture(n) for n in itertools.count())
        for frame in runner.run({"endless": pictures}):
            if frame.frame == 20:
                break
    assert [p.name for p in tmp_path.glob("*.mp4*")] == ["endless.mp4"]
    with av.open(str(tmp_path / "endless.mp4")) as container:
        assert sum(1 for _ in container.decode(video=0)) >= 21


def test_images_are_drawn_on_and_called_by_source_and_number(kit, tmp_path):
    run(
        [SaveImages(tmp_path, suffix=".png")],
        {"a/b.mp4": [kit.picture(n) for n in range(3)], "b": kit.picture(5)},
    )
    names = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.png"))
    assert names == ["b-2/000000.png", "b/000000.png", "b/000001.png", "b/000002.png"] or names == [
        "b-2/000000.png",
        "b-2/000001.png",
        "b-2/000002.png",
        "b/000000.png",
    ]
    drawn = cv2.imread(str(next(tmp_path.rglob("000000.png"))))
    assert drawn.shape == (48, 64, 3)
    run([SaveImages(tmp_path / "plain", draw=False, suffix=".png")], {"x": kit.picture(1)})
    saved = cv2.imread(str(tmp_path / "plain" / "x" / "000000.png"))
    np.testing.assert_array_equal(saved, kit.picture(1))


def test_lines_of_json_have_every_frame_with_its_outcome(kit, tmp_path):
    path = tmp_path / "deep" / "out.jsonl"
    frames, _ = run([SaveJSONL(path)], {"a": [kit.picture(0), b"broken", kit.picture(1)]})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == len(frames) == 3
    by_frame = {(one["source"], one["frame"]): one for one in lines}
    for frame in frames:
        one = by_frame[frame.source, frame.frame]
        assert one["timestamp"] == frame.timestamp
        if frame.error is None:
            assert from_records(one["detections"]) == frame.result
        else:
            assert one["error"]["message"]


def test_lines_of_json_are_a_data_set_of_supervision(kit, tmp_path):
    def outlined(image):
        found = find(image)
        found.mask = (image[None, ..., 2] > 200) & (image[None, ..., 1] < 60)
        found.class_id[:] = 0
        return found

    headrace.register("VisionOutlined", outlined)
    images, lines = tmp_path / "images", tmp_path / "all.jsonl"
    sinks = [SaveImages(images, draw=False), SaveJSONL(lines)]
    with VideoRunner({"backend": "VisionOutlined"}, sinks=sinks) as runner:
        frames = list(runner.run({"v": [kit.picture(n) for n in range(4)]}))
    rows = map(json.loads, lines.read_text().splitlines())
    found = {
        str(images / "v" / f"{row['frame']:06d}.jpg"): from_records(row["detections"])
        for row in rows
    }
    made = sv.DetectionDataset(["square"], list(found), found)
    made.as_coco(str(tmp_path / "coco"), str(tmp_path / "coco.json"))
    read = sv.DetectionDataset.from_coco(
        str(tmp_path / "coco"), str(tmp_path / "coco.json"), force_masks=True
    )
    assert read.classes == ["square"]
    for (_, note), frame in zip(sorted(read.annotations.items()), frames, strict=True):
        np.testing.assert_array_equal(note.xyxy, frame.result.xyxy)
        np.testing.assert_array_equal(note.mask, frame.result.mask)


def strict(word):
    raise AssertionError(f"{word} is no JSON")  # RFC 8259, 6


def test_records_hold_null_for_what_json_does_not_have(kit, tmp_path):
    def odd(image):
        found = find(image)
        found.confidence = np.float32([np.nan] * len(found))
        found.data["distance"] = np.float32([np.inf] * len(found))
        return found

    headrace.register("VisionNoNumber", odd)
    sinks = [SaveJSONL(tmp_path / "a.jsonl")]
    with VideoRunner({"backend": "VisionNoNumber"}, sinks=sinks) as runner:
        assert [frame.error for frame in runner.run({"v": [kit.picture(0)]})] == [None]
    one = json.loads((tmp_path / "a.jsonl").read_text(), parse_constant=strict)
    assert {row["score"] for row in one["detections"]} == {None}
    assert np.isnan(from_records(one["detections"]).confidence).all()


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_file_names_that_are_no_text_come_out_as_they_came_in(kit, tmp_path):
    folder = os.fsencode(tmp_path)
    picture, video = (os.fsdecode(folder + name) for name in (b"/a0\xff.png", b"/gr\xf6.mp4"))
    try:
        Path(picture).write_bytes(kit.encoded(kit.picture(1)))
    except OSError:
        pytest.skip("the file system takes text alone")
    Path(kit.render(tmp_path / "v.mp4", count=3)).rename(video)
    out = tmp_path / "out"
    kinds = [
        SaveJSONL(out / "all.jsonl"),
        SaveVideo(out),
        SaveImages(out),
    ]
    frames, sinks = run(kinds, [picture, video])
    assert [one["error"] for one in sinks.values()] == [None] * 3
    assert len(frames) == 4
    lines = (out / "all.jsonl").read_text(encoding="utf-8").splitlines()
    read = {os.fsencode(json.loads(line)["path"]) for line in lines}
    assert read == {folder + b"/a0\xff.png", folder + b"/gr\xf6.mp4"}


@pytest.mark.parametrize("kind", [SaveVideo, SaveImages, SaveJSONL])
def test_a_sink_that_cannot_write_fails_alone(kit, tmp_path, kind):
    (tmp_path / "file").write_text("in the way")
    seen = []
    frames, sinks = run([kind(tmp_path / "file" / "out", close_s=0), seen.append], kit.picture(0))
    assert len(frames) == len(seen) == 1
    assert sinks[kind.__name__]["state"] == "failed"
    assert "Error" in sinks[kind.__name__]["error"]


FULL = """
import resource, sys, json
import numpy as np
import supervision as sv
import headrace, headrace_vision as v
import headrace_vision.running.runner

headrace_vision.running.runner.CLOSE_S = 120.0
folder, *kinds = sys.argv[1:]
sys.dont_write_bytecode = True  # the limit below would cut compiled modules short, for every later program too
random = np.random.default_rng(0)
pictures = [random.integers(0, 256, (96, 128, 3), np.uint8) for _ in range(12)]
boxes = np.tile(np.array([[1, 2, 30, 40]], np.float32), (400, 1))
found = sv.Detections(boxes, confidence=np.full(400, 0.5), class_id=np.zeros(400, int))
headrace.register("Many", lambda image: found)
resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))  # no file grows beyond that
for kind in kinds:
    seen = []
    place = f"{folder}/{kind}" + ("/all.jsonl" if kind == "SaveJSONL" else "")
    sink = getattr(v, kind)(place, close_s=0)
    with v.VideoRunner({"backend": "Many"}, sinks=[sink, seen.append]) as runner:
        frames = list(runner.run({"a": pictures, "b": pictures}))
    assert all(frame.error is None for frame in frames)
    print(json.dumps([len(frames), len(seen), runner.status()["sinks"][kind]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
def test_a_disk_that_is_full_fails_the_sink_alone(tmp_path):
    kinds = ["SaveVideo", "SaveImages", "SaveJSONL"]
    command = [sys.executable, "-c", FULL, str(tmp_path), *kinds]
    done = run_process(command, timeout=300)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for kind, (frames, seen, status) in zip(kinds, found, strict=True):
        assert frames == seen == 24, kind
        assert (status["state"], status["waiting"]) == ("failed", 0), kind
        assert status["error"], kind
    playable, status = (
        0,
        found[0][2],
    )  # under the name of a finished video is only what can be played
    for path in (tmp_path / "SaveVideo").glob("*.mp4*"):
        assert path.suffix == ".mp4"
        with av.open(str(path)) as video:
            playable += sum(1 for _ in video.decode(video=0))
    assert playable == status["written"]
    assert status["written"] + status["lost"] + status["missing"] == 24


LATE = """
import numpy as np
import headrace_vision as v
import headrace_vision.running.runner

headrace_vision.running.runner.CLOSE_S = 0.0  # `close` waits for nothing
pictures = [np.full((480, 640, 3), number, np.uint8) for number in range(14)]
with v.VideoRunner({"backend": "Identity"}, sinks=[v.SaveVideo("out", close_s=0)]) as runner:
    print(sum(1 for _ in runner.run({"a": pictures})))
"""


def test_a_sink_that_still_writes_when_the_program_ends_finishes_its_file(tmp_path):
    done = run_process([sys.executable, "-c", LATE], cwd=tmp_path, timeout=300)
    assert (done.returncode, done.stdout) == (0, "14\n"), done.stderr
    assert [path.name for path in (tmp_path / "out").glob("*.mp4*")] == ["a.mp4"]
    with av.open(str(tmp_path / "out" / "a.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 14


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_device_that_is_full_is_named_in_the_status(kit):
    frames, sinks = run([SaveJSONL("/dev/full", close_s=0)], [kit.picture(n) for n in range(5)])
    assert len(frames) == 5
    assert "No space left on device" in sinks["SaveJSONL"]["error"]


def test_a_webhook_posts_and_tries_again(kit, receiver):
    answers = iter([503])
    receiver.answer = lambda body: next(answers, 200)
    hook = Webhook(receiver.url, network=["127.0.0.1"], only_events=False)
    _, sinks = run([hook], {"a": kit.picture(0)})
    assert [body["source"] for body in receiver.asked] == ["a", "a"]
    assert sinks["Webhook"]["posted"] == 1
    quiet = Webhook(receiver.url, network=["127.0.0.1"])
    _, sinks = run([quiet], {"a": kit.picture(0)})
    assert sinks["Webhook"]["posted"] == 0


def test_a_webhook_gives_up_follows_no_redirect_and_calls_no_other_host(kit, receiver):
    receiver.answer = lambda body: 302
    hook = Webhook(receiver.url, network=["127.0.0.1"], only_events=False, close_s=0)
    frames, sinks = run([hook], {"a": kit.picture(0)})
    assert frames[0].error is None
    assert 1 <= len(receiver.asked) <= 2  # the second attempt is that of closing
    assert "302" in sinks["Webhook"]["error"]
    assert sinks["Webhook"]["lost"] == 1
    with pytest.raises(InputError, match="not allowed"):
        Webhook(receiver.url)
    with pytest.raises(InputError, match="http or https"):
        Webhook("rtsp://h/", network=["h"])


def model(path, outputs, names=None, size=(96, 128), **metadata):
    """An ONNX file that answers the same arrays for each image."""
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["mean"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Squeeze", ["mean"], ["flat"], axes=[3]),
        helper.make_node("Mul", ["flat", "zero"], ["none2"]),
        helper.make_node("Mul", ["mean", "zero"], ["none3"]),
    ]
    constants = [helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])]
    infos = []
    for name, array in outputs.items():
        constants.append(
            helper.make_tensor(f"{name}_c", TensorProto.FLOAT, [1, *array.shape], array.ravel())
        )
        nodes.append(helper.make_node("Add", [f"none{array.ndim}", f"{name}_c"], [name]))
        infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *array.shape]))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, *size])
    graph = helper.make_graph(nodes, "fixed", [image], infos, constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
    made.ir_version = 8
    if names:
        metadata["names"] = str(names)
    helper.set_model_props(made, metadata)
    onnx.save(made, path)
    return str(path)


def v8_output():
    out = np.zeros((6, 252), np.float32)
    out[:, 7] = [64, 48, 32, 24, 0.1, 0.8]
    return out


def test_detect_takes_layout_and_labels_from_the_file(kit, tmp_path):
    path = model(tmp_path / "m.onnx", {"out": v8_output()}, {0: "cat", 1: "dog"}, task="detect")
    video = kit.render(tmp_path / "v.mp4", count=4, size=(150, 200))
    found = detect(path, video, track="bytetrack")
    assert "layout v8" in found.took
    assert "2 classes (from the file)" in found.took
    frames = list(found)
    for frame in frames:
        assert frame.error is None
        assert frame.result.data["class_name"].tolist() == ["dog"]
        # 150 x 200 fits into 96 x 128 by 0.64: the box of 32 x 24 in the middle is one of 50 x 37.5.
        np.testing.assert_allclose(frame.result.xyxy, [[75, 56.25, 125, 93.75]], atol=0.01)
    assert [f.result.tracker_id.tolist() for f in frames] == [[-1], [0], [0], [0]]


def export(task):
    """What a network for a task says of one object, and its classes: rows in the order of Ultralytics' exports."""
    out = np.zeros({"pose": (56, 252), "obb": (20, 252), "segment": (116, 252)}[task], np.float32)
    out[:4, 7] = [64, 48, 32, 24]
    out[4, 7] = 0.9
    out[5:, 7] = {"pose": 310, "obb": 0, "segment": 2}[task]
    out[-1] = max(out[-1, 7], 0.7)
    return out, {"pose": ["person"], "obb": list("abcdefghijklmno"), "segment": list(range(80))}[
        task
    ]


@pytest.mark.parametrize("layout", ["auto", "v8"])
@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("depth", "for the task 'depth'"),
        ("pose", "how many keypoints"),
        ("segment", "no layout fits|do not fit the layout"),
    ],
)
def test_detect_refuses_a_network_whose_outputs_it_does_not_know(kit, tmp_path, task, said, layout):
    output, names = export("obb" if task == "depth" else task)
    path = model(tmp_path / "m.onnx", {"out": output}, dict(enumerate(names)), task=task)
    with pytest.raises(InputError, match=said):
        detect(path, kit.picture(0), layout=layout)


@pytest.mark.parametrize("layout", ["auto", "v8"])
def test_detect_takes_keypoints_from_the_file(tmp_path, layout):
    output = export("pose")[0]
    output[5:, 7] = [*[70, 40, 0.75] * 16, 64, 48, 0.5]
    said = {"task": "pose", "kpt_shape": "[17, 3]"}
    path = model(tmp_path / "m.onnx", {"out": output}, {0: "person"}, **said)
    found = detect(path, np.zeros((192, 256, 3), np.uint8), layout=layout)
    assert "1 classes (from the file), 17 keypoints;" in found.took
    (frame,) = found
    # The picture is twice as large as the input.
    np.testing.assert_allclose(frame.result.xyxy, [[96, 72, 160, 120]])
    points = frame.result.data["keypoints"]
    np.testing.assert_allclose(points[0, 15:], [[140, 80, 0.75], [128, 96, 0.5]])
    assert points.shape == (1, 17, 3)


@pytest.mark.parametrize(("task", "layout"), [({}, "v8"), ({"task": "segment"}, "auto")])
def test_detect_takes_masks_from_the_file(tmp_path, task, layout):
    output = export("segment")[0][:39]
    output[5:, 7] = 0
    output[8, 7] = 1  # the coefficient of the second prototype
    prototypes = np.full((32, 24, 32), -1, np.float32)
    prototypes[1, :12] = 1
    path = model(tmp_path / "m.onnx", {"out": output, "more": prototypes}, list("abc"), **task)
    found = detect(path, np.zeros((96, 128, 3), np.uint8), layout=layout)
    assert "3 classes (from the file), masks;" in found.took
    (frame,) = found
    wanted = np.zeros((96, 128), bool)
    wanted[36:48, 48:80] = True  # the upper half of the picture, in the box
    np.testing.assert_array_equal(frame.result.mask[0], wanted)


def test_detect_takes_masks_of_a_detr_and_refuses_its_keypoints(tmp_path):
    outputs = {
        "dets": np.array([[0.5, 0.5, 0.25, 0.5]], np.float32),
        "labels": np.array([[-3, 2.0, -3]], np.float32),
        "masks": np.where(np.arange(24) < 12, 1, -1).reshape(1, 1, 24).repeat(24, 1),
    }
    path = model(tmp_path / "detr.onnx", outputs)
    (frame,) = detect(path, np.zeros((48, 64, 3), np.uint8))
    np.testing.assert_array_equal(frame.result.mask[0], np.tile(np.arange(64) < 32, (48, 1)))
    outputs["keypoints"] = outputs.pop("masks")
    with pytest.raises(InputError, match="keypoints"):
        detect(model(tmp_path / "points.onnx", outputs), np.zeros((48, 64, 3), np.uint8))


@pytest.mark.parametrize("task", ["pose", "obb", "segment"])
def test_detect_takes_no_row_for_a_class_that_the_file_does_not_name(kit, tmp_path, task):
    output, names = export(task)
    path = model(tmp_path / "m.onnx", {"out": output}, dict(enumerate(names)))
    with pytest.raises(InputError, match="no layout fits"):
        detect(path, kit.picture(0))


def test_a_score_above_1_is_refused(kit, tmp_path):
    path = model(tmp_path / "m.onnx", {"out": export("pose")[0]})
    (frame,) = detect(path, kit.picture(0), layout="v8")
    assert "a score is above 1" in str(frame.error)
    assert "310" in str(frame.error)


def dynamic_model(path, **metadata):
    """A file that leaves batch, height and width open: the means of the cells of three grids, twice."""
    nodes = [helper.make_node("Concat", ["image", "image"], ["both"], axis=1)]
    for side in (8, 16, 32):
        shape = {"kernel_shape": [side, side], "strides": [side, side]}
        nodes += [
            helper.make_node("AveragePool", ["both"], [f"grid{side}"], **shape),
            helper.make_node("Reshape", [f"grid{side}", "flat"], [f"cells{side}"]),
        ]
    nodes.append(helper.make_node("Concat", ["cells8", "cells16", "cells32"], ["out"], axis=2))
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "h", "w"])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 6, "anchors"])],
        [helper.make_tensor("flat", TensorProto.INT64, [3], [0, 6, -1])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    made.ir_version = 8
    helper.set_model_props(made, metadata)
    onnx.save(made, path)
    return str(path)


@pytest.mark.parametrize(
    ("imgsz", "size", "side"), [("[320, 320]", None, 320), ("[320, 320]", 64, 64), ("", None, 640)]
)
def test_detect_takes_layout_and_size_of_a_file_whose_shapes_are_open(tmp_path, imgsz, size, side):
    said = {"imgsz": imgsz, "stride": "32", "task": "detect", "names": "{0: 'cat', 1: 'dog'}"}
    path = dynamic_model(tmp_path / "m.onnx", **said)
    found = detect(path, np.full((64, 64, 3), 255, np.uint8), size=size)
    assert f"layout v8, input {side} x {side}, 2 classes (from the file)" in found.took
    (frame,) = found
    # All cells of a white picture say the same: a box around (1, 1) of 1 x 1 pixels of the input, and a score of 1.
    np.testing.assert_allclose(frame.result.xyxy, np.array([[0.5, 0.5, 1.5, 1.5]]) * 64 / side)
    assert frame.result.confidence.tolist() == [1.0]


def test_detect_refuses_a_size_that_is_no_multiple_of_the_stride(tmp_path, kit):
    path = dynamic_model(tmp_path / "m.onnx", stride="32")
    with pytest.raises(InputError, match="a multiple of 32"):
        detect(path, kit.picture(0), size=100)


def test_detect_knows_a_detr_and_refuses_what_is_unclear(kit, tmp_path):
    boxes = np.array([[0.5, 0.5, 0.25, 0.5]], np.float32)
    logits = np.array([[-3, 2.0, -3]], np.float32)
    path = model(tmp_path / "detr.onnx", {"dets": boxes, "labels": logits})
    (frame,) = detect(path, kit.picture(0), labels=["a", "b", "c"])
    np.testing.assert_allclose(frame.result.xyxy, [[24, 12, 40, 36]])
    assert frame.result.data["class_name"].tolist() == ["b"]
    unclear = model(tmp_path / "u.onnx", {"out": np.zeros((7, 4), np.float32)})
    with pytest.raises(InputError, match="no layout fits"):
        detect(unclear, kit.picture(0))
    with pytest.raises(InputError, match="no such model"):
        detect("nowhere.onnx", kit.picture(0))
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(InputError, match="this is no model"):
        detect(tmp_path / "text.onnx", kit.picture(0))


def test_a_frame_that_is_dropped_while_it_is_written_counts_as_written_alone():
    begun, go_on = threading.Event(), threading.Event()

    class Slow(Sink):
        full, queue_size = "drop", 1

        def write(self, frame):
            begun.set()
            assert go_on.wait(60)

    picture = np.zeros((4, 4, 3), np.uint8)
    with VideoRunner({"backend": "Identity"}, sinks=[Slow()]) as runner:
        list(runner.run({"first": [picture]}))
        assert begun.wait(60)
        list(runner.run({"more": [picture] * 4}))
        go_on.set()
    (status,) = runner.status()["sinks"].values()
    assert (status["written"], status["dropped"], status["lost"]) == (2, 3, 0)
