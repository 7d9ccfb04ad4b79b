"""What each source of a file has for itself: order, lines, zones, sinks; and what all share."""

from __future__ import annotations

import json

import numpy as np
import pytest
import supervision as sv

import headrace
import headrace_vision
from headrace.errors import ConfigError
from headrace_vision import VideoRunner

WORDS = """
import headrace
import numpy as np
import supervision as sv

@headrace.register
class SourcesSquare(headrace.Backend):
    "The box of what is red."
    def forward(self, batch):
        for request in batch:
            y, x = np.nonzero((request["data"][..., 2] > 200) & (request["data"][..., 1] < 90))
            box = np.array([[x.min(), y.min(), x.max() + 1, y.max() + 1]], np.float32)
            request["result"] = sv.Detections(box, confidence=np.array([0.9]), class_id=np.array([0]))
"""

SINK = """
import json
from headrace_vision import Sink

class Events(Sink):
    def __init__(self, path, password=""):
        self.path, self.password = path, password
    def write(self, frame):
        with open(self.path, "a") as file:
            file.write(json.dumps([frame.source, self.password]) + "\\n")
"""

CAMERAS = 8
SOURCE = """
[sources.camera{n}]
input = "camera.mp4"
lines = {{ door = [{x}, 0, {x}, 48] }}
"""


@pytest.fixture
def folder(kit, tmp_path):
    (tmp_path / "words.py").write_text(WORDS)
    (tmp_path / "sink.py").write_text(SINK)
    kit.render(tmp_path / "camera.mp4", count=16)
    return tmp_path


def written(folder, text):
    path = folder / "vision.toml"
    path.write_text(text)
    return path


def test_eight_cameras_with_a_line_each_are_three_lines_each_and_one_pipeline(folder):
    """The middle of the square goes from x = 6 to 51 in 16 frames: it crosses the lines at 10, 18, ..., 50, and not those behind."""
    head = 'import = ["words.py"]\nordered = "Track"\n[model]\nbackend = "SourcesSquare"\nmax = 8\n'
    lines = [10 + 8 * n for n in range(CAMERAS)]
    tables = "".join(SOURCE.format(n=n, x=x) for n, x in enumerate(lines))
    with headrace_vision.open(written(folder, head + tables)) as vision:
        last = {f.source: f for f in vision.run()}
        status = vision.status()
    assert all(f.error is None for f in last.values())
    crossed = [sum(last[f"camera{n}"].request["counts"]["door"].values()) for n in range(CAMERAS)]
    # A track is confirmed only with its second frame.
    assert crossed == [int(9 < x < 51) for x in lines]
    assert list(status["models"]) == ["main"]
    assert status["models"]["main"]["nodes"]["main"]["submitted"] == CAMERAS * 16


def test_a_source_has_an_order_zones_and_sinks_of_its_own(folder, monkeypatch):
    monkeypatch.setenv("VISION_PASSWORD", "let me in")
    text = """
import = ["words.py"]
ordered = "S[Track,CountLine([32,0,32,48],name=model)]"
network = ["${VISION_HOST:-localhost}"]
[model]
backend = "SourcesSquare"
[sources.street]
input = "${VISION_FILE:-camera}.mp4"
ordered = "Track"
zones = { right = { zone = [[32, 0], [64, 0], [64, 48], [32, 48]], dwell_s = 0.25 } }
lines = { door = [32, 0, 32, 48] }
sinks = ["records"]
[sources.yard]
input = "camera.mp4"
[sinks.records]
kind = "SaveJSONL"
path = "all.jsonl"
[sinks.events]
kind = "sink.py:Events"
path = "EVENTS"
password = "${VISION_PASSWORD}"
spool_bytes = 1000
"""
    config = written(folder, text.replace("EVENTS", str(folder / "events")))
    with headrace_vision.open(config) as vision:
        assert vision.config.network == ["localhost"]
        frames = list(vision.run())
    status = vision.status()["sinks"]
    assert not [f.error for f in frames if f.error]
    street = [f for f in frames if f.source == "street"][-1]
    assert set(street.request["counts"]) == {"right", "door"}
    assert street.request["counts"]["right"] == {"inside": 1, "entered": 1}
    moves = [e["direction"] for f in frames for e in f.request["events"] if e["type"] == "zone"]
    assert moves == ["enter", "dwell"]
    yard = [f for f in frames if f.source == "yard"][-1]
    assert set(yard.request["counts"]) == {"model"}
    assert {name: one["written"] for name, one in status.items()} == {"records": 32, "events": 16}
    events = [json.loads(one) for one in (folder / "events").read_text().splitlines()]
    assert events == [["yard", "let me in"]] * 16


