"""Several models for one source, and second models that are asked about the crops of tracks."""

from __future__ import annotations

import gc
import json
import queue
import threading
import weakref
from concurrent.futures import Future
from contextlib import suppress

import numpy as np
import pytest
import supervision as sv

import headrace
import headrace_vision
from headrace.errors import ConfigError
from headrace_vision import (
    CropModel,
    SaveJSONL,
    Sink,
    VideoModel,
    VideoRunner,
    frame_record,
)
from headrace_vision.sinks.pictures import picture_of
from headrace_vision.sinks.spool import SpoolFolder, read_frame

PATIENCE_S = 60


def box_of(image, channel):
    """The box of what is bright in one channel, and nothing else."""
    y, x = np.nonzero(image[..., channel] > 200)
    if not len(x):
        return sv.Detections.empty()
    box = np.array([[x.min(), y.min(), x.max() + 1, y.max() + 1]], np.float32)
    found = sv.Detections(box, confidence=np.array([0.9]), class_id=np.array([channel]))
    found.data["class_name"] = np.array(["blue" if channel == 0 else "red"])
    return found


def picture(number):
    """A red square that goes right, and a blue one that goes down."""
    image = np.full((64, 96, 3), 20, np.uint8)
    image[8:18, 3 * number : 3 * number + 10] = (0, 0, 255)
    image[2 * number : 2 * number + 10, 70:80] = (255, 0, 0)
    return image


@pytest.fixture(autouse=True)
def _models():
    headrace.register("ModelRed", lambda image: box_of(image, 2), replace=True)
    headrace.register("ModelBlue", lambda image: box_of(image, 0), replace=True)


LINES = {"red": {"door": [48, 0, 48, 64]}, "blue": {"gate": [96, 24, 0, 24]}}
PICTURES = [picture(number) for number in range(20)]


def two(**more):
    return {
        "red": VideoModel({"backend": "ModelRed", "max": 4}, ordered="Track"),
        "blue": VideoModel({"backend": "ModelBlue", "max": 4}, ordered="Track"),
        **more,
    }


def timeless(record):
    """A record without what two runs differ in."""
    events = [{k: v for k, v in one.items() if k != "id"} for one in record.get("events", ())]
    for one in [record, *events]:
        del one["time"]
    return record | {"events": events}


def test_each_of_several_models_gives_what_it_gives_alone():
    tables = {name: {"lines": lines} for name, lines in LINES.items()}
    with VideoRunner(two()) as runner:
        both = list(runner.run({"street": PICTURES}, models=tables))
        status = runner.status()["sources"]["street"]
        alone = {
            name: list(runner.run({"street": PICTURES}, model=name, lines=lines))
            for name, lines in LINES.items()
        }
    assert [one.frame for one in both] == list(range(20))
    assert (status["models"], status["read"], status["delivered"]) == (["red", "blue"], 20, 20)
    for name, frames in alone.items():
        for shared, single in zip(both, frames, strict=True):
            assert shared.error is None
            assert shared.result[name] == single.result
            own = shared.models[name]
            assert timeless(frame_record(own)) == timeless(frame_record(single))
            assert shared.request["counts"][f"{name}.{next(iter(LINES[name]))}"] == next(
                iter(single.request["counts"].values())
            )
    events = [event for one in both for event in one.request["events"]]
    assert [one["name"] for one in events] == ["blue.gate", "red.door"]


def test_sources_that_name_the_same_model_share_its_pipeline():
    with headrace.pipe({"backend": "ModelRed", "max": 4}) as red:
        models = two(red=VideoModel(red, ordered="Track"))
        parts = {
            "street": (PICTURES, {"models": ["red", "blue"]}),
            "yard": (PICTURES, {"model": "red"}),
        }
        with VideoRunner(models) as runner:
            frames = list(runner.run_sources(parts))
        assert red.stats()["nodes"]["main"]["submitted"] == 40
    street = [one for one in frames if one.source == "street"]
    yard = [one for one in frames if one.source == "yard"]
    for shared, single in zip(street, yard, strict=True):
        assert shared.result["red"].tracker_id.tolist() == single.result.tracker_id.tolist()
        assert list(shared.result) == ["red", "blue"]


class Kept(Sink):
    def __init__(self, model=None):
        self.model = model
        self.frames = []

    def write(self, frame):
        self.frames.append(frame)


