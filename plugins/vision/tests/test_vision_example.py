"""The example: its commands run, and what they print is right."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "video"
NEEDED = ("onnx", "trackers", "headrace_cv", "headrace_ort")
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir() or any(find_spec(one) is None for one in NEEDED),
    reason="needs the repository, onnx, trackers, headrace-cv and headrace-ort",
)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    folder = root / "examples" / "video"
    folder.mkdir(parents=True)
    for name in ("prepare.py", "evaluate.py", "video.toml"):
        shutil.copyfile(FOLDER / name, folder / name)
    return root


def test_the_commands_run_and_the_easy_clip_is_counted_and_tracked_right(example):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    commands = [one for one in re.findall(r"^\$ (.+)$", text, re.MULTILINE) if "pip" not in one]
    assert len(commands) == 3
    printed = []
    for command in commands:
        words = command.split()
        start = {"python": [sys.executable], "headrace": [sys.executable, "-m", "headrace_cli"]}
        done = subprocess.run(
            [*start[words[0]], *words[1:]], cwd=example, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout)
    crossings = int(re.search(r"(\d+) objects cross", printed[0]).group(1))
    assert "easy\t120 delivered\t0 failed\t0 dropped" in printed[1]
    lines = {line.split()[0]: line.split()[1:] for line in printed[2].splitlines()[1:]}
    precision, _, idf1, _, into, out = map(float, lines["easy"])
    assert precision > 0.95
    assert idf1 >= 0.85
    assert into + out == crossings == 3
    assert lines["empty"][:5] == ["nothing", "is", "there,", "0", "found"]
    made = example / "examples" / "video" / "made" / "out"
    assert sorted(p.name for p in made.glob("*.mp4")) == [
        "crossing.mp4", "easy.mp4", "empty.mp4", "slow.mp4"
    ]  # fmt: skip
