"""The detector as an engine: built for real, and its page; read on a device by a `gpu` test."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import headrace

ROOT = Path(__file__).resolve().parents[1]
DETECT, OCR = ROOT / "examples" / "detect", ROOT / "examples" / "ocr"
FOR_DEVICE = ("run", "examples/ocr/draw.py", "examples/detect/compare.py")


@pytest.fixture(scope="module")
def compare():
    spec = importlib.util.spec_from_file_location("detect_compare", DETECT / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """The examples beside each other, as in the repository."""
    folder = tmp_path_factory.mktemp("checkout")
    for example in (DETECT, OCR):
        left_out = shutil.ignore_patterns("made", "__pycache__")
        shutil.copytree(example, folder / "examples" / example.name, ignore=left_out)
    return folder


def commands() -> list[str]:
    text = (DETECT / "README.md").read_text("utf-8")
    found = "".join(re.findall(r"```console\n(.*?)```", text, re.DOTALL))
    return [line[2:] for line in found.splitlines() if line.startswith("$ ")]


def follow(command: str, folder: Path) -> None:
    words = shlex.split(command)
    target = None
    if ">" in words:
        place = words.index(">")
        target, words = folder / words[place + 1], words[:place]
    words[:1] = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "headrace"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if target is not None:
        target.write_text(done.stdout, "utf-8")


def test_the_commands_that_need_no_device(checkout, tmp_path, monkeypatch):
    pytest.importorskip("tensorrt_rtx")
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path))
    for command in commands():
        if not set(shlex.split(command)[1:2]) & set(FOR_DEVICE):
            follow(command, checkout)
    made = checkout / "examples" / "detect" / "made"
    assert (made / "det.plan").stat().st_size > 1 << 20
    assert "<svg" in (made / "det.html").read_text("utf-8")


@pytest.mark.gpu
def test_pages_are_read_as_by_the_cpu(checkout, tmp_path, monkeypatch):
    from headrace_trt.cuda import load_cuda

    if not load_cuda().device_count():
        pytest.skip("no CUDA device")
    monkeypatch.setenv("HEADRACE_TRT_CACHE", str(tmp_path))
    for command in commands():
        follow(command, checkout)


def test_five_lines_move_the_page_to_tensorrt(checkout):
    lines = (OCR / "page_trt.toml").read_text("utf-8").splitlines()
    assert len(lines) == 5
    follow("python examples/ocr/prepare.py", checkout)
    config = headrace.PipelineConfig.load(str(checkout / "examples" / "ocr" / "page_trt.toml"))
    plain = headrace.PipelineConfig.load(str(checkout / "examples" / "ocr" / "page.toml"))
    told, before = config.to_dict(), plain.to_dict()
    for node in ("detect", "upright", "read"):
        assert told[node]["backend"].replace("TensorrtTensor", "OnnxTensor").replace(
            "(longest=2976)", ""
        ) == before[node]["backend"]  # fmt: skip
        assert told[node]["model"] == before[node]["model"]


def test_how_boxes_and_text_are_compared(compare):
    box = np.float32([[0, 0], [10, 0], [10, 10], [0, 10]])
    assert compare.cover(box, box) == pytest.approx(1)
    beside, away = box + np.float32([5, 0]), box + np.float32([20, 0])
    assert compare.cover(box, beside) == pytest.approx(1 / 3)
    assert compare.cover(box, away) == 0
    assert compare.mean_cover([box], [box, away]) == pytest.approx(0.5)
    assert compare.mean_cover([box, away], [box]) == pytest.approx(0.5)
    assert (compare.mean_cover([], []), compare.mean_cover([], [box])) == (1, 0)
    assert (compare.different("abc", "abc"), compare.different("axc", "abc")) == (0, 1)
    assert compare.different("", "abc") == 3
    page = {"lines": [{"quad": box.tolist(), "text": "abc"}]}
    other = {"lines": [{"quad": box.tolist(), "text": "abd"}]}
    assert compare.compare([page, {"lines": []}], [other, {"lines": []}]) == (1.0, 1, 3)
