"""Reranking and classification of texts, as the clients of Cohere, Jina and infinity ask for them.

Source: the references of Cohere's rerank (versions 1 and 2) and of Jina's, and the OpenAPI description of infinity.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace.errors import InputError, among

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from headrace_serve.apis.routes import Answering

__all__ = [
    "classes_of", "classify", "fields_of", "floats_of", "only_model", "relevances_of", "rerank", "texts_of",
]  # fmt: skip

_MOST_CHARACTERS: Final = 1 << 26
"""The most characters of all pairs of one request, each with the query."""


def rerank(_: Any, content: Any) -> Answering:
    """Order documents by how well they answer a query."""
    body = fields_of(
        content, model=(str, ...), query=(str, ...), documents=(list, ...), top_n=(int, None), return_documents=(bool, False)
    )  # fmt: skip
    name, query, documents = body["model"], body["query"], body["documents"]
    texts = texts_of("documents", [_text_in(document) for document in documents])
    most = _most(body["top_n"], len(texts))
    scores, tokens = yield from relevances_of(name, query, texts)
    order = sorted(range(len(texts)), key=lambda index: -scores[index])[:most]
    with_text = body["return_documents"]
    rows = [
        {"index": i, "relevance_score": scores[i], **({"document": {"text": texts[i]}} if with_text else {})}
        for i in order
    ]  # fmt: skip
    meta = {"billed_units": {"search_units": 1}}
    said = {"id": uuid.uuid4().hex, "object": "list", "model": name, "results": rows, "meta": meta}
    return {**said, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}


def classify(_: Any, content: Any) -> Answering:
    """Give each text its classes, the most likely first."""
    body = fields_of(content, model=(str, ...), input=(None, ...), raw_scores=(bool, False))
    name, texts = body["model"], body["input"]
    texts = texts_of("input", [texts] if isinstance(texts, str) else texts)
    rows, tokens = yield from classes_of(name, texts, raw=body["raw_scores"])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "classify", "data": rows, "model": name, "usage": usage}


_KINDS: Final = {str: "a text", int: "a whole number", bool: "true or false", list: "a list"}


def fields_of(body: Any, **known: tuple[Any, Any]) -> dict[str, Any]:
    """Return the fields of a body, those that it lacks with their defaults.

    Args:
        body: The JSON of the body.
        known: Of each field its type, None for any, and its default. ``...``: it is needed.

    Raises:
        InputError: The body has another field, or lacks one, or a value of another type.
    """
    if not isinstance(body, dict):
        raise InputError("the body", expected="a JSON object", got=type(body).__name__)
    fields = {name: default for name, (_, default) in known.items()}
    for name, value in body.items():
        if name not in known:
            raise InputError(f"there is no field {name!r}", hint=among(name, known))
        kind = known[name][0]
        if value is None:
            continue
        if kind is not None and type(value) is not kind:
            raise InputError(name, expected=_KINDS[kind], got=repr(value)[:40])
        fields[name] = value
    for name, value in fields.items():
        if value is ...:
            raise InputError(f"field {name!r} is missing")
    return fields


def texts_of(name: str, given: Any) -> list[str]:
    """Return a list of texts, of one or more.

    Raises:
        InputError: It is none.
    """
    if not isinstance(given, list) or not given:
        raise InputError(name, expected="a list of one or more texts", got=repr(given)[:40])
    for index, text in enumerate(given):
        if not isinstance(text, str):
            raise InputError(f"{name} {index}", expected="a text", got=repr(text)[:40])
    return given


def relevances_of(
    name: str, query: str, texts: Sequence[str], *, raw: bool = False
) -> Generator[Any, Any, tuple[list[float], int]]:
    """Return how well each text answers a query, from 0 to 1 unless ``raw``, and the number of all tokens.

    Raises:
        InputError: The model gives not one score for two texts, or the texts are too long together.
    """
    if (count := len(query) * len(texts) + sum(map(len, texts))) > _MOST_CHARACTERS:
        expected = f"at most {_MOST_CHARACTERS} characters, the query counted for each text"
        raise InputError("the texts", expected=expected, got=str(count))
    rows, tokens = yield from _scored(name, [[query, text] for text in texts])
    if (count := len(rows[0][2])) != 1:
        raise InputError(
            f"model {name!r} ranks no texts", expected="one score", got=f"{count} classes"
        )
    relevances = [
        float(scores[0] if logits is None else logits[0] if raw else _sigmoid(logits)[0])
        for _, logits, scores in rows
    ]
    return relevances, tokens


def classes_of(
    name: str, inputs: Sequence[Any], *, raw: bool
) -> Generator[Any, Any, tuple[list[list[dict[str, Any]]], int]]:
    """Return the classes of each text or pair of texts, the most likely first, and the number of all tokens."""
    rows, tokens = yield from _scored(name, inputs)
    classes = []
    for labels, logits, scores in rows:
        shown = logits if raw and logits is not None else scores
        order = np.argsort(-shown, kind="stable")
        classes.append([{"score": float(shown[index]), "label": labels[index]} for index in order])
    return classes, tokens


def _scored(
    name: str, inputs: Sequence[Any]
) -> Generator[Any, Any, tuple[list[tuple[list[str], Any, Any]], int]]:
    """Run a request for each text or pair. Return labels, logits and scores of each, and the number of all tokens."""
    requests, results = yield name, [{"data": text} for text in inputs]
    rows = []
    for request, result in zip(requests, results, strict=True):
        problem = f"model {name!r} gives no scores"
        scores = floats_of(result, problem, "a number for each class")
        labels = request.get("labels") or [f"LABEL_{index}" for index in range(len(scores))]
        rows.append((labels, request.get("logits"), scores))
    return rows, sum(int(scored.get("tokens", 0)) for scored in requests)


def floats_of(result: Any, problem: str, expected: str) -> Any:
    """Return a result that is an array of one axis, not empty, of floats.

    Raises:
        InputError: It is something else. The text says the problem, and what was expected.
    """
    array = np.asarray(result) if hasattr(result, "__array__") else np.empty(0)
    if array.ndim != 1 or not len(array) or array.dtype.kind != "f":
        got = f"{array.dtype} {list(array.shape)}" if array.size else type(result).__name__
        raise InputError(problem, expected=expected, got=got)
    return array


def only_model(asked: Any, problem: str) -> str:
    """Return the name of the only model that the client may use.

    Raises:
        InputError: There are several, or none. The text begins with the problem.
    """
    names: list[str] = asked.models()
    if len(names) != 1:
        served = ", ".join(names) or "none"
        raise InputError(problem, expected="a server of one model", got=served)
    return names[0]


def _sigmoid(logits: Any) -> Any:
    return 0.5 * (1 + np.tanh(0.5 * logits))


def _text_in(document: Any) -> Any:
    """Return the text of a document: a text, or an object with it."""
    return document.get("text") if isinstance(document, dict) else document


def _most(given: int | None, count: int) -> int:
    if given is not None and given < 1:
        raise InputError("top_n", expected="a number of 1 or more", got=str(given))
    return count if given is None else given
