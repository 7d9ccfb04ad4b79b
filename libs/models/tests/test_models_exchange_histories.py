"""Exchanges beside updates, evictions, closes, cancels, deadlines and new versions that crash: see ``exchange_histories``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import headrace_models

PROGRAM = Path(__file__).with_name("exchange_histories.py")
QUICK, ALL, PART = 200, 4000, 50

FAULTS = {
    "requests that the new model fixes make good those that it fails": (
        "exchange/evidence.py",
        "worse, total = self.pairs[_NEW_FAILED] + crashed,",
        "worse, total = self.pairs[_NEW_FAILED] + crashed - self.pairs[_OLD_FAILED],",
        "exchange .* not",
    ),
    "what both fail proves something": (
        "exchange/evidence.py",
        "return self.pairs[ANSWERED] + self.pairs[_NEW_FAILED]",
        "return self.pairs[ANSWERED] + self.pairs[_NEW_FAILED] + self.pairs[_BOTH_FAILED]",
        "exchange .* not",
    ),
    "too little evidence passes": (
        "exchange/comparison.py",
        'self.end("not judged", ',
        'self.end("passed", ',
        "passed, not ''",
    ),
    "a crash where the old model refuses counts for nothing": (
        "exchange/evidence.py",
        "crashed = self.pairs[_NEW_CRASHED]",
        "crashed = 0",
        "exchange .* not",
    ),
    "a verdict against the new model ends nothing": (
        "exchange/comparison.py",
        "                if outcome:\n",
        '                if outcome == "passed":\n',
        "not 'failed'",
    ),
    "a refused replace ends the protection of an exchange": (
        "prepared.py",
        "version.holding.prepared.discard(self)",
        "version.holding.prepared.clear()",
        "was evicted",
    ),
    "the versions of an exchange are not protected": (
        "exchange/phase.py",
        "version.holding.prepared.add(trial)",
        "pass",
        "was evicted|not over after",
    ),
    "the end of an exchange leaves its pairs open": (
        "exchange/comparison.py",
        "            pair.end()\n        level",
        "            pass\n        level",
        "longer than for its models",
    ),
    "cancel says True while a backend runs": (
        "exchange/pipeline.py",
        "    pair.client.follow(running, pair.note_done)\n",
        "    running.add_done_callback(pair.note_done)\n",
        "its dict has changed since",
    ),
    "both models run the same dict": (
        "exchange/pair.py",
        "self.request, self.twin = request, deepcopy({**request})",
        "self.request, self.twin = request, request",
        "new model in a shadow|wrong answer|changed since|exchange .* not",
    ),
    "a client of a shadow waits for the new model": (
        "exchange/pair.py",
        'self._waits_for_both = exchange.compare == "canary"',
        "self._waits_for_both = True",
        "new model in a shadow|longer than for its models",
    ),
    "a version that leaves gives no memory back": (
        "version.py",
        "close() if self._memory is None else self._memory.give(self.holding, close)",
        "close()",
        "the budget counts|not over after",
    ),
    "who has room is not counted": (
        "memory/budget.py",
        "return {device: size for device, size in lacks.items() if size > 0}",
        "return {}",
        "live where",
    ),
}


def histories(first, number, *paths):
    """Run histories in another process, with packages of these folders before others; return its status and text."""
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(first), str(number)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, paths), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("first", range(0, QUICK, PART))
def test_everything_holds(first):
    assert histories(first, PART) == (0, f"{PART} histories\n")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, ALL, 4 * PART))
def test_everything_holds_in_all_histories(first):
    number = min(4 * PART, ALL - first)
    assert histories(first, number) == (0, f"{number} histories\n")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault, tmp_path):
    file, text, other, seen = FAULTS[fault]
    copy = tmp_path / "headrace_models"
    shutil.copytree(Path(headrace_models.__file__).parent, copy)
    source = (copy / file).read_text(encoding="utf-8")
    assert source.count(text) == 1, f"{file} has changed: where is {text!r} now?"
    (copy / file).write_text(source.replace(text, other), encoding="utf-8")
    status, output = histories(0, QUICK, tmp_path)
    assert (status, bool(re.search(seen, output))) == (1, True), output
