"""The soak of the schedulers, for some seconds of full load: every request has one outcome."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.stress
@pytest.mark.timeout(1200)
def test_under_full_load_with_failures_and_reloads_every_request_has_one_outcome(request):
    seconds = "30" if request.config.getoption("--stress") else "3"
    command = [sys.executable, "-m", "benchmarks.scheduling.soak", "--seconds", seconds, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert done.returncode == 0
    assert report["reloads"]["ok"]
    assert report["reloads"]["failed"]
    for counts in report["outcomes"].values():
        assert counts["ok"]
        assert counts["backend"]
        assert counts["deadline"]
        assert counts["cancelled"]
