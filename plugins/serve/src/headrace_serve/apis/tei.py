"""The routes of Text Embeddings Inference: vectors, ranks and classes of texts, by the only model of the server.

Source: the OpenAPI description of Text Embeddings Inference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_serve.apis.openai import shorter, vector_of
from headrace_serve.apis.scores import classes_of, fields_of, only_model, relevances_of, texts_of

if TYPE_CHECKING:
    from headrace_serve.apis.routes import Answering

__all__ = ["ROUTES"]


async def health(asked: Any) -> Any:
    """Say that the server takes requests: 503 until it does."""
    asked.check_ready()
    return {}


def embed(asked: Any, content: Any) -> Answering:
    """Give the vectors of texts."""
    body, name = _fields(
        asked, content, inputs=(None, ...), normalize=(bool, True), prompt_name=(str, None), dimensions=(int, None)
    )  # fmt: skip
    texts, prompt = body["inputs"], body["prompt_name"]
    texts = texts_of("inputs", [texts] if isinstance(texts, str) else texts)
    more = {} if prompt is None else {"prompt_name": prompt}
    _, results = yield name, [{"data": text, **more} for text in texts]
    vectors = [vector_of(result, name) for result in results]
    if body["dimensions"] is not None:
        vectors = [shorter(vector, body["dimensions"]) for vector in vectors]
    if body["normalize"]:
        vectors = [v / np.float32(max(float(np.linalg.norm(v)), 1e-12)) for v in vectors]
    return vectors


def rank(asked: Any, content: Any) -> Answering:
    """Order texts by how well they answer a query."""
    body, name = _fields(
        asked, content, query=(str, ...), texts=(list, ...), raw_scores=(bool, False), return_text=(bool, False)
    )  # fmt: skip
    texts = texts_of("texts", body["texts"])
    scores, _ = yield from relevances_of(name, body["query"], texts, raw=body["raw_scores"])
    rows: list[dict[str, Any]] = [{"index": i, "score": score} for i, score in enumerate(scores)]
    if body["return_text"]:
        rows = [{**row, "text": text} for row, text in zip(rows, texts, strict=True)]
    return sorted(rows, key=lambda row: -row["score"])


def predict(asked: Any, content: Any) -> Answering:
    """Give the classes of a text, of two texts, or of each of a list of these in lists."""
    body, name = _fields(asked, content, inputs=(None, ...), raw_scores=(bool, False))
    texts = body["inputs"]
    several = isinstance(texts, list) and any(isinstance(element, list) for element in texts)
    inputs = [_input(element) for element in texts] if several else [_input(texts)]
    classes, _ = yield from classes_of(name, inputs, raw=body["raw_scores"])
    return classes if several else classes[0]


def _input(given: Any) -> Any:
    """Return a text, or a list of two."""
    texts = texts_of("inputs", [given] if isinstance(given, str) else given)
    if len(texts) > 2:
        raise InputError("inputs", expected="one text or two", got=str(len(texts)))
    return texts[0] if len(texts) == 1 else texts


def _fields(asked: Any, content: Any, **known: tuple[Any, Any]) -> tuple[dict[str, Any], str]:
    """Return the fields of a body, and the name of the model, whose tokenizer decides what becomes of long texts."""
    body = fields_of(content, **known, truncate=(bool, None), truncation_direction=(str, None))
    name = only_model(asked, "Text Embeddings Inference")
    if body["truncation_direction"] not in {None, "Right"}:
        raise InputError("truncation_direction", expected="Right", got=body["truncation_direction"])
    return body, name


def _error(status: int, code: str, text: str) -> Any:
    kinds = {429: "Overloaded", 503: "Unhealthy"}
    kind = kinds.get(status, "Validation" if status < 500 else "Backend")
    return {"error": text, "error_type": kind, "code": code}


ROUTES = {
    "GET /health": health,
    "POST /embed": embed,
    "POST /rerank": rank,
    "POST /predict": predict,
    "open": ["GET /health"],
    "error": _error,
}
"""The routes, and the form of their errors. Health needs no key."""
