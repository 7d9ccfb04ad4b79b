"""OpenAI's routes: embeddings of models that give vectors, completions of models that give texts.

Source: the OpenAPI description that OpenAI publishes of its API, and what its client for Python sends and reads.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import ContractError, InputError
from headrace_serve.apis.scores import classify, floats_of, rerank

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headrace_serve.apis.routes import Answering

__all__ = ["ROUTES", "shorter", "vector_of"]

_MOST = 2048
"""The most inputs of one request, as OpenAI has it."""


_SPARE: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(("user", "metadata", "store", "safety_identifier", "service_tier"), None),
    **dict.fromkeys(("prompt_cache_key", "prompt_cache_retention", "parallel_tool_calls"), None),
    "logprobs": (False,),
    "echo": (False,),
    "best_of": (1,),
    "frequency_penalty": (0, 0.0),
    "presence_penalty": (0, 0.0),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none",),
    "tools": ([],),
}
"""Fields that change no answer here, with the values of which that holds. None: with any."""


async def models(asked: Any) -> Any:
    """List the models that the key may use."""
    return {"object": "list", "data": [_row(name) for name in asked.models()]}


async def model(asked: Any) -> Any:
    """Describe a model."""
    return _row(asked.model(asked.path["model"])["name"])


def _row(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "headrace"}


def embeddings(_: Any, content: Any) -> Answering:
    """Give the vectors of texts, or of lists of tokens: each is a request, and shares batches with all others."""
    body = _fields(content)
    name, inputs = _name(body), _inputs(body.pop("input", None))
    form, width = body.pop("encoding_format", "float"), body.pop("dimensions", None)
    if form not in ("float", "base64"):
        raise InputError("encoding_format", expected="float or base64", got=repr(form)[:40])
    if width is not None and (type(width) is not int or width < 1):
        raise InputError("dimensions", expected="a number of 1 or more", got=repr(width)[:40])
    values = [{"data": text} for text in inputs]
    requests, results = yield name, values, body, _spare_in(body)
    vectors = [vector_of(result, name) for result in results]
    if width is not None:
        vectors = [shorter(vector, width) for vector in vectors]
    rows = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, form)}
        for index, vector in enumerate(vectors)
    ]
    tokens = sum(_tokens(request) for request in requests)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": rows, "model": name, "usage": usage}


def _inputs(given: Any) -> list[Any]:
    """Return the texts and lists of tokens of a request."""
    several = isinstance(given, list) and not (given and type(given[0]) is int)
    inputs = given if several else [given]
    if not 0 < len(inputs) <= _MOST:
        raise InputError("input", expected=f"1 to {_MOST} texts", got=str(len(inputs)))
    for index, text in enumerate(inputs):
        tokens = isinstance(text, list) and all(type(token) is int for token in text)
        if not text or not (tokens or isinstance(text, str)):
            got = repr(text)[:40]
            expected = "a text or a list of tokens, neither of them empty"
            raise InputError(f"input {index}" if several else "input", expected=expected, got=got)
    return inputs


def vector_of(result: Any, name: str) -> Any:
    """Return the vector that a model gives, ``float32 [width]``.

    Raises:
        InputError: It gives something else.
        ContractError: It holds NaN or infinity.
    """
    vector = floats_of(result, f"model {name!r} gives no embeddings", "a vector of floats")
    if not np.isfinite(vector).all():
        raise ContractError(f"the vector of model {name!r} holds NaN or infinity")
    return vector.astype(np.float32, copy=False)


def shorter(vector: Any, width: int) -> Any:
    """Return the beginning of a vector, of length 1.

    Raises:
        InputError: The vector has not so many elements.
    """
    if not 0 < width <= len(vector):
        raise InputError("dimensions", expected=f"1 to {len(vector)}", got=str(width))
    part = vector[:width]
    return part / max(float(np.linalg.norm(part)), 1e-12)


def _encoded(vector: Any, form: str) -> Any:
    if form == "float":
        return vector
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _completions(*, chat: bool) -> Callable[[Any], Any]:
    """Return the function of a route: of messages, or else of a prompt."""
    kind, prefix = ("chat.completion", "chatcmpl-") if chat else ("text_completion", "cmpl-")

    async def completions(asked: Any) -> Any:
        """Complete what the client sends, by a model that gives texts."""
        body = _fields(await asked.json())
        name, stream = _name(body), _flag(body, "stream")
        usage = _usage_wanted(body.pop("stream_options", {}))
        count = body.pop("n", 1)
        if type(count) is not int or count != 1:
            raise InputError("n", expected="1", got=repr(count)[:40])
        text = body.pop("messages" if chat else "prompt", None)
        given = [_messages(text)] if chat else _prompts(text)
        if stream and len(given) > 1:
            raise InputError("prompt", expected="one text with stream", got=str(len(given)))
        values = [{"data": prompt} for prompt in given]
        requests = await asked.requests(name, values, body, _spare_in(body))
        created = int(time.time())  # noqa: TID251 - clients read it as a date
        head = {"id": prefix + uuid.uuid4().hex, "created": created, "model": name}
        if stream:
            return _chunks(
                asked, name, requests[0], usage=usage, choice=partial(_choice, chat=chat, part=True),
                head={**head, "object": "chat.completion.chunk" if chat else kind},
            )  # fmt: skip
        completed = await _gathered([_completed(asked, name, request) for request in requests])
        choices = [
            {**_choice(text, "stop", chat=chat, part=False), "index": index}
            for index, (text, _) in enumerate(completed)
        ]
        return {
            **head,
            "object": kind,
            "choices": choices,
            "usage": _usage(requests, sum(n for _, n in completed)),
        }

    return completions


async def _completed(asked: Any, name: str, request: Any) -> tuple[str, int]:
    """Return the whole text of a request, and the number of its parts."""
    texts: list[Any] = []
    result = await asked.run(name, request, texts.append)
    if not texts and result is not None:
        texts = [result]
    read = _reader(name)
    return "".join([*map(read, texts), read(b"", end=True)]), len(texts)


async def _gathered(works: list[Any]) -> list[Any]:
    """Await works side by side. If one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _chunks(
    asked: Any, name: str, request: Any, *, usage: bool, choice: Any, head: dict[str, Any]
) -> AsyncIterator[Any]:
    """Give the events of a stream: each part as it comes, the end, and the usage if it is wanted."""
    count, more, read = 0, {"usage": None} if usage else {}, _reader(name)
    async for is_last, part in asked.parts(name, request):
        if not is_last or not (count or part is None):
            yield {**head, **more, "choices": [choice(read(part), None, begins=not count)]}
            count += 1
    if rest := read(b"", end=True):
        yield {**head, **more, "choices": [choice(rest, None, begins=False)]}
    yield {**head, **more, "choices": [choice(None, "stop")]}
    if usage:
        yield {**head, "choices": [], "usage": _usage([request], count)}
    yield "[DONE]"


