"""Folders beside sentence-transformers and transformers: the same vectors, scores and tokens, or a refusal."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from environments import environment_with
from processes import run_process

import headrace
from headrace import errors

pytest.importorskip("tokenizers")
pytest.importorskip("onnxruntime")

HERE = Path(__file__).parent
LIBRARIES = ("sentence-transformers==5.7.0", "transformers==5.24.0", "onnx", "onnxscript")
REFUSED = {"include_prompt", "truncate_dim", "other_case", "other_prefix"}
"""Cases that ask for what has no backend here, by the key that asks for it."""


@pytest.fixture(scope="module")
def peers(tmp_path_factory):
    """The folders, and what the libraries make of texts by them."""
    folder = tmp_path_factory.mktemp("peers")
    made = [environment_with(*LIBRARIES) / "python", HERE / "make_peers.py", folder]
    done = run_process(made)
    assert done.returncode == 0, done.stderr
    return folder


def farthest(folder, answer):
    """Return how far a folder's answers are from those of the library: 1 - cosine, or the difference of scores."""
    given = answer.get("texts") or answer["pairs"]
    requests = [{"data": one, **answer.get("more", {})} for one in given]
    with headrace.pipe(folder) as pipe:
        pipe(requests)
    found = np.stack([one["result"] for one in requests]).astype(np.float64)
    wanted = np.array(answer["found"])
    assert found.shape == wanted.shape
    if "pairs" in answer:
        return float(np.abs(found - wanted).max())
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(wanted, axis=1)
    assert np.allclose(np.linalg.norm(found, axis=1), np.linalg.norm(wanted, axis=1), rtol=1e-3)
    return float((1 - (found * wanted).sum(axis=1) / lengths).max())


def other_tokens(folder, answer):
    """Return the texts and pairs of which Tokenize makes other tokens than the library."""
    pipe = headrace.pipe(
        {"backend": "Tokenize", "tokenizer": str(folder / "tokenizer.json"), "max_length": 128}
    )
    given = [*zip(answer["texts"], answer["ids"], strict=True)]
    given += zip(map(tuple, answer["pairs"]), answer["pair_ids"], strict=True)
    wrong = []
    with pipe:
        for data, ids in given:
            try:
                found = pipe({"data": data})["result"].tolist()
            except errors.InputError:
                found = []
            if found != ids:
                wrong.append((data, found, ids))
    return wrong


@pytest.mark.peers
def test_vectors_scores_and_tokens_are_those_of_the_libraries(peers):
    answers = json.loads((peers / "answers.json").read_text())
    assert answers.keys() > REFUSED
    wrong = {}
    for name, answer in answers.items():
        if name.startswith("tokenizers/"):
            if others := other_tokens(peers / name, answer):
                wrong[name] = (len(others), others[0])
        elif name in REFUSED:
            with pytest.raises(errors.ConfigError) as caught:
                headrace.PipelineConfig.load(peers / name)
            assert all(one.path for one in caught.value.problems)
        elif (apart := farthest(peers / name, answer)) > (1e-4 if "pairs" in answer else 1e-5):
            wrong[name] = apart
    assert wrong == {}


if __name__ == "__main__":  # python test_text_peers.py FOLDER, of make_peers.py
    test_vectors_scores_and_tokens_are_those_of_the_libraries(Path(sys.argv[1]))
