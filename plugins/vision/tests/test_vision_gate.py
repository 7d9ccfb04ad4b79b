"""The motion gate: what a model does not see, and that nothing else changes by it."""

from __future__ import annotations

import json
import weakref
from concurrent.futures import Future
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest
import supervision as sv

import headrace
from headrace_vision import SaveJSONL, VideoModel, VideoRunner

pytest.importorskip("trackers")

SIZE = (240, 320)
RATE = 12
SECONDS = 14
LINE = {"door": [160, 0, 160, 240]}
ZONE = {"yard": [[200, 0], [319, 0], [319, 239], [200, 239]]}


def walk(t):
    """One object that goes through the picture in four seconds, and then nothing."""
    return [(80 * (t - 2), 100)] if 2 < t < 6 else []


def creep(t):
    """Half a pixel a frame."""
    return [(110 + 6 * t, 60)]


def stop(t):
    """It goes over the line, stands in the zone for eight seconds and leaves."""
    if t < 2:
        return [(110 + 60 * t, 120)]
    return [(230, 120)] if t < 10 else [(230 - 60 * (t - 10), 120)]


def cross(t):
    """Two that cross, while a third one stands."""
    both = [(20 + 70 * (t - 3), 40), (280 - 70 * (t - 3), 160)] if 3 < t < 6.5 else []
    return [(60, 200), *both]


def dawn(t):
    """An object that goes and stops, while the light changes."""
    return [(90 + 40 * min(max(t - 4, 0), 3), 80)]


CLIPS = [walk, creep, stop, cross, dawn]


