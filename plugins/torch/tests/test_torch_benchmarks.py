"""The benchmarks with torch run, in their smallest form, and write what they say; no time is looked at."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_a_hunt_looks_at_every_answer(tmp_path, run_here):
    hunt = ("benchmarks.gpu_hunt", "--device", "cpu", "--clients", "2", "--plugin", "torch")
    printed = run_here(*hunt, "--requests", "80", cwd=ROOT)
    assert re.findall(r"(\d+) of \d\d wrong", printed) == ["0"] * 4
    printed = run_here(*hunt, "--requests", "40", "--compile", "false", cwd=ROOT)
    assert re.search(r"compile = false, 1 instance\(s\): 0 of 4\d wrong", printed)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["benchmarks.gpu_torch", "--device", "cpu"],
            ["model", "resnet", "graphs", "host"],
        ),
        (["benchmarks.gpu_clients", "--device", "cpu", "--load", "4x2"], []),
    ],
    ids=["gpu_torch", "gpu_clients"],
)
def test_a_benchmark_runs_and_writes_its_figures(tmp_path, run_here, arguments, parts):
    pytest.importorskip("torchvision")
    pytest.importorskip("onnx")
    file = tmp_path / "figures.json"
    run_here(*arguments, "--quick", "--json", str(file), cwd=ROOT)
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert set(figures) == {"environment", "run", "kept", *parts}
    assert all(figures[part] for part in parts)
    if "benchmarks.gpu_clients" in arguments:
        ours = {one["what"].split(": ")[0].split(", ")[-1] for one in figures["kept"]}
        decode = {"clients decode", "four words decode", "one word decodes"}
        assert ours == {"pipe()", "list", "rows", "submit", *decode}
        assert all(one["ratio"] > 0 for one in figures["kept"])
    for part in {"model", "resnet"}.intersection(parts):
        assert all(load["rps"] > 0 for load in figures[part]["by_hand"])
