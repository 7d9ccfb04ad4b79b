"""The example: its commands run, and what they print is right."""

from __future__ import annotations

import csv
import json
import re
from importlib.util import find_spec
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from pages import Page, copy_examples, run

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "video"
NEEDED = ("onnx", "trackers", "headrace_cv", "headrace_ort")
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir() or any(find_spec(one) is None for one in NEEDED),
    reason="needs the repository, onnx, trackers, headrace-cv and headrace-ort",
)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return copy_examples(tmp_path_factory.mktemp("root"), "video", "ocr")


COMMANDS = [line for line in Page("examples/video/README.md").commands if "pip" not in line]


@pytest.mark.slow
def test_the_commands_run_and_the_easy_clip_is_counted_and_tracked_right(example):
    printed = [run(line, example) for line in COMMANDS[:3]]
    crossings = int(re.search(r"(\d+) objects cross", printed[0]).group(1))
    assert "easy\t120 delivered\t0 failed\t0 dropped" in printed[1]
    lines = {line.split()[0]: line.split()[1:] for line in printed[2].splitlines()[1:]}
    precision, _, idf1, _, into, out = map(float, lines["easy"])
    assert precision > 0.95
    assert idf1 >= 0.85
    assert into + out == crossings == 3
    assert lines["empty"][:5] == ["nothing", "is", "there,", "0", "found"]
    made = example / "examples" / "video" / "made" / "out"
    assert sorted(p.name for p in made.glob("*.mp4")) == [
        "crossing.mp4", "easy.mp4", "empty.mp4", "slow.mp4"
    ]  # fmt: skip


def by_hand(folder, clip):
    """Boxes, scores and tracks of a clip by the libraries alone: its pictures are as large as the network's input."""
    import av
    import onnxruntime
    import supervision as sv
    import trackers

    session = onnxruntime.InferenceSession(folder / "detector.onnx")
    tracker = trackers.ByteTrackTracker()
    with av.open(str(folder / f"{clip}.mp4")) as container:
        for frame in container.decode(video=0):
            pixels = frame.to_ndarray(format="rgb24").transpose(2, 0, 1)[None] / np.float32(255)
            output = session.run(None, {"image": pixels.astype(np.float32)})[0][0]
            scores, classes = output[4:].max(0), output[4:].argmax(0)
            x, y, w, h = output[:4]
            boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1).clip(0, 320)
            keep = scores >= 0.5
            found = sv.Detections(boxes[keep], confidence=scores[keep], class_id=classes[keep])
            found = found.with_nms(0.5)
            yield tracker.update(found[np.argsort(-found.confidence)], timestamp=frame.time)


@pytest.mark.slow
def test_clips_that_share_batches_have_the_boxes_and_tracks_of_a_loop_per_clip(example):
    folder = example / "examples" / "video" / "made"
    lines = [json.loads(one) for one in (folder / "out" / "all.jsonl").read_text().splitlines()]
    # Not `crossing`: where two objects meet, two boxes beside each other have the same score to the last bit.
    for clip in ("easy", "slow", "empty"):
        records = [one["detections"] for one in lines if one["source"] == clip]
        assert len(records) == 120
        for found, expected in zip(records, by_hand(folder, clip), strict=True):
            assert len(found) == len(expected)
            left = {
                (int(kind), int(track)): box
                for kind, box, track in zip(
                    expected.class_id, expected.xyxy, expected.tracker_id, strict=True
                )
                if track >= 0
            }
            for one in found:
                if one["track_id"] >= 0:
                    box = left.pop((one["class_id"], one["track_id"]))
                    np.testing.assert_allclose(one["box"], box, atol=0.5)
            assert not left


def vector_of(session, image, box):
    """The vector of a box in an image, by the libraries alone."""
    x1, y1, x2, y2 = np.floor(np.array(box) + 0.5).astype(int)
    crop = cv2.cvtColor(cv2.resize(image[y1:y2, x1:x2], (32, 32)), cv2.COLOR_BGR2RGB)
    pixels = crop.transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)
    return session.run(None, {"crop": pixels})[0][0]