def test_what_is_wrong_with_sources_and_sinks_is_named_with_its_place(folder):
    text = """
model = { backend = "Identity" }
node = { max = 3 }
[sources.street]
input = "${VISION_NOWHERE}"
ordered = "Trak"
lines = { door = [1, 2, 3] }
zones = { yard = [[1, 2], [3, 4]] }
sinks = ["record"]
[sources.yard]
input = "camera.mp4"
ordered = "Trak"
zones = { yard = [[1, 2], [3, 4]] }
[sinks.records]
kind = "sink.py:Event"
[sinks.other]
kind = "Nothing"
"""
    with pytest.raises(ConfigError) as caught:
        headrace_vision.open(written(folder, text))
    found = {str(one.path): one.message for one in caught.value.problems}
    assert found["sources.street.input"] == "the environment variable VISION_NOWHERE is not set"
    assert "Did you mean 'records'" in found["sources.street.sinks"]
    assert "Trak" in found["sources.yard.ordered: main.backend"]
    assert "at least 3 items" in found["sources.yard.zones: main.zone"]
    assert "line[3]: Field required" in found["sources.street.lines: main.line"]
    assert found["sinks.records"] == "sink.py has no class 'Event'"
    assert "it is for the file of a network" in found["node"]
    assert "or module:Class, not 'Nothing'" in found["sinks.other"]


def test_files_import_nothing_where_that_is_refused(folder, monkeypatch):
    monkeypatch.setenv("HEADRACE_IMPORT", "no")
    text = 'model = { backend = "Identity" }\n[sinks.events]\nkind = "sink.py:Events"\n'
    with pytest.raises(ConfigError, match="HEADRACE_IMPORT=no refuses it"):
        headrace_vision.open(written(folder, text))


def test_an_installed_package_brings_a_sink_by_name(folder, monkeypatch):
    info = folder / "site" / "vision_events-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vision-events\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[headrace.sinks]\nEvents = vision_events:Events\n")
    (folder / "site" / "vision_events.py").write_text(SINK)
    monkeypatch.syspath_prepend(str(folder / "site"))
    text = 'model = { backend = "Identity" }\n[sources.a]\ninput = "camera.mp4"\n[sinks.x]\n'
    text += f'kind = "Events"\npath = "{(folder / "events").as_posix()}"\n'
    with headrace_vision.open(written(folder, text)) as vision:
        assert len(list(vision.run())) == 16
    assert vision.status()["sinks"]["x"]["written"] == 16


def test_in_python_too_a_source_says_its_lines_and_its_sinks(kit):
    def square(image):
        left = float(np.nonzero(image[12, :, 2] > 200)[0].min())
        box = np.array([[left, 10, left + 12, 22]], np.float32)
        return sv.Detections(box, confidence=np.array([0.9]), class_id=np.array([0]))

    headrace.register("SourcesBox", square)
    pictures = [kit.picture(number) for number in range(16)]
    seen = {"all": [], "some": []}
    sinks = {name: seen[name].append for name in seen}
    with VideoRunner({"backend": "SourcesBox"}, ordered="Track", sinks=sinks) as runner:
        one = {"lines": {"door": [32, 0, 32, 48]}, "sinks": ["all"]}
        frames = list(runner.run_sources({"a": (pictures, one), "b": (pictures, {})}))
        with pytest.raises(ValueError, match=r"no sink 'al'\. Did you mean 'all'"):
            runner.run(pictures, sinks=["al"])
        with pytest.raises(ConfigError, match="line"):
            runner.run(pictures, lines={"door": [1, 2]})
        with pytest.raises(ValueError, match="lines: Input should be a table"):
            runner.run(pictures, lines=[1, 2, 3, 4])
    counted = {f.source: f.request.get("counts") for f in frames}
    assert sum(counted["a"].pop("door").values()) == 1
    assert counted == {"a": {}, "b": None}
    assert {name: {f.source for f in found} for name, found in seen.items()} == {
        "all": {"a", "b"},
        "some": {"b"},
    }


def test_keys_of_the_node_of_an_onnx_file_reach_it(kit, tmp_path):
    """The network finds nothing: what it answers has the form of YOLOv8's, and is 0."""
    for package in ("onnx", "headrace_ort", "headrace_cv"):
        pytest.importorskip(package)
    import onnx
    from onnx import TensorProto, helper

    zeros = helper.make_tensor("zeros", TensorProto.FLOAT, [1, 6, 21], [0.0] * 126)
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["mean"]),
        helper.make_node("ReduceMean", ["mean"], ["one"], axes=[1, 2], keepdims=0),
        helper.make_node("Unsqueeze", ["one", "axis"], ["spread"]),
        helper.make_node("Mul", ["spread", "zeros"], ["output"]),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [2])
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 32, 32])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", 6, 21])
    graph = helper.make_graph(nodes, "nothing", [image], [output], [zeros, axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "nothing.onnx")
    kit.render(tmp_path / "camera.mp4", count=5)
    text = 'model = "nothing.onnx"\nlayout = "v8"\nnode = NODE\n[sources.a]\ninput = "camera.mp4"\n'
    path = written(tmp_path, text.replace("NODE", "{ max = 3, instance_num = 1 }"))
    with headrace_vision.open(path) as vision:
        assert [len(f.result) for f in vision.run()] == [0] * 5
        node = vision.models["main"].stats()["nodes"]["main"]
    assert len(node["instances"]) == 1  # two without the key
    with (
        pytest.raises(ConfigError, match="instance_nun"),
        headrace_vision.open(written(tmp_path, text.replace("NODE", "{ instance_nun = 1 }"))),
    ):
        pass