def test_a_sink_takes_one_model_or_all(tmp_path):
    red, every, none = Kept("red"), Kept(), Kept("other")
    sinks = {"red": red, "every": every, "none": none, "lines": SaveJSONL(tmp_path / "all.jsonl")}
    other = VideoModel({"backend": "ModelRed"})
    with VideoRunner(two(other=other), sinks=sinks) as runner:
        for _ in runner.run({"street": PICTURES[:3]}, models=["red", "blue"]):
            pass
        for _ in runner.run({"yard": PICTURES[:2]}, model="blue"):
            pass
        with pytest.raises(ValueError, match="Did you mean 'red'"):
            runner.run(PICTURES, models=["rad"])
    assert [(one.source, type(one.result)) for one in red.frames] == [("street", sv.Detections)] * 3
    assert [one.source for one in every.frames] == ["street"] * 3 + ["yard"] * 2
    assert none.frames == []
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [list(line["models"]["blue"]["detections"][0]["box"]) for line in lines[:3]] == [
        [70, 2 * n, 80, 2 * n + 10] for n in range(3)
    ]
    assert "detections" in lines[3]


def test_a_sink_for_one_model_says_which():
    with pytest.raises(ValueError, match=r"no model 'rad'\. Did you mean 'red'"):
        VideoRunner(two(), sinks=[Kept("rad")])
    alone = Kept()
    alone.needs_model = True
    with VideoRunner(two(), sinks={"alone": alone, "other": Kept()}) as runner:
        with pytest.raises(ValueError, match="the sink 'alone' takes one model"):
            runner.run(PICTURES, models=["red", "blue"])
        runner.run(PICTURES, models=["red", "blue"], sinks=["other"]).close()
        alone.model = "red"
        runner.run(PICTURES, models=["red", "blue"]).close()


def test_the_boxes_of_all_models_are_drawn():
    with VideoRunner(two()) as runner:
        (frame,) = runner.run(picture(10), models=["red", "blue"])
    drawn = picture_of(frame, draw=True)
    red, blue = (picture_of(one, draw=True) != frame.image for one in frame.models.values())
    np.testing.assert_array_equal((drawn != frame.image).any(2), (red | blue).any(2))


def test_where_one_model_fails_the_frame_fails_once_and_the_others_go_on():
    def picky(image):
        if image[0, 0, 0] == 1:
            raise ValueError("not this one")
        return box_of(image, 0)

    headrace.register("ModelPicky", picky, replace=True)
    images = [one.copy() for one in PICTURES[:4]]
    images[2][0, 0, 0] = 1
    models = two(blue=VideoModel({"backend": "ModelPicky"}, ordered="Track"))
    with VideoRunner(models) as runner:
        frames = list(runner.run({"street": images}, models=["red", "blue"]))
        status = runner.status()["sources"]["street"]
        (broken,) = runner.run(b"no picture", models=["red", "blue"])
    assert [one.frame for one in frames] == [0, 1, 2, 3]
    assert (status["delivered"], status["failed"], status["in_flight"]) == (3, 1, 0)
    assert "not this one" in str(frames[2].error)
    assert list(frames[2].result) == ["red"]
    assert frames[2].models["blue"].result is None
    record = frame_record(frames[2])
    assert record["models"]["blue"]["error"] == record["error"]
    assert len(record["models"]["red"]["detections"]) == 1
    assert frames[3].result["red"].tracker_id.tolist() == [0]
    assert broken.error is not None
    assert not broken.models


def test_a_newer_frame_replaces_one_that_a_model_has_not_begun(kit):
    held, feed = kit.overtaken()
    headrace.register("ModelHeld", held, replace=True)
    headrace.register("ModelFast", lambda image: int(image[0, 0, 0]), replace=True)
    models = {
        "fast": VideoModel({"backend": "ModelFast"}),
        "held": VideoModel({"backend": "ModelHeld"}),
    }
    with VideoRunner(models, frames="latest", in_flight=3) as runner:
        frames = list(runner.run(feed(), models=["fast", "held"]))
        counts = runner.status()["sources"]["input"]
    assert frames[0].result == {"fast": 0, "held": 0}
    assert frames[-1].result == {"fast": 19, "held": 19}
    assert counts["dropped"] == 20 - len(frames)
    assert (counts["read"], counts["in_flight"]) == (20, 0)
    assert 2 <= len(frames) <= 3