@pytest.mark.slow
def test_the_vector_of_each_track_is_that_of_its_crop_ten_frames_ago_at_most(example):
    folder = example / "examples" / "video" / "made"
    if not (folder / "embedder.onnx").exists():
        [run(line, example) for line in COMMANDS[:1]]
    printed = [run(line, example) for line in COMMANDS[3:4]]
    assert printed[0].count("120 delivered\t0 failed\t0 dropped") == 2
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(folder / "embedder.onnx")
    lines = [json.loads(one) for one in (folder / "out" / "vectors.jsonl").read_text().splitlines()]
    for clip in ("easy", "slow"):
        with av.open(str(folder / f"{clip}.mp4")) as container:
            images = [one.to_ndarray(format="bgr24") for one in container.decode(video=0)]
        asked = {}
        for line in (one for one in lines if one["source"] == clip):
            for found in line["detections"]:
                track, number = found["track_id"], line["frame"]
                if track < 0 or number - asked.get(track, (-10, None))[0] >= 10:
                    asked[track] = number, vector_of(session, images[number], found["box"])
                np.testing.assert_allclose(found["vector"], asked[track][1], atol=2e-6)
        assert len(asked) == (5 if clip == "easy" else 3)  # one of them is -1: not confirmed


@pytest.mark.slow
def test_a_classifier_and_a_recogniser_say_of_each_object_what_was_drawn_on_it(example):
    for package in ("rapidocr", "skimage"):
        pytest.importorskip(package)
    folder = example / "examples" / "video"
    if not (folder / "made" / "plates").is_dir():
        [run(line, example) for line in COMMANDS[:1]]
    printed = [run(line, example) for line in COMMANDS[4:6]]
    assert printed[-1] == "plates\t25 delivered\t0 failed\t0 dropped\n"
    lines = (folder / "made" / "out" / "plates.jsonl").read_text().splitlines()
    # By prepare.py: where each one is in the first frame, its text, and whether it stands on its head.
    drawn = {"K4 729": (80, 90, "no"), "ZH 902": (160, 240, "no"), "": (240, 90, "yes")}
    for line in lines:
        found = json.loads(line)["detections"]
        assert len(found) == 3
        for one in found:
            x1, y1, x2, y2 = one["box"]
            text = one["plate_text"] if one["turned"] == "no" else ""
            x, y, turned = drawn[text]
            assert abs((x1 + x2) / 2 - x) + abs((y1 + y2) / 2 - y) < 24
            assert one["turned"] == turned
    assert [
        sorted(one["track_id"] for one in json.loads(line)["detections"]) for line in lines[1:]
    ] == [[0, 1, 2]] * 24


@pytest.mark.slow
def test_objects_that_are_too_small_in_the_whole_picture_are_found_in_tiles(example):
    made = example / "examples" / "video" / "made"
    if not (made / "wide").is_dir():
        [run(line, example) for line in COMMANDS[:1]]
    assert len(COMMANDS) == 7
    assert [run(line, example) for line in COMMANDS[6:]][
        -1
    ] == "wide\t10 delivered\t0 failed\t0 dropped\n"
    with (made / "wide" / "wide.csv").open(newline="", encoding="utf-8") as file:
        truth = [(int(row[0]), row[2], [float(one) for one in row[3:]]) for row in csv.reader(file)]
    for line in (made / "out" / "wide.jsonl").read_text().splitlines():
        one = json.loads(line)
        left = [(kind, box) for frame, kind, box in truth if frame == one["frame"]]
        assert len(one["detections"]) == len(left) == 13
        for found in one["detections"]:
            nearest = min(left, key=lambda there: abs(there[1][0] - found["box"][0]))
            left.remove(nearest)
            assert found["class_name"] == nearest[0]
            np.testing.assert_allclose(found["box"], nearest[1], atol=1)
    whole = example / "whole.toml"
    whole.write_text(
        'model = "examples/video/made/detector.onnx"\n'
        '[sinks.lines]\nkind = "SaveJSONL"\npath = "whole.jsonl"\n'
    )
    run("headrace video whole.toml examples/video/made/wide/wide.mp4", example)
    lines = (example / "whole.jsonl").read_text().splitlines()
    assert [json.loads(one)["detections"] for one in lines] == [[]] * 10
