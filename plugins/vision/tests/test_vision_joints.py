"""What raises between reading and the end of a frame: that frame fails or is lost to one sink, it is logged, and all others come."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

import headrace
from headrace_vision import CropModel, SaveJSONL, Sink, VideoModel, VideoRunner

PATIENCE_S = 120
COUNT = 10


class WordlessError(Exception):
    """An error that cannot even be read."""

    def __str__(self):
        raise RuntimeError("no words")


def pictures():
    return [np.full((8, 8, 3), number, np.uint8) for number in range(COUNT)]


def every_frame(runner, **options):
    """All frames of a source, unless it stands still."""
    found = []
    thread = threading.Thread(
        target=lambda: found.extend(runner.run({"door": pictures()}, **options)), daemon=True
    )
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"the source stands still behind {len(found)} frames"
    return found


class Seen(Sink):
    name = "seen"

    def __init__(self, **attributes):
        self.frames = []
        for key, value in attributes.items():
            setattr(self, key, value)

    def write(self, frame):
        self.frames.append((frame.frame, frame.error is None))


class Raises(Sink):
    """Raises at the third call of one of its methods, or at each."""

    name = "raises"

    def __init__(self, method, error, *, always):
        def fail(*_):
            self.calls += 1
            if always or self.calls == 3:
                raise error
            return True

        self.calls = 0
        setattr(self, method, fail)

    def write(self, frame):
        pass


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("error", [KeyError("events"), WordlessError(), MemoryError()])
def test_a_sink_that_cannot_say_what_it_wants_loses_that_frame_alone(error, always, caplog):
    seen = Seen()
    sinks = {"raises": Raises("wants", error, always=always), "seen": seen}
    with VideoRunner({"backend": "Identity"}, sinks=sinks) as runner:
        frames = every_frame(runner)
    assert [one.error for one in frames] == [None] * COUNT
    assert seen.frames == [(number, True) for number in range(COUNT)]
    lost = COUNT if always else 1
    status = runner.status()["sinks"]["raises"]
    assert (status["lost"], status["written"]) == (lost, COUNT - lost)
    told = [one for one in caplog.records if "cannot be queued" in one.getMessage()]
    assert len(told) == 1  # not each of a day
    assert "raises" in told[0].getMessage()


@pytest.mark.parametrize("method", ["write", "open", "source_ended", "close"])
@pytest.mark.parametrize("error", [SystemExit(3), WordlessError()])
def test_a_sink_whose_thread_ends_holds_up_nobody(method, error, caplog):
    raises, seen = Raises(method, error, always=True), Seen(queue_size=1)
    raises.queue_size, raises.close_s = 1, 0
    with VideoRunner({"backend": "Identity"}, sinks={"raises": raises, "seen": seen}) as runner:
        assert len(every_frame(runner)) == COUNT
    assert seen.frames == [(number, True) for number in range(COUNT)]
    assert runner.status()["sinks"]["raises"]["error"]
    assert any("sink raises" in one.getMessage() for one in caplog.records)


class NoAnswer:
    """Something with ``submit`` that is no pipeline: its futures end, and there is no result, as one that was turned off."""

    def submit(self, data):
        futures = []
        for _ in data if isinstance(data, list) else [data]:
            future = Future()
            future.set_result({})
            futures.append(future)
        return futures if isinstance(data, list) else futures[0]


def test_a_model_without_an_answer_fails_its_frames(caplog):
    seen = Seen()
    with VideoRunner(NoAnswer(), sinks=[seen]) as runner:
        frames = every_frame(runner)
    assert [type(one.error) for one in frames] == [KeyError] * COUNT
    assert seen.frames == [(number, False) for number in range(COUNT)]
    assert runner.status()["sources"]["door"]["failed"] == COUNT
    assert "source door: frame 9 fails while it is delivered" in caplog.text


def test_a_second_model_without_an_answer_fails_its_frames():
    import supervision as sv

    box = sv.Detections(np.array([[1, 1, 5, 5]], np.float32), class_id=np.array([0]))
    headrace.register("VisionOneBox", lambda image: box, replace=True)
    crops = {"plate": CropModel(NoAnswer())}
    with VideoRunner({"backend": "VisionOneBox"}, crops=crops) as runner:
        frames = every_frame(runner)
    assert [type(one.error) for one in frames] == [KeyError] * COUNT


class Alarms(headrace.Backend):
    """Two events in each frame."""

    def forward(self, batch):
        for request in batch:
            request["result"] = None
            request["events"] = [{"type": "alarm"}, {"type": "own", "time": 5}]


def test_each_event_has_an_id_of_its_own_and_the_time_of_its_frame(tmp_path):
    headrace.register("VisionAlarmsTwice", Alarms, replace=True)
    ids, before = [], time.time()
    for _ in range(2):  # the second run counts anew
        seen = SaveJSONL(tmp_path / "all.jsonl")
        with VideoRunner({"backend": "VisionAlarmsTwice"}, sinks=[seen]) as runner:
            for _ in range(2):
                for one in every_frame(runner):
                    first, second = one.request["events"]
                    assert before <= first["time"] == one.time <= time.time()
                    assert (one.time_from, second["time"]) == ("arrival", 5)
                    ids += [first["id"], second["id"]]
    assert len(set(ids)) == len(ids) == 8 * COUNT
    assert all(one.startswith("door:") for one in ids)
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [event["id"] for line in lines for event in line["events"]] == ids
    assert all(line["events"][0]["time"] == line["time"] for line in lines)


class OddCounts(headrace.Backend):
    """Counts that are no mapping, in one frame."""

    def forward(self, batch):
        for request in batch:
            request["result"] = None
            request["counts"] = 7 if request["context"]["frame"] == 4 else {"door": 1}


def test_what_models_wrote_and_cannot_be_joined_fails_that_frame():
    headrace.register("VisionOddCounts", OddCounts, replace=True)
    seen = Seen()
    models = {name: VideoModel({"backend": "VisionOddCounts"}) for name in ("a", "b")}
    with VideoRunner(models, sinks=[seen]) as runner:
        frames = every_frame(runner, models=["a", "b"])
    assert [one.frame for one in frames if one.error is not None] == [4]
    assert seen.frames == [(number, number != 4) for number in range(COUNT)]
