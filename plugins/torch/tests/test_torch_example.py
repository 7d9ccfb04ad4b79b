"""examples/classify: trained, run from the command line in all its forms, and from Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "classify"
README = (FOLDER / "README.md").read_text(encoding="utf-8")

pytest.importorskip("sklearn")
pytest.importorskip("onnxscript")


def run(*command, **environ):
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def made():
    done = run(sys.executable, "examples/classify/train.py")
    assert done.returncode == 0, done.stderr
    assert float(re.search(r"([\d.]+) %", done.stdout)[1]) >= 97
    return FOLDER / "made"


COMMANDS = [line[2:] for line in re.findall(r"^\$ .*headrace run .*$", README, re.MULTILINE)]


@pytest.mark.parametrize("command", COMMANDS, ids=[f"form {n}" for n in range(len(COMMANDS))])
def test_the_commands_of_the_readme_read_97_of_100_pictures(made, command):
    assert len(COMMANDS) == 4
    network = re.match(r'NETWORK="(.*)" headrace', command)
    rest = command.partition("headrace ")[2].split()
    environ = {"NETWORK": network[1]} if network else {}
    done = run(sys.executable, "-m", "headrace", *rest, **environ)
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(lines) == len(list((made / "held_out").iterdir()))
    right = sum(Path(path).name[0] == digit for path, digit, _ in lines)
    assert right >= 0.97 * len(lines)
    assert all(0 < float(probability) <= 1 for *_, probability in lines)


def test_the_program_of_the_readme_runs(made):
    program = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    done = run(sys.executable, "-W", "error", "-c", program)
    assert done.returncode == 0, done.stderr
    right, count = map(int, re.fullmatch(r"(\d+) of (\d+) are right\n", done.stdout).groups())
    assert right >= 0.97 * count


def test_the_program_of_the_plugins_readme_prints_what_it_says(tmp_path):
    text = (ROOT / "plugins" / "torch" / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "torch.Size([10])\n"), done.stderr
