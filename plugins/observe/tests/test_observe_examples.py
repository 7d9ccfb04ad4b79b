"""The examples that ``--help`` of each command shows are run, for as short as they can be."""

from __future__ import annotations

import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
from following import Needs, changed, follow, run_here
from pages import Page
from typer.testing import CliRunner

import headrace
import headrace_observe
from headrace_cli.app import app

# In an order in which each command finds what those before it have written.
COMMANDS = (
    "bench",
    "certify",
    "trace",
    "observe inspect",
    "simulate",
    "tune",
    "observe gpus",
)
# On a machine ten times slower the goal is reached, too.
SHORT = {
    "50ms": "1000s",
    r"^headrace bench .*": r"\g<0> --seconds 0.02 --warm-up 0 --clients 1,10",
    r"^headrace certify .*": r"\g<0> --repeat 2",
    r"^headrace observe inspect .*": r"\g<0> --repeat 2 --warm-up 0 --sizes 1",
    r"^headrace simulate .*": r"\g<0> --requests 200",
    r"^headrace tune .*": r"\g<0> --seconds 0.3 --warm-up 0 --trials 2",
}
README = Page("plugins/observe/README.md")
LINE = 'backend = "S[DecodeMat,ResizeMat(8,8)]"\nmax = 2\n'


def examples(command):
    """Return the lines after ``Examples:`` in the help of a command."""
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    lines = shown.stdout.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert lines, f"{command} shows no example"
    return [line.strip() for line in lines]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with all files that the examples name."""
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.toml").write_text(LINE)
    (tmp_path / "other.toml").write_text('extends = "line.toml"\nmax = 1\n')
    (tmp_path / "page.toml").write_text(f"[read]\n{LINE}")
    (tmp_path / "monday.txt").write_text("".join(f"{k / 100}\n" for k in range(50)))
    for name in ("photos", "pages"):
        (tmp_path / name).mkdir()
        for picture in "ab":
            cv2.imwrite(f"{name}/{picture}.jpg", np.full((16, 16, 3), ord(picture), np.uint8))
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 3, 224, 224])
        for name in ("image", "scores")
    ]
    nodes = [onnx.helper.make_node("Relu", ["image"], ["scores"])]
    graph = onnx.helper.make_graph(nodes, "light", values[:1], values[1:])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), "light.onnx")
    return tmp_path


@pytest.mark.slow
def test_every_example_of_the_help_does_what_it_says(folder):
    for name in ("matplotlib", "onnxruntime"):
        pytest.importorskip(name)
    for command in COMMANDS:
        for line in examples(command):
            whole = "tune line.toml times.jsonl" in line
            printed = run_here(line.replace("50ms", "1000s") if whole else changed(line, SHORT))
            if "--json" in line and command != "observe gpus":  # which prints a list
                _check_keys(command, json.loads(printed))
    follow(README, folder, Needs(changes=SHORT, here=True))
    assert (folder / "times.jsonl").exists()
    assert json.loads((folder / "trace.json").read_text())["traceEvents"]
    assert (folder / "tuned.toml").exists()
    assert (folder / "load.html").exists()


def test_the_part_that_the_readme_measures_is_measured(folder):
    part = README.files["part.toml"].replace("total=1000", "total=100")
    Path("part.toml").write_text(part, encoding="utf-8")
    with headrace.pipe("part.toml") as pipe:
        figures = pipe({"data": Path("photos/a.jpg").read_bytes()})["result"]
    assert (figures["ok"], figures["load"]["clients"]) == (100, 10)


def _check_keys(command, document):
    """See that the README names every key of what a command prints for programs."""
    named = set(re.findall(r"`(\w+)`", Page("plugins/observe/README.md", "JSON").text))
    if command == "observe inspect":  # which its docstring names
        named = set(re.findall(r'"(\w+)"', headrace_observe.inspect.__doc__))
    configurations = document.get("configurations", [])
    points = [point for one in configurations for point in one["points"]]
    for found in (document, *configurations, *points):
        assert set(found) <= named, f"{command}: {set(found) - named}"
