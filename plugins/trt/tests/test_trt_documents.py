"""Every program and command of the README is run; those for a device by a `gpu` test."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

CliRunner = pytest.importorskip("typer.testing").CliRunner
app = pytest.importorskip("headrace_trt.tools.cli").app

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "plugins" / "trt" / "README.md"
FOR_DEVICE = {"bench", "refit", "refit=true"}
NEEDS = "# needs a CUDA device"


def blocks(document, language):
    return re.findall(rf"```{language}\n(.*?)```", document.read_text("utf-8"), re.DOTALL)


def commands(document):
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ ")]


def program(text, folder):
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = re.findall(r"print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert done.stdout.splitlines() == said


def trt(words, *, status=0):
    assert words[:2] == ["headrace", "trt"], words
    done = CliRunner().invoke(app, words[2:], catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_readme_without_a_device(rtx, in_folder):
    for text in blocks(README, "python"):
        if not text.startswith(NEEDS):
            program(text, in_folder)
    for words in commands(README):
        if not FOR_DEVICE & set(words):
            trt(words)


@pytest.mark.gpu
def test_what_needs_a_device(in_folder):
    from headrace_trt.cuda import load_cuda

    if not load_cuda().device_count():
        pytest.skip("no CUDA device")
    for text in blocks(README, "python"):
        program(text, in_folder)
    for words in commands(README):
        trt(words)
