"""What `detect` and ``headrace video`` take in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from headrace.errors import ConfigError, HeadraceError, InputError
from headrace_vision import VideoRunner, detect

NAMES = {0: "cat", 1: "dog", 2: "cow"}


@pytest.fixture
def network(tmp_path):
    """A YOLOv8 for pictures of 64 x 64: two cats on each other (their overlap is 0.6), and a dog."""
    output = np.zeros((7, 84), np.float32)
    output[:, 3] = [30, 30, 20, 20, 0.9, 0, 0]
    output[:, 4] = [35, 30, 20, 20, 0.8, 0, 0]
    output[:, 5] = [10, 50, 10, 10, 0, 0.3, 0]
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["image"], ["mean"], axes=[2, 3], keepdims=0),
            helper.make_node("ReduceMean", ["mean"], ["one"], axes=[1], keepdims=1),
            helper.make_node("Unsqueeze", ["one"], ["row"], axes=[2]),
            helper.make_node("Mul", ["row", "zero"], ["none"]),
            helper.make_node("Add", ["none", "fixed"], ["out"]),
        ],
        "fixed",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 64, 64])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 7, 84])],
        [
            helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
            helper.make_tensor("fixed", TensorProto.FLOAT, [1, 7, 84], output.ravel()),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)])
    made.ir_version = 8
    helper.set_model_props(made, {"names": str(NAMES), "task": "detect"})
    onnx.save(made, tmp_path / "yolo.onnx")
    return tmp_path / "yolo.onnx"


PICTURE = np.zeros((64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ["cat", "dog"]),
        ({"iou_threshold": 0.7}, ["cat", "cat", "dog"]),
        ({"classes": ["dog"]}, ["dog"]),
        ({"classes": [0, 2]}, ["cat"]),
        ({"score_threshold": 0.5}, ["cat"]),
        ({"score_threshold": 0.5, "classes": ["dog"]}, []),
        ({"device": "cpu"}, ["cat", "dog"]),
    ],
)
def test_what_is_kept_is_said_in_one_line(network, arguments, expected):
    (frame,) = detect(network, PICTURE, **arguments)
    assert frame.error is None
    assert frame.result.data["class_name"].tolist() == expected


def test_an_argument_that_cannot_be_is_refused_with_its_name(network):
    with pytest.raises(HeadraceError, match="tpu:9"):
        detect(network, PICTURE, device="tpu:9")
    with pytest.raises(HeadraceError, match="iou_threshold"):
        detect(network, PICTURE, iou_threshold=3.0)


@pytest.mark.parametrize("suffix", [".engine", ".plan", ".pt2"])
def test_a_file_that_says_neither_size_nor_layout_needs_both(tmp_path, suffix):
    path = tmp_path / f"yolo{suffix}"
    path.write_bytes(b"no network")
    with pytest.raises(InputError, match="size="):
        detect(path, PICTURE, layout="v8")
    with pytest.raises(InputError, match="layout is unknown"):
        detect(path, PICTURE, size=64)
    with pytest.raises(InputError, match="Did you mean 'yolox'"):
        detect(path, PICTURE, size=64, layout="yolx")


def test_a_number_is_a_camera():
    with VideoRunner({"backend": "Identity"}) as runner:
        handle = runner.add(999)
        assert list(handle.status()["sources"]) == ["camera:999"]
        handle.stop()
        for wrong in (-1, True, 1000, 0.0):
            with pytest.raises(InputError):
                runner.add(wrong)


class Command:
    """``headrace video`` in a process of its own, and the page that it shows."""

    def __init__(self, *arguments):
        line = [sys.executable, "-m", "headrace_cli", "video", *map(str, arguments)]
        self.process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        said = self.process.stderr.readline()
        assert said.startswith("live at http://127.0.0.1:"), said + self.process.stderr.read()
        self.url = said.split()[-1]

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read()

    def until(self, condition):
        while True:
            assert self.process.poll() is None
            for name, one in json.loads(self.get("ui/state.json"))["sources"].items():
                if condition(one):
                    return name, one

    def end(self):
        self.process.kill()
        self.process.communicate()


def test_a_clip_and_the_file_of_a_detector_show_boxes_on_a_page(network, tmp_path, kit):
    clip = kit.render(tmp_path / "street.mp4", count=600, size=(64, 64))  # it plays for a minute
    command = Command(clip, "--model", network)
    try:
        name, found = command.until(lambda one: one["has_picture"])
        assert (name, found["objects"], found["error"]) == ("street.mp4", 2, None)
        picture = np.frombuffer(command.get("ui/picture.jpg?source=street.mp4"), np.uint8)
        image = cv2.imdecode(picture, cv2.IMREAD_COLOR).astype(int)
        # The box of the dog goes from (5, 45) to (15, 55): its side has a colour, and what is beside it is grey.
        assert np.ptp(image[50, 5]) > 40
        assert np.ptp(image[50, 25]) < 20
    finally:
        command.end()


def test_the_number_of_a_camera_and_the_file_of_a_detector_are_enough(network):
    command = Command("999", "--model", network)
    try:
        name, found = command.until(lambda one: one["status"]["state"] == "lost")
        assert name == "camera:999"
        assert found["status"]["error"]
    finally:
        command.end()


def test_the_line_of_the_page_of_what_one_has_shows_boxes_of_all_its_cameras(
    network, tmp_path, kit, monkeypatch
):
    page = (Path(__file__).parents[3] / "docs" / "i_have.md").read_text("utf-8")
    (line,) = re.findall(r"^\$ headrace video (.*)$", page, re.MULTILINE)
    monkeypatch.chdir(tmp_path)  # where yolo.onnx is
    clip = str(kit.render(tmp_path / "street.mp4", count=600, size=(64, 64)))
    here = {"camera:0": clip, "rtsp://door.example/live": "camera:999"}
    words = line.split()
    assert {*here} < {*words}
    command = Command(*(here.get(word, word) for word in words))
    try:
        name, found = command.until(lambda one: one["has_picture"])
        assert (name, found["objects"], found["error"]) == ("street.mp4", 2, None)
        assert command.until(lambda one: one["status"]["state"] == "lost")[0] == "camera:999"
    finally:
        command.end()


def test_one_line_without_a_file_says_what_is_missing(tmp_path, network):
    from headrace_vision.commands import video

    with pytest.raises(ConfigError, match=r"there is no file 'none.onnx'"):
        video("0", model="none.onnx")
    with pytest.raises(InputError, match="no such file"):
        video(str(tmp_path / "none.mp4"), model=str(network))
    assert video("0", model=str(network), check=True) == 0
