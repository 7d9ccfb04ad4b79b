"""The tutorial, followed word by word in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash")
def test_the_page_leads_from_nothing_to_a_certificate(first_backend):
    saved = json.loads((first_backend / "printed.json").read_text(encoding="utf-8"))
    # Machine time: that of the processor, which other work on the machine does not change.
    assert saved["seconds"] < MOST_SECONDS
    certificate = json.loads(
        (first_backend / "headrace-gamma" / "certificate.json").read_text(encoding="utf-8")
    )
    assert "Gamma" in json.dumps(certificate)
    outputs = saved["printed"][-1].splitlines()
    assert [line.partition("\t")[0] for line in outputs] == ["photos/a.jpg", "photos/b.png"]
    brightened = subprocess.run(
        [".venv/bin/headrace", "run", "--json", "brighter.toml", "photos/b.png"],
        cwd=first_backend,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(brightened.stdout)["result"]
