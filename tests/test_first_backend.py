"""The tutorial, followed word by word in an environment of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "first_backend.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

MOST_LINES = 40
MOST_COMMANDS = 8
MOST_SECONDS = 180


def steps() -> list[tuple[str, str]]:
    """Give each step of the page: a command with its text, or a file with path and content."""
    found = []
    for language, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "console":
            found += [("", line[2:]) for line in body.splitlines() if line.startswith("$ ")]
        else:
            first, _, content = body.partition("\n")
            assert first.startswith("# "), f"a block does not say which file it is: {first}"
            found.append((first[2:], content))
    return found


def test_the_page_asks_for_few_lines_and_commands():
    lines = [line for path, text in steps() if path for line in text.splitlines() if line.strip()]
    commands = [text for path, text in steps() if not path]
    assert 20 <= len(lines) <= MOST_LINES
    assert 5 <= len(commands) <= MOST_COMMANDS


def script(folder: Path) -> str:
    """Give the shell script that does what the page says: commands, and files put in place."""
    parts = ["set -euo pipefail"]
    for number, (path, text) in enumerate(steps()):
        if path:
            written = folder / str(number)
            written.write_text(text.lstrip("\n"), encoding="utf-8")
            parts.append(f"cp '{written}' '{path}'")
        else:
            parts += [f"echo '== {number}'", text]
    return "\n".join(parts)


def cpu_seconds_of_children() -> float:
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.network
@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash")
@pytest.mark.timeout(600)
def test_the_page_leads_from_nothing_to_a_certificate(wheels, tmp_path):
    import cv2
    import numpy as np

    (tmp_path / "blocks").mkdir()
    work = tmp_path / "work"
    (work / "photos").mkdir(parents=True)
    for name in ("a.jpg", "b.png"):
        cv2.imwrite(str(work / "photos" / name), np.full((40, 60, 3), 100, np.uint8))
    links = [str(wheels["headrace"].parent), os.environ.get("PIP_FIND_LINKS", "")]
    environ = {
        **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PIP_FIND_LINKS": " ".join(filter(None, links)),
    }
    began = cpu_seconds_of_children()
    done = subprocess.run(
        ["bash", "-c", script(tmp_path / "blocks")],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Machine time: that of the processor, which other work on the machine does not change.
    assert cpu_seconds_of_children() - began < MOST_SECONDS
    certificate = json.loads((work / "certificate.json").read_text(encoding="utf-8"))
    assert "Gamma" in json.dumps(certificate)
    outputs = done.stdout.rpartition("== ")[2].splitlines()[1:]
    assert [line.partition("\t")[0] for line in outputs] == ["photos/a.jpg", "photos/b.png"]
    prepared = subprocess.run(
        [".venv/bin/headrace", "run", "--json", "brighter.toml", "photos/b.png"],
        cwd=work,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(prepared.stdout)["result"]
