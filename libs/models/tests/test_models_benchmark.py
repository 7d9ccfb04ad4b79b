"""The benchmark of leases runs in its smallest form; no time is looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_it_measures_leases_and_requests_beside_builds(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.models.lease", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert len(figures["lease_us"]) == 3
    assert all(us > 0 for us in figures["lease_us"].values())
    assert figures["update"]["updates"] >= 1
    assert figures["update"]["ratio"] > 0
