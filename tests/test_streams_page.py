"""The page about streams with state, followed; each stream is also run alone, without Headrace."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs" / "streams.md"

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash"),
]


def alone(model, sound):
    """Run one stream through the model, piece by piece, and give the moments of speech."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    state, before = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
    spoken = []
    for start in range(0, len(sound) - 511, 512):
        piece = sound[start : start + 512]
        feeds = {"input": np.concatenate([before, piece])[None], "state": state}
        output, state = session.run(["output", "stateN"], {**feeds, "sr": np.array(16_000)})
        before = piece[-64:]
        if output[0, 0] > 0.5:
            spoken.append(start / 16_000)
    return spoken


def test_the_page_about_streams_finds_what_each_stream_has_alone(page_steps, tmp_path):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    printed = ""
    for file, text in page_steps(PAGE):
        if file:
            (tmp_path / file).write_text(text, encoding="utf-8")
            continue
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": path},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        printed = done.stdout
    spec = importlib.util.spec_from_file_location("voice_of_the_page", tmp_path / "voice.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    model = str(tmp_path / "voice" / "silero_vad" / "data" / "silero_vad.onnx")
    *streams, mean = printed.splitlines()
    found = {name: moments for name, *moments in map(str.split, streams)}
    expected = {
        name: [f"{moment:.2f}" for moment in alone(model, sound)]
        for name, sound in page.STREAMS.items()
    }
    assert found == expected
    heard = {name: bool(moments) for name, moments in expected.items()}
    assert heard == {"early": True, "late": True, "twice": True, "noise": False}
    assert all(0.5 <= float(moment) < 1.1 for moment in found["early"])
    assert all(2.0 <= float(moment) < 2.8 for moment in found["late"])
    assert 1 <= float(mean.rpartition(" ")[2]) <= 4
