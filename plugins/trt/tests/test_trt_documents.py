"""Every program and command of the README and the page is run; those for a device by `gpu` tests."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

CliRunner = pytest.importorskip("typer.testing").CliRunner
app = pytest.importorskip("headrace_trt.cli").app

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "plugins" / "trt" / "README.md"
PAGE = ROOT / "docs" / "tensorrt.md"
FOR_DEVICE = {"bench", "profile", "compare", "refit", "--refit"}
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
    assert (in_folder / "tiny.html").stat().st_size > 1000
    assert (in_folder / "part.onnx").exists()


def test_the_page_without_a_device(rtx, in_folder, small_net):
    import headrace

    small_net.rename(in_folder / "net.onnx")
    samples = np.random.default_rng(0).standard_normal((4, 3, 32, 32)).astype(np.float32)
    np.savez(in_folder / "samples.npz", x=samples)
    (in_folder / "net.toml").write_text(blocks(PAGE, "toml")[0])
    for words in commands(PAGE):
        if words[1] == "check":
            headrace.PipelineConfig.load(words[2])
        else:
            assert not FOR_DEVICE & set(words)
            trt(words)


@pytest.mark.gpu
def test_what_needs_a_device(in_folder):
    from headrace_trt.cuda import load_cuda

    if not load_cuda().device_count():
        pytest.skip("no CUDA device")
    pytest.importorskip("onnxruntime")
    for text in blocks(README, "python"):
        program(text, in_folder)
    for words in commands(README):
        trt(words)
