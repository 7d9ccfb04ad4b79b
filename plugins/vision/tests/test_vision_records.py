"""Records are JSON of RFC 8259, whatever numbers and texts are in them: each is read by `json` without its words for NaN."""

from __future__ import annotations

import http.server
import json
import re
import threading
import urllib.request
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import supervision as sv
from web_servers import serving

import headrace
from headrace_vision import Frame, SaveJSONL, VideoRunner, View, Webhook
from headrace_vision.sinks.spool import SpoolFolder, read_frame

PICTURE = np.zeros((24, 32, 3), np.uint8)
NAN, INFINITY = float("nan"), float("inf")


def strict(text):
    def refuse(word):
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Odd(headrace.Backend):
    """Numbers that JSON has no word for, in every place that a record takes from a request."""

    def forward(self, batch):
        for request in batch:
            request["result"] = sv.Detections(
                np.float32([[1, 2, 3, 4], [2, 3, 9, 9]]),
                confidence=np.float32([NAN, 0.5]),
                class_id=np.array([0, 0]),
                data={
                    "class_name": np.array(["né\ud800", "né\ud800"]),
                    "distance": np.array([INFINITY, -INFINITY]),
                    "speed": [np.float32(NAN), np.float64(2)],
                    "keypoints": np.float32([[[1, 2, NAN]], [[3, 4, 1]]]),
                },
            )
            request["counts"] = {"door": {"mean": NAN, "in": 2**70}}
            request["events"] = [{"name": "door", "at": (INFINITY, 1.5)}]


DETECTIONS = [
    {
        "box": [1.0, 2.0, 3.0, 4.0],
        "score": None,
        "class_id": 0,
        "class_name": "né\ud800",
        "distance": None,
        "speed": None,
        "keypoints": [[1.0, 2.0, None]],
    },
    {
        "box": [2.0, 3.0, 9.0, 9.0],
        "score": 0.5,
        "class_id": 0,
        "class_name": "né\ud800",
        "distance": None,
        "speed": 2.0,
        "keypoints": [[3.0, 4.0, 1.0]],
    },
]
COUNTS = {"door": {"mean": None, "in": 2**70}}
EVENTS = [{"name": "door", "at": [None, 1.5]}]


@pytest.fixture(scope="module", autouse=True)
def _odd():
    headrace.register("VisionOdd", Odd)
    headrace.register("VisionSpeed", lambda image: {"speed": NAN, "list": [1.0, (INFINITY,)]})


def run(sink, backend="VisionOdd"):
    with VideoRunner({"backend": backend}, sinks=[sink]) as runner:
        list(runner.run({"door": [PICTURE]}))
    (status,) = runner.status()["sinks"].values()
    assert (status["written"], status["error"]) == (1, None)


def check(record):
    assert record["detections"] == DETECTIONS
    assert record["counts"] == COUNTS
    check_events(record["events"], record["time"])


def check_events(events, time):
    """They are what the backend wrote, with an id, and the time of the frame."""
    (event,) = events
    assert re.fullmatch(r"door:[0-9a-f]{8}:1", event.pop("id"))
    assert event.pop("time") == time
    assert events == EVENTS


def test_lines_have_null_for_what_is_no_number(tmp_path):
    path = tmp_path / "all.jsonl"
    run(SaveJSONL(path))
    run(SaveJSONL(path), "VisionSpeed")
    first, second = path.read_bytes().splitlines()
    check(strict(first))
    assert strict(second)["result"] == {"speed": None, "list": [1.0, [None]]}
    assert "né".encode() in first


def test_a_webhook_posts_null_for_what_is_no_number():
    bodies = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

    with serving(Handler) as server:
        run(Webhook(f"http://127.0.0.1:{server.server_port}/", network=["127.0.0.1"]))
    (body,) = bodies
    check(strict(body))


def test_the_message_of_mqtt_is_the_same_record(monkeypatch):
    client = pytest.importorskip("paho.mqtt.client")
    from headrace_vision import MQTT

    sent = []

    class Client:
        def __init__(self, *_, **__):
            pass

        def connect(self, *_):
            self.on_connect(self, None, None, Reason, None)

        def publish(self, topic, payload, qos):
            sent.append(payload)
            self.on_publish(self, None, 7, Reason, None)
            return SimpleNamespace(mid=7)

        def is_connected(self):
            return True

        def loop_start(self, *_):
            pass

        disconnect = loop_stop = loop_start

    class Reason:
        is_failure = False

    monkeypatch.setattr(client, "Client", Client)
    run(MQTT("mqtt://127.0.0.1/cams", network=["127.0.0.1"]))
    (payload,) = sent
    check(strict(payload))


def test_the_page_gets_null_for_what_is_no_number():
    view, written = View(), threading.Event()
    keep = view.write

    def write(frame):
        keep(frame)
        written.set()

    view.write = write
    with VideoRunner({"backend": "VisionOdd"}, sinks=[view]) as runner:
        list(runner.run({"door": [PICTURE]}))
        assert written.wait(120)
        with urllib.request.urlopen(f"{view.url}ui/state.json") as answer:
            state = strict(answer.read())["sources"]["door"]
    assert state["counts"] == COUNTS
    check_events(state["events"], state["events"][0]["time"])


def test_what_is_kept_in_a_folder_is_json_and_comes_back_as_it_was(tmp_path):
    values = {"nan": NAN, "up": INFINITY, "down": (-INFINITY, 1.5), "array": np.array([NAN, 2.0])}
    path, _ = SpoolFolder(tmp_path).save(Frame("door", 3, INFINITY, result=values), 0)
    with zipfile.ZipFile(path) as file:
        data = file.read("json.npy")
    strict(data[data.index(b"{", data.index(b"\n")) :])
    kept = read_frame(Path(path))
    assert repr(kept.result) == repr(values)
    assert kept.timestamp == INFINITY
