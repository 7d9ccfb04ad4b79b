"""Reranking and classification: the routes of Cohere, Jina, infinity and Text Embeddings Inference."""

from __future__ import annotations

import math

import httpx
import numpy as np
import pytest

import headrace
from headrace.errors import ConfigError
from headrace_serve import Server

QUERY, TEXTS = "abc", ["xyz", "abd", "abc", "a"]
COMMON = [0, 2, 3, 1]
"""How many letters of the query each text has."""


def common(pair):
    return float(len({*pair[0]} & {*pair[1]}))


@headrace.register("ApiRanks")
class Ranks(headrace.Backend):
    """Scores a pair by its common letters, as a cross-encoder: a logit, and its sigmoid."""

    max = 8
    writes = ("result", "logits", "labels", "tokens")

    def forward(self, batch):
        """Write the scores."""
        for request in batch:
            logits = np.array([common(request["data"]) - 2], np.float32)
            request["result"], request["logits"] = 1 / (1 + np.exp(-logits)), logits
            request["labels"], request["tokens"] = ["LABEL_0"], sum(map(len, request["data"]))


@headrace.register("ApiClasses")
class Classes(headrace.Backend):
    """Gives two classes for a text or pair: short, and long."""

    max = 8
    writes = ("result", "logits", "labels")

    def forward(self, batch):
        """Write the scores."""
        for request in batch:
            data = request["data"]
            length = len(data) if isinstance(data, str) else sum(map(len, data))
            request["logits"] = np.array([2, length], np.float32)
            request["result"] = request["logits"] / request["logits"].sum()
            request["labels"] = ["short", "long"]


@headrace.register("ApiBare")
def bare(pair):
    return np.array([common(pair)], np.float32)


@headrace.register("ApiLengths")
def lengths(text):
    return np.array([3.0 * len(text), 4.0 * len(text)], np.float32)


MODELS = {
    name: {"backend": f"Api{name.title()}", "max": 8}
    for name in ("ranks", "classes", "bare", "lengths")
}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


@pytest.fixture
def served(serving):
    return serving(MODELS, apis=["openai"])


def post(server, path, **body):
    return httpx.post(f"{server.url}{path}", json=body)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_documents_are_ordered_by_their_scores(served, path):
    asked = {"model": "ranks", "query": QUERY, "documents": TEXTS}
    made = post(served, path, **asked).json()
    assert [one["index"] for one in made["results"]] == [2, 1, 3, 0]
    for one in made["results"]:
        assert one["relevance_score"] == pytest.approx(sigmoid(COMMON[one["index"]] - 2), abs=1e-6)
        assert "document" not in one
    assert (made["model"], made["object"]) == ("ranks", "list")
    assert made["usage"]["total_tokens"] == sum(3 + len(one) for one in TEXTS)
    objects = [{"text": one} for one in TEXTS]
    more = {"top_n": 2, "return_documents": True}
    made = post(served, path, **{**asked, "documents": objects, **more}).json()
    assert [one["document"] for one in made["results"]] == [{"text": "abc"}, {"text": "abd"}]