def test_a_frame_of_several_models_is_kept_in_a_folder_as_it_is(tmp_path):
    with VideoRunner(two()) as runner:
        (frame,) = runner.run(picture(3), models={"red": {"lines": LINES["red"]}, "blue": {}})
        (broken,) = runner.run(b"no picture", models=["red"])
    folder = SpoolFolder(tmp_path)
    for number, one in enumerate((frame, broken)):
        kept = read_frame(folder.save(one, number)[0])
        assert frame_record(kept) == frame_record(one)
    kept = read_frame(folder.found[0] if folder.found else next(tmp_path.glob("*0-*.npz")))
    assert kept.result == frame.result
    assert kept.models["red"].result == frame.models["red"].result


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"models": ["red"], "model": "blue"}, "write model or models, not both"),
        ({"models": []}, "models is empty"),
        ({"models": "red"}, "models: Input should be a list or .* a table"),
        ({"models": ["red"], "lines": LINES["red"]}, r"models\.NAME\.lines"),
        ({"models": {"red": {"line": {}}}}, "no key of a model of a source 'line'. Did you mean"),
        ({"models": {"red": 3}}, r"models\.red: Input should be a table, not 3"),
        ({"models": {"red": {"lines": 3}}}, r"models\.red\.lines: Input should be a table, not 3"),
        ({}, r"several models: write model = one of red, blue, or models = \[\.\.\.\]"),
    ],
)
def test_what_a_source_says_of_models_is_checked(options, said):
    with VideoRunner(two()) as runner, pytest.raises(ValueError, match=said):
        runner.run(PICTURES, **options)


# Second models.


class FakePipe:
    """Takes requests as a pipeline does. The test answers."""

    def __init__(self):
        self.asked = queue.Queue()

    def submit(self, requests):
        futures = [Future() for _ in requests]
        self.asked.put(list(zip(requests, futures, strict=True)))
        return futures

    def take(self):
        return self.asked.get(timeout=PATIENCE_S)


def answer(asked, value_of):
    for request, future in asked:
        request["result"] = value_of(request["data"])
        future.set_result(request)


def embed(crop):
    return crop.reshape(-1, 3).astype(np.float64).mean(0)


def both_boxes(image):
    return sv.Detections.merge([box_of(image, 2), box_of(image, 0)])


