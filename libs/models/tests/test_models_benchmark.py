"""The benchmarks run in their smallest form; no time is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(module, folder, *arguments):
    file = folder / "figures.json"
    command = [sys.executable, "-m", module, "--quick", "--json", str(file), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_no_request_is_lost_where_models_do_not_all_fit(tmp_path):
    for needed in ("onnx", "onnxruntime", "headrace_ort"):
        pytest.importorskip(needed)
    figures = run("benchmarks.models.budget", tmp_path)
    assert figures["lost"] == figures["wrong"] == 0
    assert figures["evicted"] > 0
    assert 0 < figures["hits"] <= figures["best_hits"] <= 1
    assert 0 < figures["recent_hits"] <= figures["best_hits"]
    kept = {figure["what"].partition(": ")[2]: figure for figure in figures["kept"]}
    assert kept["answers"]["value"] == figures["requests"]
    assert [len(side) for side in figures["call_us"]] == [5, 5]
    assert any(each["what"].startswith("what a budget adds") for each in figures["kept"])
    assert kept["the greatest memory of the models"]["unit"] == "MiB"


@pytest.mark.slow
def test_no_request_is_lost_beside_a_shadow(tmp_path):
    for needed in ("onnx", "onnxruntime", "headrace_ort", "headrace_serve"):
        pytest.importorskip(needed)
    figures = run("benchmarks.models.exchange", tmp_path)
    assert figures["compared"] > 0
    assert min(figure["ratio"] for figure in figures["kept"]) > 0


@pytest.mark.slow
def test_a_network_with_rounded_weights_is_judged_by_the_tolerance(tmp_path):
    for needed in ("onnx", "onnxruntime", "headrace_ort"):
        pytest.importorskip(needed)
    figures = run("benchmarks.models.exchange", tmp_path, "--verdict")
    tight, wide = figures["too tight"], figures["wide enough"]
    assert (tight["outcome"], tight["differ"], tight["serves"]) == ("failed", tight["rows"], "1")
    assert (wide["outcome"], wide["differ"]) == ("passed", 0)
    assert tight["apart"] == 0 < tight["tolerance"] < wide["apart"] < wide["tolerance"]
    took = [figure["value"] for figure in figures["kept"] if figure["what"].endswith("takes over")]
    assert took == [0, 1]


@pytest.mark.slow
def test_no_request_is_lost_while_files_change(tmp_path):
    for needed in ("watchfiles", "huggingface_hub", "headrace_serve", "headrace_triton"):
        pytest.importorskip(needed)
    figures = run("benchmarks.models.changes", tmp_path)
    counts = {name: figures[name] for name in ("lost", "unready", "missed")}
    assert counts == {"lost": 0, "unready": 0, "missed": {}}
    assert len(figures["changes"]) == 8
    assert min(figures["requests"], figures["looks"], figures["away"]) > 0
