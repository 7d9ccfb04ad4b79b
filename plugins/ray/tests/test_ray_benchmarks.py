"""The benchmarks run, in their smallest form, and write what they say; no time is looked at."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from processes import run_process
from ray_programs import FAILS_LATE_S

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks" / "ray").exists(), reason="the benchmarks are in the repository alone"
)


def run(module, folder, *arguments):
    """Run a benchmark, which starts a cluster of its own; return the figures it wrote."""
    file = folder / "figures.json"
    done = run_process(
        [sys.executable, "-m", module, "--quick", "--json", str(file), *arguments],
        cwd=ROOT,
        timeout=2 * FAILS_LATE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text(encoding="utf-8"))


def test_calls_measures_sleeping_requests_in_each_number_of_actors(tmp_path):
    figures = run("benchmarks.ray.calls", tmp_path, "--only", "sleep")
    assert set(figures["sleep"]["linear"]) == {"1", "4", "16"}
    assert figures["sleep"]["linear"]["1"] == 1.0
