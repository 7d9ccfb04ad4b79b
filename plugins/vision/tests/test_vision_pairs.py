"""Every kind of result through every sink, at once and out of a folder that a killed program has left: the same comes out."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import supervision as sv
from quick_clock import Quick

import headrace
from headrace_vision import (
    Frame,
    SaveImages,
    SaveJSONL,
    SaveVideo,
    Sink,
    VideoRunner,
    View,
    Webhook,
    frame_record,
)
from headrace_vision.sinks import event_sink
from headrace_vision.sinks.spool import SpoolFolder, read_frame

COUNT, SIZE = 3, (48, 64)


def detections(**more):
    box = np.array([[5, 10, 30, 20], [40, 2, 60, 40]], np.float32)
    scores, classes = np.array([0.75, 0.5], np.float32), np.array([0, 2])
    return sv.Detections(box, confidence=scores, class_id=classes, **more)


def dense():
    masks = np.zeros((2, *SIZE), bool)
    masks[0, 10:20, 5:30], masks[1, 2:40:2, 40:60] = True, True
    return masks


def compact():
    return sv.CompactMask.from_dense(dense(), detections().xyxy, SIZE)


@dataclass
class Reading:
    """An object of a user, which no file can hold."""

    speed: float
    when: dt.date


KINDS = {
    "nothing": lambda: sv.Detections.empty(),
    "boxes": lambda: detections(tracker_id=np.array([3, -1])),
    "masks": lambda: detections(mask=dense()),
    "compact masks": lambda: detections(mask=compact()),
    "no compact mask": lambda: detections(mask=compact())[[False, False]],
    "keypoints": lambda: detections(
        data={"keypoints": np.arange(34, dtype=np.float32).reshape(2, 17, 1).repeat(3, 2)}
    ),
    "labels": lambda: detections(data={"class_name": np.array(["boîte", ""])}),
    "objects": lambda: detections(data={"plate": np.array([None, {"text": "B6"}], object)}),
    "lists": lambda: detections(data={"plate": ["a", None], "seen": [(1, 2.5), ()]}),
    "metadata": lambda: sv.Detections(
        np.array([[1, 1, 9, 9]], np.float32), class_id=np.array([1]), metadata={"night": True}
    ),
    "a picture": lambda: np.full((*SIZE, 3), 200, np.uint8),
    "numbers": lambda: {"mean": np.float32(0.25), "all": np.arange(4), 3: [1, (2.5, None)]},
    "text": lambda: "B6 83",
    "bytes": lambda: b"\0\xff",
    "no bytes": lambda: b"",
    "none": lambda: None,
    "pose": lambda: sv.KeyPoints(xy=np.arange(12, dtype=np.float32).reshape(2, 3, 2)),
    "classes": lambda: sv.Classifications(np.array([2, 1]), np.array([0.75, 0.5], np.float32)),
    "a user's": lambda: {"reading": Reading(1.5, dt.date(2030, 3, 31)), "set": {7}},
    "nested": lambda: {"left": detections(mask=compact()), "right": [detections()]},
}


class Kinds(headrace.Backend):
    """Gives a kind of result, and an event that holds one as well."""

    class Options(headrace.Options):
        kind: str

    def init(self, options, context):
        self.kind = KINDS[options.kind]

    def forward(self, batch):
        for request in batch:
            request["result"] = self.kind()
            request["events"] = [{"type": "seen", "what": self.kind()}]


@pytest.fixture(scope="module", autouse=True)
def _kinds():
    headrace.register("VisionKinds", Kinds, replace=True)


class Records(Sink):
    """A sink of a user."""

    def __init__(self, path, **attributes):
        self.path = path
        for key, value in attributes.items():
            setattr(self, key, value)

    def write(self, frame):
        with self.path.open("a") as file:
            file.write(json.dumps(frame_record(frame), default=str) + "\n")


SINKS = {
    "SaveJSONL": lambda folder, port, **o: SaveJSONL(folder / "all.jsonl", **o),
    "SaveVideo": lambda folder, port, **o: SaveVideo(folder, **o),
    "SaveImages": lambda folder, port, **o: SaveImages(folder, suffix=".png", **o),
    "Webhook": lambda folder, port, **o: Webhook(
        f"http://127.0.0.1:{port}/", network=["127.0.0.1"], **o
    ),
    "Records": lambda folder, port, **o: Records(folder / "own.jsonl", **o),
}


def run(kind, sink, count):
    config = {"backend": "VisionKinds", "kind": kind}
    with VideoRunner(config, sinks=[sink], machine_clock=Quick()) as runner:
        pictures = [np.full((*SIZE, 3), 40 * n, np.uint8) for n in range(count)]
        assert len(list(runner.run({"door": pictures}))) == count
    (status,) = runner.status()["sinks"].values()
    return status


def content(path):
    """What a file says, without the times and ids that two runs differ in."""
    if path.suffix == ".mp4":
        with av.open(str(path)) as container:
            return [
                frame.to_ndarray(format="bgr24").tobytes() for frame in container.decode(video=0)
            ]
    if path.suffix in (".png", ".jpg"):
        return cv2.imread(str(path)).tobytes()
    return timeless(path.read_text())


def timeless(text):
    return re.sub(r'"(time|id)": ?("[^"]*"|[\d.]+)', '"": 0', text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", SINKS)
def test_what_a_folder_kept_is_written_as_it_would_have_been(name, kind, tmp_path, receiver):
    direct, kept, spool = (tmp_path / one for one in ("direct", "kept", "spool"))
    direct.mkdir(), kept.mkdir()
    make, port = SINKS[name], receiver.port
    status = run(kind, make(direct, port), COUNT)
    assert status["lost"] == 0
    bodies = [timeless(json.dumps(one)) for one in receiver.bodies]
    receiver.bodies.clear()
    away = make(kept, port, spool=spool, close_s=0)
    away.write = away_from_here
    status = run(kind, away, COUNT)
    assert (status["lost"], len(list(spool.iterdir()))) == (0, COUNT)
    status = run(kind, make(kept, port, spool=spool), 0)
    assert (status["lost"], status["written"], list(spool.iterdir())) == (0, COUNT, [])
    assert [timeless(json.dumps(one)) for one in receiver.bodies] == bodies
    files = sorted(one.relative_to(direct) for one in direct.rglob("[!.]*") if one.is_file())
    assert files or name == "Webhook"
    assert files == sorted(one.relative_to(kept) for one in kept.rglob("[!.]*") if one.is_file())
    for one in files:
        assert content(kept / one) == content(direct / one), one


def away_from_here(_):
    raise OSError("away")


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_shows_every_kind(kind):
    assert run(kind, View(), COUNT)["lost"] == 0


@pytest.mark.parametrize("kind", [one for one in KINDS if one not in ("a user's", "nested")])
def test_a_file_holds_a_result_as_it_was(kind, tmp_path):
    made = KINDS[kind]()
    path, is_exact = SpoolFolder(tmp_path).save(Frame("door", 0, 0.0, result=made), 0)
    kept = read_frame(Path(path)).result
    assert is_exact
    assert type(kept) is type(made)
    if isinstance(made, sv.Detections):
        assert kept == made or kind == "lists"  # supervision finds no ragged list equal
        assert repr(kept.data) == repr(made.data)
        assert type(kept.mask) is type(made.mask)
    else:
        assert repr(kept) == repr(made)


def test_what_no_file_can_hold_reaches_a_sink_of_the_same_run_as_it_is(tmp_path):
    """The receiver fails once, then works: meanwhile the frame is in the folder, and in memory."""
    seen = []

    class Once(Sink):
        spool = tmp_path
        calls = 0

        def write(self, frame):
            Once.calls += 1
            if Once.calls == 1:
                raise OSError("away")
            seen.append(frame.result)

    run("a user's", Once(), 1)
    assert seen == [KINDS["a user's"]()]


@pytest.mark.parametrize("by_folder", [False, True])
def test_an_event_brings_its_picture_with_boxes(by_folder, tmp_path, receiver):
    port = receiver.port

    def make():
        return Webhook(
            f"http://127.0.0.1:{port}/",
            network=["127.0.0.1"],
            picture=True,
            spool=tmp_path / "spool" if by_folder else None,
            close_s=0,
        )

    hook = make()
    if by_folder:
        hook.write = away_from_here
    run("compact masks", hook, COUNT)
    if by_folder:
        kept = [read_frame(path) for path in (tmp_path / "spool").iterdir()]
        assert [one.image for one in kept] == [None] * COUNT
        assert run("compact masks", make(), 0)["written"] == COUNT
    run("compact masks", SaveImages(tmp_path / "images"), COUNT)
    paths = sorted((tmp_path / "images").rglob("*.jpg"))
    sent = [base64.b64decode(one["picture"]) for one in receiver.bodies]
    assert sent == [path.read_bytes() for path in paths]
    assert len(set(sent)) == COUNT
    receiver.bodies.clear()
    run("compact masks", SINKS["Webhook"](tmp_path, port), 1)
    assert "picture" not in receiver.bodies[0]


def test_an_event_whose_picture_cannot_be_drawn_comes_without_it(receiver, caplog, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no picture")

    monkeypatch.setattr(event_sink, "picture_of", broken)
    hook = Webhook(f"http://127.0.0.1:{receiver.port}/", network=["127.0.0.1"], picture=True)
    assert run("boxes", hook, 1)["written"] == 1
    assert "picture" not in receiver.bodies[0]
    assert "an event of door goes without picture" in caplog.text
