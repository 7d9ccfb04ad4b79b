"""The example of embeddings: its folder is built, checked, and answers as its page says."""

from __future__ import annotations

from importlib.util import find_spec

import httpx
import numpy as np
import pytest
from environments import environment_with
from pages import Page, asked, copy_examples, run, serving

pytestmark = pytest.mark.skipif(find_spec("tokenizers") is None, reason="needs tokenizers")

PAGE = Page("examples/embeddings/README.md")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with the model at its place in the repository, as the script builds it."""
    folder = copy_examples(tmp_path_factory.mktemp("root"), "embeddings")
    run(PAGE.command("prepare.py"), folder)
    return folder


def test_the_folder_is_a_configuration(encoder):
    assert "Pool(mean,width=384)" in run(PAGE.command("headrace check"), encoder)


def test_it_answers_the_request_of_the_client(encoder):
    with serving(PAGE.command("headrace serve"), encoder) as url:
        body = {"model": "encoder", "input": ["w1 w2 w3", "w3 w2 w1 w0"]}
        answer = httpx.post(f"{url}/v1/embeddings", json=body, timeout=60).json()
    first, second = (np.array(vector["embedding"]) for vector in answer["data"])
    assert first.shape == (384,)
    assert np.allclose([first @ first, second @ second], 1, atol=1e-5)
    assert answer["usage"]["prompt_tokens"] == 5 + 6


@pytest.mark.peers
def test_the_client_of_openai_prints_both_vectors(encoder):
    client = PAGE.command("client.py").replace("python", f"{environment_with('openai')}/python", 1)
    with serving(PAGE.command("headrace serve"), encoder) as url:
        length, tokens = asked(client, url, encoder).splitlines()
    assert length.startswith("384 numbers each")
    assert tokens == f"{5 + 6} tokens"