def test_a_model_of_your_own_gives_a_bare_score(served):
    made = post(served, "/v1/rerank", model="bare", query=QUERY, documents=TEXTS).json()
    assert [one["relevance_score"] for one in made["results"]] == [3.0, 2.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"query": QUERY, "documents": TEXTS}, "field 'model' is missing"),
        ({"model": "ranks", "documents": TEXTS}, "field 'query' is missing"),
        ({"model": "ranks", "query": QUERY, "documents": []}, "a list of one or more texts"),
        ({"model": "ranks", "query": QUERY, "documents": ["a", 1]}, "documents 1: expected a text"),
        ({"model": "ranks", "query": QUERY, "documents": [{"title": "a"}]}, "documents 0"),
        ({"model": "ranks", "query": QUERY, "documents": TEXTS, "top_n": 0}, "top_n"),
        ({"model": "ranks", "query": QUERY, "documents": TEXTS, "top_n": True}, "a whole number"),
        ({"model": "ranks", "query": QUERY, "documents": TEXTS, "topn": 1}, "Did you mean 'top_n'"),
        ({"model": "classes", "query": QUERY, "documents": TEXTS}, "one score, got 2 classes"),
        ({"model": "ranks", "query": "a" * 40_000, "documents": ["b"] * 2000}, "characters"),
    ],
)
def test_wrong_requests_are_refused_by_field(served, body, words):
    answer = post(served, "/v1/rerank", **body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_classes_are_ordered_and_named(served):
    made = post(served, "/v1/classify", model="classes", input=["a", "abcdef"]).json()
    assert [[one["label"] for one in row] for row in made["data"]] == [
        ["short", "long"],
        ["long", "short"],
    ]
    assert made["data"][1][0]["score"] == pytest.approx(6 / 8)
    raw = post(served, "/v1/classify", model="classes", input="abc", raw_scores=True).json()
    assert raw["data"] == [[{"score": 3.0, "label": "long"}, {"score": 2.0, "label": "short"}]]
    refused = post(served, "/v1/classify", model="words", input="a")
    assert refused.status_code == 404


def test_the_routes_of_text_embeddings_inference(serving):
    ranks = serving({"ranks": MODELS["ranks"]}, apis=["tei"])
    asked = {"query": QUERY, "texts": TEXTS, "truncate": True}
    made = post(ranks, "/rerank", **asked).json()
    assert [one["index"] for one in made] == [2, 1, 3, 0]
    assert made[0]["score"] == pytest.approx(sigmoid(1), abs=1e-6)
    made = post(ranks, "/rerank", **asked, raw_scores=True, return_text=True).json()
    assert [(one["score"], one["text"]) for one in made[:2]] == [(1.0, "abc"), (0.0, "abd")]

    classes = serving({"classes": MODELS["classes"]}, apis=["tei"])
    long = [{"score": 0.75, "label": "long"}, {"score": 0.25, "label": "short"}]
    for given in ("abcdef", ["abcdef"], ["abc", "def"]):
        assert post(classes, "/predict", inputs=given).json() == long
    assert post(classes, "/predict", inputs=[["abcdef"], ["abc", "def"]]).json() == [long, long]

    lengths_of = serving({"lengths": MODELS["lengths"]}, apis=["tei"])
    assert np.allclose(post(lengths_of, "/embed", inputs=["a", "bc"]).json(), [[0.6, 0.8]] * 2)
    assert post(lengths_of, "/embed", inputs="ab", normalize=False).json() == [[6.0, 8.0]]
    assert post(lengths_of, "/embed", inputs="a", dimensions=1).json() == [[1.0]]
    assert httpx.get(f"{lengths_of.url}/health").status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/embed", {"inputs": []}, "a list of one or more texts"),
        ("/embed", {"inputs": "a", "dimensions": 9}, "dimensions: expected 1 to 2"),
        ("/embed", {"inputs": "a", "prompt_name": "query"}, "'prompt_name'"),
        ("/embed", {"inputs": "a", "truncation_direction": "Left"}, "expected Right"),
        ("/predict", {"inputs": ["a", "b", "c"]}, "one text or two"),
        ("/predict", {"inputs": [["a"], "b"]}, None),
        ("/rerank", {"query": "a"}, "field 'texts' is missing"),
    ],
)
def test_wrong_requests_of_text_embeddings_inference_are_refused_in_its_form(
    serving, path, body, words
):
    server = serving({"lengths": MODELS["lengths"]}, apis=["tei"])
    answer = post(server, path, **body)
    if words is None:
        assert answer.status_code == 200
        return
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert answer.json()["error_type"] == "Validation"


def test_text_embeddings_inference_has_one_model(serving):
    answer = post(serving(MODELS, apis=["tei"]), "/embed", inputs="a")
    assert answer.status_code == 400
    assert "a server of one model" in answer.json()["error"]


def test_no_other_route_lies_below_v2():
    from headrace_serve.apis.routes import routes_of

    assert "POST /v2/rerank" in routes_of(["openai"])
    with pytest.raises(ConfigError, match="no plugin has an API"):
        Server({"m": MODELS["bare"]}, port=0, apis=["cohere"])
