"""The example that is served: its commands as its page has them, its unit and its manifest."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("headrace_serve")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples" / "serve"
COMMANDS = re.findall(
    r"^\$ (.*)$", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.fixture
def address():
    """The address of the server that the page's command starts, on a free port."""
    _, *arguments = shlex.split(next(one for one in COMMANDS if one.startswith("headrace serve")))
    arguments[arguments.index("8000")] = "0"
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    found = re.match(r"serving http://127.0.0.1:(\d+)", process.stderr.readline())
    yield f"localhost:{found[1]}"
    process.terminate()
    assert process.wait(30) == 0
    process.stderr.close()


@pytest.mark.skipif(sys.platform == "win32" or not shutil.which("curl"), reason="needs curl")
def test_the_commands_of_the_page(address, tmp_path):
    photo = cv2.imencode(".jpg", np.full((480, 640, 3), 90, np.uint8))[1].tobytes()
    (tmp_path / "photo.jpg").write_bytes(photo)
    asked = [one for one in COMMANDS if "localhost:8000" in one]
    assert len(asked) == 3
    said = []
    for command in asked:
        words = shlex.split(command.replace("localhost:8000", address))
        if words[0] == "python":
            words[:2] = [sys.executable, str(ROOT / words[1])]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
        said.append(done.stdout)
    small = cv2.imread(str(tmp_path / "small.jpg"))
    assert small.shape == (120, 160, 3)
    assert '"name":"thumbnail"' in said[1]
    size = (tmp_path / "small.jpg").stat().st_size
    assert said[2] == f"photo.jpg\t{size} bytes\n" * 2


def options_of(words):
    """The options that a command line names, which the command must have."""
    return {word.partition("=")[0] for word in words if word.startswith("--")}


def test_the_unit_and_the_manifest_use_options_that_there_are():
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": ""},
    )
    unit = (FOLDER / "headrace.service").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    manifest = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text(encoding="utf-8"))
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for words in (shlex.split(line), container["command"]):
        assert words[1] == "serve"
        assert options_of(words)
        for option in options_of(words):
            assert option in done.stdout
    seconds = {
        word.partition("=")[0]: float(word.partition("=")[2])
        for word in container["command"]
        if word.startswith("--drain")
    }
    assert pod["terminationGracePeriodSeconds"] > sum(seconds.values())
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert float(stop) > float(re.search(r"--drain-timeout (\d+)", line)[1])
