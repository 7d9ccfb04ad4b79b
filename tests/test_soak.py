"""The soak of the schedulers, for some seconds of full load: every request has one outcome."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from processes import run_process

ROOT = Path(__file__).parents[1]


@pytest.mark.stress
def test_under_full_load_with_failures_and_swaps_every_request_has_one_outcome(request):
    # Each kind of outcome has to be there: longer where a slow machine had too little time for it.
    for seconds in ("30",) if request.config.getoption("--stress") else ("3", "12", "48"):
        command = [sys.executable, "-m", "benchmarks.scheduling.soak", "--seconds", seconds]
        command += ["--seed", "1", "--json"]
        done = run_process(command, cwd=ROOT)
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert report["wrong"] == []
        assert done.returncode == 0
        missing = [what for what in ("ok", "failed") if not report["swaps"].get(what)]
        for counts in report["outcomes"].values():
            kinds = ("ok", "backend", "deadline", "cancelled")
            missing += [kind for kind in kinds if not counts.get(kind)]
        if not missing:
            break
    assert not missing
