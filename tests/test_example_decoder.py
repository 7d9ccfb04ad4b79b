"""The decoder of characters: what it writes in company is what a loop over one text alone writes."""

from __future__ import annotations

import json

import numpy as np
import onnxruntime
import pytest
from pages import Page, copy_examples, run

import headrace

PAGE = Page("examples/decoder/README.md")
PROMPTS = ["Beautiful is ", "Now", "E", "In the face of ambiguity, ", "There should be one", "If"]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A copy of the example, with a model that was trained for a moment."""
    root = copy_examples(tmp_path_factory.mktemp("root"), "decoder")
    trained = run(f"{PAGE.command('train.py')} --steps 60", root)
    assert float(trained.split(", ")[2].split()[0]) < 2.7  # it has learned something
    return root / "examples" / "decoder"


def by_hand(folder, prompt, seed=None, length=80):
    """Write one text with the model alone, a character per run."""
    letters = json.loads((folder / "made" / "letters.json").read_text(encoding="utf-8"))
    session = onnxruntime.InferenceSession(
        folder / "made" / "decoder.onnx", providers=["CPUExecutionProvider"]
    )
    state, text = np.zeros((1, 96), np.float32), ""
    todo = list(prompt)
    while True:
        token = np.array([letters.index(todo.pop(0))])
        logits, state = session.run(["logits", "stateN"], {"token": token, "state": state})
        if todo:
            continue
        if seed is None:
            best = logits[0].argmax()
        else:
            noise = np.random.default_rng((seed, len(text))).gumbel(size=logits[0].shape)
            best = (logits[0] / 0.7 + noise).argmax()
        text += letters[best]
        todo.append(letters[best])
        if letters[best] == "." or len(text) >= length:
            return text


def test_texts_written_together_are_those_written_alone(example):
    requests = [{"data": prompt} for prompt in PROMPTS]
    requests += [{"data": prompt, "seed": 7, "length": 25} for prompt in PROMPTS]
    with headrace.pipe(example / "decoder.toml") as pipe:
        sent = [{**request, "node_name": "begin"} for request in requests]
        pipe(sent)
        *parts, last = pipe.stream({"data": "Now is "})
        counted = pipe.stats()["iterate"]["write"]
    for request, answered in zip(requests, sent, strict=True):
        alone = by_hand(
            example, request["data"], request.get("seed"), length=request.get("length", 80)
        )
        assert answered["result"] == alone
    assert "".join(parts) == last["result"] == by_hand(example, "Now is ")
    assert counted["in_flight"] > 2  # they have shared steps


def test_a_prompt_that_the_model_cannot_read_fails_alone(example):
    with (
        headrace.pipe(example / "decoder.toml") as pipe,
        pytest.raises(headrace.errors.InputError, match="a text of these characters"),
    ):
        pipe({"data": "Größe"})


def test_the_program_shows_what_it_writes(example):
    *texts, counted = run(PAGE.command("write.py"), example.parents[1]).splitlines()
    assert texts[0] == f"Beautiful is |{by_hand(example, 'Beautiful is ')}"
    assert len(texts) == 6
    assert counted.endswith("texts in each")
