"""`scripts/check compatibility`: in a copy one thing of each kind is taken away, and each is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import distributions
import pytest
from processes import run_process

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("git"), reason="needs git")]

SAID = {
    ("plugins/cv/src/headrace_cv/functions/boxes.py", "*, iou_threshold: float", "*, iou: float"): (
        "headrace-cv: headrace_cv.nms: parameter was removed (iou_threshold)"
    ),
    ("plugins/cv/src/headrace_cv/__init__.py", '    "top_k",\n', ""): (
        "headrace-cv: headrace_cv.top_k is gone"
    ),
    (
        "plugins/cv/src/headrace_cv/functions/boxes.py",
        "max_boxes: int | None = None",
        "max_boxes: int = 9",
    ): ("headrace-cv: headrace_cv.filter_detections: parameter default was changed (max_boxes)"),
    ("plugins/cv/src/headrace_cv/detection.py", "iou_threshold: float", "threshold: float"): (
        "backends > NMS > iou_threshold is gone"
    ),
    (
        "plugins/flow/pyproject.toml",
        'Once = "headrace_flow.caching.once',
        'Twice = "headrace_flow.caching.once',
    ): ("backends > Once is gone"),
    ("core/src/headrace/errors.py", 'code = "deadline"', 'code = "late"'): (
        "codes > deadline is gone"
    ),
    ("core/src/headrace/_run/records/statistics.py", '"waiting": waiting', '"queued": waiting'): (
        "stats > nodes > main > waiting is gone"
    ),
    ("cli/src/headrace_cli/commands/conformance.py", '"--certificate"', '"--certified"'): (
        "commands > conformance > --certificate is gone"
    ),
    ("cli/src/headrace_cli/console.py", "\nWRONG = 2\n", "\nWRONG = 3\n"): (
        "exit_statuses > WRONG: 2 has become 3"
    ),
}
"""What the script says of a change: in this file these characters become those."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A repository with one commit: the distributions and the scripts as they are."""
    top = tmp_path_factory.mktemp("compatibility") / "copy"
    left_out = shutil.ignore_patterns("__pycache__", "tests", "dist", ".venv")
    shutil.copytree(ROOT / "scripts", top / "scripts", ignore=left_out)
    for folder in distributions.folders():
        shutil.copytree(folder, top / folder.relative_to(ROOT), ignore=left_out)
    for path in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / path, top)
    # A surface that is stale here is another test's failure.
    subprocess.run(
        [sys.executable, "scripts/public_names.py"], cwd=top, env=of_copy(top), check=True
    )
    settings = ["-c", "user.name=A Tester", "-c", "user.email=tester@headrace.example"]
    subprocess.run(["git", "init", "--quiet"], cwd=top, check=True)
    subprocess.run(["git", "add", "--all"], cwd=top, check=True)
    commit = ["commit", "--quiet", "--no-gpg-sign", "--message", "All of it"]
    subprocess.run(["git", *settings, *commit], cwd=top, check=True)
    return top


def of_copy(top: Path) -> dict[str, str]:
    """Return the variables with which Python imports what the copy has, as if that were installed."""
    metadata = top.parent / "metadata"
    shutil.rmtree(metadata, ignore_errors=True)
    command = [sys.executable, "scripts/distributions.py", str(metadata)]
    done = run_process(command, cwd=top, check=True)
    return {**os.environ, "PYTHONPATH": done.stdout.strip()}


def told(top: Path, *arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "scripts/compatibility.py", *arguments]
    done = run_process(command, cwd=top, env=of_copy(top))
    assert done.returncode in {0, 1}, done.stderr
    lines = done.stdout.splitlines()
    return done.returncode, [line for line in lines if line.startswith("breaking: ")]


def test_each_thing_that_is_taken_away_is_named(copy):
    # Before there is a release, the surface of the last commit is compared.
    assert told(copy) == (0, [])
    for (file, before, after), said in SAID.items():
        text = (copy / file).read_text(encoding="utf-8")
        assert before in text, said
        (copy / file).write_text(text.replace(before, after), encoding="utf-8")
    status, lines = told(copy, "HEAD")
    assert status == 1
    missing = [said for said in SAID.values() if f"breaking: {said}" not in lines]
    assert missing == [], lines
