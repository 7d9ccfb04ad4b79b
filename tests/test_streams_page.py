"""The page about streams with state, followed; each stream is also run alone, without Headrace."""

from __future__ import annotations

import asyncio
import importlib
import shutil
import sys

import numpy as np
import onnxruntime
import pytest
from pages import Page, run

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(sys.platform == "win32" or not shutil.which("bash"), reason="needs bash"),
]


def alone(model, sound):
    """Run one stream through the model, piece by piece, and return how likely somebody speaks in each."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    state, before = np.zeros((2, 1, 128), np.float32), np.zeros(64, np.float32)
    chances = []
    for start in range(0, len(sound) - 511, 512):
        piece = sound[start : start + 512]
        feeds = {"input": np.concatenate([before, piece])[None], "state": state}
        output, state = session.run(["output", "stateN"], {**feeds, "sr": np.array(16_000)})
        before = piece[-64:]
        chances.append(float(output[0, 0]))
    return chances


def test_the_page_about_streams_finds_what_each_stream_has_alone(tmp_path, monkeypatch):
    text = Page("docs/streams.md").text.partition("\n## State between requests")[2]
    state = Page("docs/streams.md", text=text)
    state.write(tmp_path)
    printed = [run(command, tmp_path) for command in state.commands]
    monkeypatch.syspath_prepend(tmp_path)
    page = importlib.import_module("voice")
    model = str(tmp_path / "voice" / "silero_vad" / "data" / "silero_vad.onnx")
    *_, in_process, served = printed
    *streams, sessions = in_process.splitlines()
    assert served.splitlines() == streams
    found = {name: moments for name, *moments in map(str.split, streams)}
    chances = {name: alone(model, sound) for name, sound in page.STREAMS.items()}
    expected = {
        name: [f"{place * 512 / 16_000:.2f}" for place, chance in enumerate(each) if chance > 0.5]
        for name, each in chances.items()
    }
    assert found == expected
    monkeypatch.chdir(tmp_path)
    answered = asyncio.run(page.main())
    for each, wanted in zip(answered, chances.values(), strict=True):
        np.testing.assert_allclose(each, wanted, rtol=0, atol=1e-5)
    over_grpc = importlib.import_module("served").main()
    assert [*over_grpc] == [*chances]
    for name, wanted in chances.items():
        np.testing.assert_allclose(over_grpc[name], wanted, rtol=0, atol=1e-5)
    assert sessions.startswith("sessions: {'kept': 0,")
    heard = {name: bool(moments) for name, moments in expected.items()}
    assert heard == {"early": True, "late": True, "twice": True, "noise": False}
    assert all(0.5 <= float(moment) < 1.1 for moment in found["early"])
    assert all(2.0 <= float(moment) < 2.8 for moment in found["late"])