def film(path, objects):
    """A video with grain, as a camera that does not move would send it."""
    random = np.random.default_rng(1)
    scene = cv2.resize(random.integers(40, 120, (15, 20), np.uint8), SIZE[::-1])
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=RATE, options={"g": "24", "crf": "26"})
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, RATE)
        for number in range(SECONDS * RATE):
            t = number / RATE
            light = 0.5 + 0.5 * min(max(t - 8, 0) / 3, 1) if objects is dawn else 1
            image = np.repeat(scene[..., None] * light, 3, 2) + random.normal(0, 2, (*SIZE, 3))
            for x, y in objects(t):
                image[y : y + 30, max(round(x), 0) : max(round(x) + 20, 0)] = (30, 30, 220)
            image = np.clip(image, 0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="bgr24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def reds(image):
    """What is red, as boxes."""
    blue, _, red = cv2.split(image)
    _, _, found, _ = cv2.connectedComponentsWithStats(
        (cv2.subtract(red, blue) > 80).astype(np.uint8)
    )
    boxes = [[x, y, x + w, y + h] for x, y, w, h, area in found[1:] if area > 60]
    if not boxes:
        return sv.Detections.empty()
    boxes = np.array(sorted(boxes), np.float32)
    return sv.Detections(
        boxes, confidence=np.full(len(boxes), 0.9), class_id=np.zeros(len(boxes), int)
    )


def seen(path, gate):
    """Ids of each frame, the events without their times, the counts at the end, and the status."""
    headrace.register("GateReds", reds, replace=True)
    pipe = {"backend": "GateReds", "max": 4}
    options = {"ordered": "Track", "lines": LINE, "zones": ZONE, "gate": gate}
    with VideoRunner(pipe, **options) as runner:
        frames = list(runner.run({"a": path}))
        status = runner.status()["sources"]["a"]
    told = [
        (event["name"], event["direction"], event["track_id"])
        for frame in frames
        for event in frame.request["events"]
    ]
    assert not any(frame.error for frame in frames)
    assert [f.request.get("gated", False) for f in frames].count(True) == status["gated"]
    ids = [sorted(frame.result.tracker_id.tolist()) for frame in frames]
    return ids, told, frames[-1].request["counts"], status


@pytest.mark.parametrize("objects", CLIPS, ids=lambda one: one.__name__)
def test_ids_and_crossings_are_those_without_the_gate(tmp_path, objects):
    path = film(tmp_path / "clip.mp4", objects)
    ids, told, counts, status = seen(path, "motion")
    plain_ids, plain_told, plain_counts, plain_status = seen(path, None)
    assert {one for row in ids for one in row} == {one for row in plain_ids for one in row}
    assert ids == plain_ids
    assert told == plain_told
    assert told
    assert counts == plain_counts
    assert status["delivered"] == plain_status["delivered"] == SECONDS * RATE
    assert plain_status["gated"] == 0
    assert status["gated"] > {"creep": 40}.get(objects.__name__, 70)


class Pipe:
    """A model that answers what the test says, in place of a pipeline."""

    def __init__(self, answer=None):
        self.requests, self.futures, self.answer = [], [], answer

    def submit(self, request):
        future = Future()
        self.requests.append(request)
        self.futures.append(future)
        if self.answer is not None:
            self.answer(len(self.requests), request, future)
        return future


def numbered(number, request, future):
    request["result"] = number
    future.set_result(request)


def still(count, value=90, size=(48, 64)):
    return [np.full((*size, 3), value, np.uint8) for _ in range(count)]


def test_a_still_scene_goes_to_the_model_each_five_seconds(tmp_path):
    pipe = Pipe(numbered)
    random = np.random.default_rng(0)
    pictures = [
        np.clip(one + random.normal(0, 2, one.shape), 0, 255).astype(np.uint8) for one in still(121)
    ]
    sinks = [SaveJSONL(tmp_path / "all.jsonl")]
    with VideoRunner(pipe, gate="motion", image_fps=10, sinks=sinks) as runner:
        frames = list(runner.run({"a": pictures}))
        status = runner.status()["sources"]["a"]
    assert [one["context"]["frame"] for one in pipe.requests] == [0, 50, 100]
    assert [one.result for one in frames] == [1] * 50 + [2] * 50 + [3] * 21
    assert (status["read"], status["delivered"], status["gated"]) == (121, 121, 118)
    lines = [json.loads(one) for one in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [one.get("gated", False) for one in lines] == [n % 50 != 0 for n in range(121)]
    # Each has its own picture.
    assert all(np.array_equal(f.image, p) for f, p in zip(frames, pictures, strict=True))


def test_what_is_small_or_slow_or_only_of_another_colour_goes_to_the_model():
    pictures = still(4, size=(360, 640))
    pictures[1][100:106, 200:206] = 140
    pictures[2][100:112, 200:212] = (0, 90, 142)  # as bright
    pictures[3] = pictures[3] - np.uint8(12)  # less light
    pipe = Pipe(numbered)
    with VideoRunner(pipe, gate="motion") as runner:
        assert [one.result for one in runner.run({"a": pictures})] == [1, 2, 3, 4]
    slow = [one + np.uint8(number // 2) for number, one in enumerate(still(41))]
    pipe = Pipe(numbered)
    with VideoRunner(pipe, gate="motion") as runner:
        frames = list(runner.run({"a": slow}))
    shown = {n: int(p["image"][0, 0, 0]) for n, p in enumerate(pipe.requests, 1)}
    assert len(shown) == 3
    assert all(abs(int(f.image[0, 0, 0]) - shown[f.result]) < 10 for f in frames)


def test_another_size_goes_to_the_model():
    pipe = Pipe(numbered)
    with VideoRunner(pipe, gate="motion") as runner:
        given = [*still(2), *still(2, size=(40, 64)), *still(1, size=(1, 4000))]
        assert [one.result for one in runner.run({"a": given})] == [1, 1, 2, 2, 3]


def test_behind_a_frame_that_failed_the_next_one_goes_to_the_model():
    def failing(number, request, future):
        if number < 3:
            future.set_exception(RuntimeError(f"call {number}"))
        else:
            numbered(number, request, future)

    with VideoRunner(Pipe(failing), gate="motion", in_flight=1) as runner:
        frames = list(runner.run({"a": still(5)}))
        status = runner.status()["sources"]["a"]
    assert [str(one.error) for one in frames[:2]] == ["call 1", "call 2"]
    assert [one.result for one in frames[2:]] == [3, 3, 3]
    assert (status["failed"], status["delivered"], status["gated"]) == (2, 3, 2)


def test_frames_that_wait_for_a_failing_one_fail_with_it():
    pipe = Pipe()

    def pictures():
        yield from still(3)
        pipe.futures[0].set_exception(RuntimeError("lost"))

    with VideoRunner(pipe, gate="motion", in_flight=4) as runner:
        frames = list(runner.run({"a": pictures()}))
    assert [str(one.error) for one in frames] == ["lost"] * 3


@pytest.mark.parametrize("in_flight", [1, 3])
def test_newer_frames_replace_those_that_wait_for_the_model(in_flight):
    """With one place, the frame that the model was to see is dropped, so each of the next ones is sent."""
    pipe = Pipe()

    def pictures():
        yield from still(8)
        numbered(len(pipe.futures), pipe.requests[-1], pipe.futures[-1])

    options = {"frames": "latest", "in_flight": in_flight}
    with VideoRunner(pipe, gate="motion", **options) as runner:
        frames = list(runner.run({"a": pictures()}))
        status = runner.status()["sources"]["a"]
    assert len(pipe.requests) == (8 if in_flight == 1 else 1)
    assert status["dropped"] == 8 - in_flight
    assert status["delivered"] == in_flight == len(frames)
    assert frames[-1].frame == 7
    assert len({one.result for one in frames}) == 1


def test_an_event_of_the_model_happens_once_and_each_of_several_models_is_asked():
    def alarm(number, request, future):
        request["events"] = [{"type": "alarm"}]
        numbered(number, request, future)

    one, other = Pipe(alarm), Pipe(numbered)
    models = {"one": VideoModel(one), "other": VideoModel(other)}
    with VideoRunner(models, gate="motion") as runner:
        frames = list(runner.run({"a": still(4)}, models=["one", "other"]))
        gated = runner.status()["sources"]["a"]["gated"]
    assert [len(frame.request.get("events", ())) for frame in frames] == [1, 0, 0, 0]
    assert len(one.requests) == len(other.requests) == 1
    assert gated == 6


def test_no_picture_stays_with_the_answer_that_is_repeated():
    kept, most = [], 0
    with VideoRunner(Pipe(numbered), gate="motion", image_fps=100) as runner:
        for frame in runner.run({"a": (still(1)[0] for _ in range(200))}):
            kept.append(weakref.ref(frame.image))
            most = max(most, sum(one() is not None for one in kept))
    assert most < 20


def test_another_gate_is_refused():
    with pytest.raises(ValueError, match=r"gate: Input should be 'motion', not 'movement'"):
        VideoRunner(Pipe(), gate="movement")