def _choice(
    text: str | None, end: str | None, *, chat: bool, part: bool, begins: bool = True
) -> dict[str, Any]:
    said: dict[str, Any] = {"text": text or ""}
    if chat:
        role = {"role": "assistant"} if begins else {}  # clients join the texts of all parts
        message = {} if text is None else {**role, "content": text}
        said = {"delta" if part else "message": message}
    return {"index": 0, **said, "finish_reason": end, "logprobs": None}


def _messages(given: Any) -> Any:
    if not isinstance(given, list) or not given:
        raise InputError("messages", expected="a list of messages", got=repr(given)[:40])
    for index, message in enumerate(given):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            expected = "an object with a role, which is a text"
            raise InputError(f"message {index}", expected=expected, got=repr(message)[:40])
        content = message.get("content")
        parts = isinstance(content, list) and all(isinstance(part, dict) for part in content)
        lacks = content is None and message["role"] == "assistant"  # it calls tools instead
        if not (isinstance(content, str) or parts or lacks):
            expected, got = "a text, or a list of objects", repr(content)[:40]
            raise InputError(f"content of message {index}", expected=expected, got=got)
    return given


def _prompts(given: Any) -> list[str]:
    prompts = given if isinstance(given, list) else [given]
    if not 0 < len(prompts) <= _MOST:
        raise InputError("prompt", expected=f"1 to {_MOST} texts", got=str(len(prompts)))
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt:
            expected = "a text, or a list of texts, none of them empty"
            raise InputError("prompt", expected=expected, got=repr(prompt)[:40])
    return prompts


def _flag(fields: dict[str, Any], name: str) -> bool:
    """Take a field that is true or false out of an object; false where it is not there, or null."""
    value = fields.pop(name, None)
    if value is not None and type(value) is not bool:
        raise InputError(name, expected="true or false", got=repr(value)[:40])
    return bool(value)


def _usage_wanted(options: Any) -> bool:
    known = {"include_usage", "include_obfuscation"}  # of which the second adds random letters
    if not isinstance(options, dict) or not options.keys() <= known:
        raise InputError("stream_options", expected="include_usage", got=repr(options)[:40])
    _flag(options, "include_obfuscation")
    return _flag(options, "include_usage")


def _reader(name: str) -> Callable[..., str]:
    """Return what reads the parts of a text. Bytes may end within a character, which the next part goes on with."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(part: Any, *, end: bool = False) -> str:
        if isinstance(part, bytes):
            part = decoder.decode(part, end)
        if not isinstance(part, str):
            raise InputError(f"model {name!r} gives no texts", got=type(part).__name__)
        return part

    return read


def _spare_in(body: dict[str, Any]) -> list[str]:
    """Return the fields of a body that change no answer, unless the model declares them."""
    return [key for key in body if key in _SPARE and _changes_nothing(body[key], _SPARE[key])]


def _changes_nothing(value: Any, known: tuple[Any, ...] | None) -> bool:
    return known is None or any(type(value) is type(same) and value == same for same in known)


def _fields(body: Any) -> dict[str, Any]:
    """Return the fields of a body that are not null."""
    if not isinstance(body, dict):
        raise InputError("the body", expected="a JSON object", got=type(body).__name__)
    if "data" in body:  # the key of a request under which the input is
        hint = "Say it as input, messages or prompt."
        raise InputError("there is no field 'data'", hint=hint)
    return {key: value for key, value in body.items() if value is not None}


def _name(body: dict[str, Any]) -> str:
    name = body.pop("model", None)
    if not isinstance(name, str):
        raise InputError("model", expected="the name of a model", got=repr(name)[:40])
    return name


def _tokens(request: dict[str, Any]) -> int:
    return int(request.get("tokens", 0))


def _usage(requests: list[dict[str, Any]], count: int) -> dict[str, int]:
    tokens = sum(map(_tokens, requests))
    return {"prompt_tokens": tokens, "completion_tokens": count, "total_tokens": tokens + count}


def _error(status: int, code: str, text: str) -> Any:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": text, "type": kind, "param": None, "code": code}}


ROUTES = {
    "GET /v1/models": models,
    "GET /v1/models/{model}": model,
    "POST /v1/embeddings": embeddings,
    "POST /v1/chat/completions": _completions(chat=True),
    "POST /v1/completions": _completions(chat=False),
    "POST /v1/rerank": rerank,
    "POST /v2/rerank": rerank,
    "POST /v1/classify": classify,
    "error": _error,
}
"""The routes, and the form of their errors."""
