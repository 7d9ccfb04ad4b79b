"""The benchmarks with torch run, in their smallest form, and write what they say; no time is looked at."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (
            ["benchmarks.gpu_torch", "--device", "cpu"],
            ["model", "resnet", "graphs", "host", "onnx"],
        ),
        (["benchmarks.jpeg_torch", "--network", "light", "--clients", "2"], ["light"]),
    ],
    ids=["gpu_torch", "jpeg_torch"],
)
def test_a_benchmark_runs_and_writes_its_figures(tmp_path, run_here, arguments, parts):
    pytest.importorskip("torchvision")
    pytest.importorskip("onnx")
    file = tmp_path / "figures.json"
    run_here(*arguments, "--quick", "--json", str(file), cwd=ROOT)
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert set(figures) == {"environment", "run", "kept", *parts}
    assert all(figures[part] for part in parts)
    for part in {"model", "resnet"}.intersection(parts):
        assert all(load["rps"] > 0 for load in figures[part]["by_hand"])