def test_second_models_say_of_each_track_what_a_call_by_hand_says():
    headrace.register("ModelBoth", both_boxes, replace=True)
    headrace.register("ModelEmbed", embed, replace=True)
    crops = {"vector": CropModel({"backend": "ModelEmbed", "max": 8}, part=(0, 0, 1, 0.5))}
    with VideoRunner({"backend": "ModelBoth", "max": 4}, ordered="Track", crops=crops) as runner:
        frames = list(runner.run({"a": PICTURES, "b": PICTURES[::-1], "none": [PICTURES[0] // 9]}))
    assert len(frames) == 41
    for frame in frames:
        assert frame.error is None
        assert frame.result.data.get("vector", np.empty((0, 3))).shape == (len(frame.result), 3)
        for row, (x1, y1, x2, y2) in enumerate(frame.result.xyxy.astype(int)):
            by_hand = embed(frame.image[y1 : (y1 + y2) // 2, x1:x2])
            np.testing.assert_array_equal(frame.result.data["vector"][row], by_hand)
        assert frame.request["result"] is frame.result


def test_all_crops_of_a_frame_are_asked_at_once_and_no_source_waits_for_another():
    headrace.register("ModelBoth", both_boxes, replace=True)
    pipe = FakePipe()
    crops = {"vector": CropModel(pipe)}
    with VideoRunner({"backend": "ModelBoth"}, crops=crops, in_flight=3) as runner:
        loop = runner.run(dict.fromkeys(("a", "b", "c"), PICTURES[:3]))
        found = []
        reader = threading.Thread(target=lambda: found.extend(loop))
        reader.start()
        asked = [pipe.take() for _ in range(9)]  # nothing was answered yet
        for one in reversed(asked):
            answer(one, embed)
        reader.join(PATIENCE_S)
    assert [len(one) for one in asked] == [2] * 9
    for name in "abc":
        assert [one.frame for one in found if one.source == name] == [0, 1, 2]
    contexts = [one[0][0]["context"] for one in asked]
    assert sorted((one["source"], one["frame"]) for one in contexts) == [
        (name, number) for name in "abc" for number in range(3)
    ]
    assert all(one.result.data["vector"].shape == (2, 3) for one in found)


class Numbered(headrace.Backend):
    """Numbers detections by their class, as a tracker does. The second one is confirmed from frame 2 on."""

    def forward(self, batch):
        """Write tracker_id."""
        for request in batch:
            found = request["data"]
            found.tracker_id = np.where(found.class_id == 2, 7, 9)
            if request["context"]["frame"] < 2:
                found.tracker_id[found.class_id == 0] = -1
            request["result"] = found


@pytest.mark.parametrize(
    ("every", "asked"),
    [
        (1, {7: [0, 1, 2, 3, 4, 5, 6, 7], 9: [2, 3, 4, 5, 6, 7], -1: [0, 1]}),
        (3, {7: [0, 3, 6], 9: [2, 5], -1: [0, 1]}),
        (0, {7: [0], 9: [2], -1: [0, 1]}),
    ],
)
def test_a_track_keeps_its_answer_for_so_many_frames(every, asked):
    headrace.register("ModelBoth", both_boxes, replace=True)
    headrace.register("Numbered", Numbered, replace=True)
    calls = []

    class Noting(headrace.Backend):
        """Note who is asked about, and answer with the number of the frame."""

        def forward(self, batch):
            """Write a text."""
            for request in batch:
                context = request["context"]
                calls.append((context["track_id"], context["frame"]))
                request["result"] = {"frame": context["frame"], "text": "plate"}

    headrace.register("Noting", Noting, replace=True)
    crops = {"seen": CropModel({"backend": "Noting"}, every=every)}
    with VideoRunner({"backend": "ModelBoth"}, ordered="Numbered", crops=crops) as runner:
        frames = list(runner.run({"a": PICTURES[:8]}))
    for track, numbers in asked.items():
        assert sorted(frame for one, frame in calls if one == track) == numbers
    for frame in frames:
        last = max(number for number in asked[7] if number <= frame.frame)
        assert frame.result.data["seen_frame"][0] == last
        assert frame.result.data["seen_text"].tolist() == ["plate", "plate"]


def test_a_request_that_fails_is_the_outcome_of_its_frames_and_is_asked_again():
    headrace.register("ModelRedNumbered", lambda image: box_of(image, 2), replace=True)
    headrace.register("Numbered", Numbered, replace=True)
    pipe = FakePipe()
    crops = {"plate": CropModel(pipe, every=0)}
    config = {"backend": "ModelRedNumbered"}
    with VideoRunner(config, ordered="Numbered", crops=crops, in_flight=1) as runner:
        loop = runner.run({"a": PICTURES[:4]})
        found = []
        reader = threading.Thread(target=lambda: found.extend(loop))
        reader.start()
        ((_, future),) = pipe.take()
        future.set_exception(ValueError("unreadable"))
        answer(pipe.take(), lambda crop: "K4 729")
        reader.join(PATIENCE_S)
    assert pipe.asked.empty()
    assert [str(one.error) for one in found] == ["unreadable", "None", "None", "None"]
    assert found[0].result is None
    assert [one.result.data["plate"].tolist() for one in found[1:]] == [["K4 729"]] * 3


@pytest.mark.parametrize("has_crops", [False, True])
def test_no_picture_stays_in_memory_once_its_frame_is_gone(has_crops):
    headrace.register("ModelBoth", both_boxes, replace=True)
    headrace.register("Numbered", Numbered, replace=True)
    headrace.register("ModelEmbed", embed, replace=True)
    crops = {"vector": CropModel({"backend": "ModelEmbed"}, every=0)} if has_crops else {}
    config = {"backend": "ModelBoth", "max": 4}
    gone = [threading.Event() for _ in range(20)]
    gc.collect()
    gc.disable()
    try:
        with VideoRunner(config, ordered="Numbered", crops=crops) as runner:
            for frame in runner.run({"a": (picture(number) for number in range(20))}):
                weakref.finalize(frame.image, gone[frame.frame].set)
                # Of frames 0 and 2 the answers are kept. A thread may not have left the batch of frame 0 yet.
                assert frame.frame < 11 or all(one.wait(PATIENCE_S) for one in gone[:3])
    finally:
        gc.enable()
    assert frame.frame == 19


def test_what_is_no_detection_and_what_is_no_second_model_is_refused():
    headrace.register("ModelEmbed", embed, replace=True)
    crops = {"vector": CropModel({"backend": "Identity"})}
    with VideoRunner({"backend": "ModelEmbed"}, crops=crops) as runner:
        (frame,) = runner.run(picture(0))
    assert "these are no detections" in str(frame.error)
    with pytest.raises(TypeError, match="'vector' is a CropModel, not"):
        VideoRunner({"backend": "ModelRed"}, crops={"vector": "plates.toml"})
    with pytest.raises(ValueError, match="every is a whole number of at least 0, not -1"):
        CropModel("plates.toml", every=-1)
    with pytest.raises(ValueError, match="x1 is below x2"):
        CropModel("plates.toml", part=(1, 0, 0, 1))


def test_leaving_the_loop_while_second_models_work_ends_everything():
    headrace.register("ModelBoth", both_boxes, replace=True)
    pipe = FakePipe()
    with VideoRunner({"backend": "ModelBoth"}, crops={"vector": CropModel(pipe)}) as runner:
        loop = runner.run({"a": PICTURES})
        leaver = threading.Thread(target=lambda: (next(loop), loop.close()))
        leaver.start()
        while leaver.is_alive() or not pipe.asked.empty():
            with suppress(queue.Empty):
                answer(pipe.asked.get(timeout=0.1), embed)
        counts = runner.status()["sources"]["a"]
    assert counts["in_flight"] == 0
    assert counts["read"] == counts["delivered"] + counts["dropped"]


FILE = """
import = ["words.py"]

[models.red]
model = { backend = "FileRed", max = 4 }
ordered = "Track"

[models.red.crops.plate]
model = "plates.toml"
every = 5

[models.blue]
model = { backend = "FileBlue", max = 4 }

[sources.street]
input = "street.png"
models = ["red", "blue"]

[sources.yard]
input = "street.png"

[sources.yard.models.red]
lines = { door = [0, 0, 5, 5] }

[sinks.lines]
kind = "SaveJSONL"
path = "red.jsonl"
model = "red"
"""

WORDS = """
import headrace
import numpy as np
import supervision as sv

def box_of(image, channel):
    y, x = np.nonzero(image[..., channel] > 200)
    return sv.Detections(np.array([[x.min(), y.min(), x.max() + 1, y.max() + 1]], np.float32))

headrace.register("FileRed", lambda image: box_of(image, 2))
headrace.register("FileBlue", lambda image: box_of(image, 0))
headrace.register("FileText", lambda crop: {"text": "x".join(map(str, crop.shape[:2]))})
"""


@pytest.fixture
def folder(kit, tmp_path):
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "plates.toml").write_text('backend = "FileText"\nimport = ["words.py"]\n')
    (tmp_path / "street.png").write_bytes(kit.encoded(picture(3)))
    (tmp_path / "vision.toml").write_text(FILE)
    return tmp_path


def test_a_file_says_models_of_a_source_crops_and_whose_results_a_sink_gets(folder):
    with headrace_vision.open(folder / "vision.toml") as vision:
        frames = {one.source: one for one in vision.run()}
        status = vision.status()
        assert all(isinstance(one.result, sv.Detections) for one in vision.run(model="red"))
    assert sorted(frames) == ["street", "yard"]
    assert frames["street"].error is None
    assert list(frames["street"].result) == ["red", "blue"]
    assert frames["street"].result["red"].data["plate_text"].tolist() == ["10x10"]
    assert frames["yard"].request["counts"] == {"red.door": {"in": 0, "out": 0}}
    submitted = {name: one["nodes"]["main"]["submitted"] for name, one in status["models"].items()}
    assert submitted == {"red": 2, "red.plate": 2, "blue": 1}
    lines = [json.loads(line) for line in (folder / "red.jsonl").read_text().splitlines()]
    assert [line["detections"][0]["plate_text"] for line in lines] == ["10x10"] * 4


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["red", "blue"]', '["red", "blu"]', r"sources\.street\.models: .*Did you mean 'blue'"),
        ('["red", "blue"]', '["red"]\nmodel = "red"', r"sources\.street: write model or models"),
        ("models.red]\nlines", "models.rad]\nlines", r"sources\.yard\.models: .*Did you mean 'red'"),
        ("lines = {", "line = {", r"sources\.yard: .*Did you mean 'lines'"),
        ("[0, 0, 5, 5]", "[0, 0, 5]", r"sources\.yard\.models\.red\.lines: "),
        ('"plates.toml"', '"plate.toml"', r"models\.red\.crops\.plate\.model: "),
        ('"plates.toml"', '"plates.onnx"', r"crops\.plate\.model: write the TOML file"),
        ("every = 5", "evry = 5", r"models\.red\.crops\.plate: .*Did you mean 'every'"),
        ("every = 5", "part = [1, 0, 0, 1]", r"crops\.plate\.part: .*x1 is below x2"),
        ('model = "red"\n', 'model = "rad"\n', r"sinks\.lines: .*Did you mean 'red'"),
    ],
)  # fmt: skip
def test_a_file_with_models_is_checked_before_anything_is_built(folder, old, new, said):
    assert old in FILE
    (folder / "vision.toml").write_text(FILE.replace(old, new, 1))
    with pytest.raises(ConfigError, match=said):
        headrace_vision.open(folder / "vision.toml")
    assert not (folder / "red.jsonl").exists()
