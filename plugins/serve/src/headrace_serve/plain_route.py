"""``POST /run/{model}``: one input as the body, no protocol to learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import numpy as np
import orjson

from headrace.errors import InputError
from headrace_serve.exchange import Reply
from headrace_serve.messages import Asked, Tensor
from headrace_serve.results import JSON, as_json_text

if TYPE_CHECKING:
    from headrace_serve.exchange import Exchange
    from headrace_serve.messages import Answer

__all__ = ["run"]

_PARAMETERS = ("timeout", "priority")


async def run(exchange: Exchange) -> Reply:
    """Answer one request: the body is the one element of the model's input.

    ``timeout`` (microseconds) and ``priority`` stand in the query. The answer is ``{"result": ...}``
    as JSON, or the bytes of ``result`` where ``Accept`` asks for something else.
    """
    service = exchange.service
    model = exchange.model = service.find(exchange.path["model"])
    ports = model.signature.inputs
    port = next(iter(ports.values()))
    if len(ports) != 1 or not port.each or port.datatype != "BYTES":
        raise InputError(
            f"model {model.name!r} takes tensors, not a file",
            hint=f"Use POST /v2/models/{model.name}/infer.",
        )
    if exchange.headers.get("content-type", "").startswith("multipart/"):
        raise InputError("the body is multipart", expected="the file itself")
    parameters = _parameters(exchange)
    body = await exchange.body()
    model = service.find(model.name)  # another pipeline may be in its place by now
    element = np.empty(1, object)
    element[0] = body
    asked = Asked([Tensor(port.name, "BYTES", (1,), element)], None, "", parameters)
    answer = await exchange.while_connected(service.infer(model, asked))
    return _reply(answer, exchange.headers.get("accept", "*/*"))


def _parameters(exchange: Exchange) -> dict[str, Any]:
    found: dict[str, Any] = {}
    query = exchange.scope["query_string"].decode("latin-1")
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _PARAMETERS:
            raise InputError(f"query parameter {name!r}", expected=" or ".join(_PARAMETERS))
        if not value.isdecimal() or len(value) > 18:
            raise InputError(f"query parameter {name!r}", expected="a whole number")
        found[name] = int(value)
    if "traceparent" in exchange.headers:
        found["traceparent"] = exchange.headers["traceparent"]
    return found


def _reply(answer: Answer, accepted: str) -> Reply:
    values = {tensor.name: _value(tensor) for tensor in answer.outputs}
    only = next(iter(values.values())) if len(values) == 1 else None
    if not any(kind in accepted for kind in ("*/*", "application/*", JSON)):
        if not isinstance(only, (bytes, str)):
            raise InputError(f"accept: the result is no {accepted[:80]!r}", expected=JSON)
        raw = only.encode() if isinstance(only, str) else only
        return Reply.of_inference([raw], accepted.partition(",")[0].partition(";")[0].strip())
    texts = {name: _json_value(name, value) for name, value in values.items()}
    parts = [orjson.dumps(name) + b":" + text for name, text in texts.items()]
    return Reply.of_inference([b"{" + b",".join(parts) + b"}"], JSON)


def _value(tensor: Tensor) -> Any:
    """Give the one item of an output: text, bytes, JSON text as an object of this class, an array."""
    value = tensor.array[0]
    if tensor.parameters.get("content_type") == JSON:
        return _Written(value.encode() if isinstance(value, str) else value)
    return value


class _Written:
    """JSON that is written already."""

    def __init__(self, text: bytes) -> None:
        self.text = text


def _json_value(name: str, value: Any) -> bytes:
    if isinstance(value, _Written):
        return value.text
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(
                f"output {name!r} is no text", hint="Ask for its type with Accept, as image/jpeg."
            ) from None
    return as_json_text(value).encode()
