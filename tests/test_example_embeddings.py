"""The example of embeddings: its folder is built, checked, and answers as its page says."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
import pytest

import headrace_serve

pytestmark = pytest.mark.skipif(find_spec("tokenizers") is None, reason="needs tokenizers")

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "embeddings"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """The folder, as the script builds it."""
    folder = tmp_path_factory.mktemp("made") / "encoder"
    subprocess.run([sys.executable, FOLDER / "prepare.py", folder], check=True)
    return folder


def test_the_folder_is_a_configuration(encoder):
    command = [sys.executable, "-m", "headrace", "check", encoder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Pool(mean,width=384)" in done.stdout


def test_it_answers_the_request_of_the_client(encoder):
    with headrace_serve.Server([str(encoder)], port=0, apis=["openai"]) as server:
        body = {"model": "encoder", "input": ["w1 w2 w3", "w3 w2 w1 w0"]}
        made = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).json()
    first, second = (np.array(one["embedding"]) for one in made["data"])
    assert first.shape == (384,)
    assert np.allclose([first @ first, second @ second], 1, atol=1e-5)
    assert made["usage"]["prompt_tokens"] == 5 + 6
