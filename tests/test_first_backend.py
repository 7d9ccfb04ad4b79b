"""The tutorial, followed word by word in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "first_backend.md"

MOST_LINES = 40
MOST_COMMANDS = 8
MOST_SECONDS = 180


def test_the_page_asks_for_few_lines_and_commands(page_steps):
    steps = page_steps(PAGE)
    lines = [line for path, text in steps if path for line in text.splitlines() if line.strip()]
    commands = [text for path, text in steps if not path]
    assert 20 <= len(lines) <= MOST_LINES
    assert 5 <= len(commands) <= MOST_COMMANDS


def cpu_seconds_of_children() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.network
@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash")
@pytest.mark.timeout(600)
def test_the_page_leads_from_nothing_to_a_certificate(follow, tmp_path):
    import cv2
    import numpy as np

    work = tmp_path / "work"
    (work / "photos").mkdir(parents=True)
    for name in ("a.jpg", "b.png"):
        cv2.imwrite(str(work / "photos" / name), np.full((40, 60, 3), 100, np.uint8))
    began = cpu_seconds_of_children()
    printed = follow(PAGE, work, Path(sys.executable).parent)
    # Machine time: that of the processor, which other work on the machine does not change.
    assert cpu_seconds_of_children() - began < MOST_SECONDS
    certificate = json.loads((work / "certificate.json").read_text(encoding="utf-8"))
    assert "Gamma" in json.dumps(certificate)
    outputs = printed[-1].splitlines()
    assert [line.partition("\t")[0] for line in outputs] == ["photos/a.jpg", "photos/b.png"]
    brightened = subprocess.run(
        [".venv/bin/headrace", "run", "--json", "brighter.toml", "photos/b.png"],
        cwd=work,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(brightened.stdout)["result"]
