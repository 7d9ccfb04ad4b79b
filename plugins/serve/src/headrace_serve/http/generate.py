"""``generate`` and ``generate_stream`` as Triton's extension has them: inputs and outputs are fields of plain JSON."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import orjson

from headrace.errors import InputError, among
from headrace_formats import write_json
from headrace_serve.datatypes import as_json_values, from_json
from headrace_serve.http.events import event, send_events
from headrace_serve.http.replies import Reply, error_body
from headrace_serve.http.waiting import receive
from headrace_serve.inference.messages import Asked, Encoded
from headrace_serve.inference.parameters import without_nulls
from headrace_serve.inference.results import JSON
from headrace_serve.inference.tensors import check_items, complete
from headrace_serve.threads import call_by_size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from headrace_serve.errors import Refusal
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.inference.messages import Answer, Tensor
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port

__all__ = ["generate", "generate_stream"]

_NAMES = ("model_name", "model_version", "id")


async def generate(exchange: Exchange) -> Reply:
    """Answer with the result alone, as one object of JSON."""
    model, asked = await _asked(exchange)
    work = exchange.service.infer(model, asked, exchange, exchange.limits)
    answer = await exchange.while_connected(work)
    return Reply.of_inference([await _document(answer)], JSON)


async def generate_stream(exchange: Exchange) -> None:
    """Answer with an event for each part, and one for the result, unless that is None."""
    model, asked = await _asked(exchange)
    answers = exchange.service.answers(model, asked, exchange)

    def failed(why: Refusal) -> bytes:
        return event(error_body(why, exchange.identifier or exchange.header_id))

    await send_events(exchange, _events(answers), failed)


async def _events(
    answers: AsyncGenerator[tuple[bool, Answer | None]],
) -> AsyncGenerator[bytes]:
    async with contextlib.aclosing(answers) as each:
        async for _, answer in each:
            if answer is not None:
                yield event(await _document(answer))


async def _asked(exchange: Exchange) -> tuple[Model, Asked]:
    """Receive a request, and return its model and what it asks for."""
    model = exchange.enter()
    model, body = await receive(exchange, model, exchange.limits.max_json_bytes)
    document: Any = await exchange.parsed(body)
    if not isinstance(document, dict):
        raise InputError("the body", expected="a JSON object", got=type(document).__name__)
    fields = None
    if model.fields is not None:
        own = {name: document.pop(name) for name in model.fields.names if name in document}
        fields = await exchange.parsed(write_json(own).encode(), model.fields.read)
    document = without_nulls(document)
    identifier = document.pop("id", "")
    if not isinstance(identifier, str):
        raise InputError("id", expected="a string", got=type(identifier).__name__)
    exchange.identifier = identifier
    asked = Asked([], id=identifier, fields=fields)
    most_items = exchange.service.limits.narrowed(model.limits).max_items
    for field, value in _fields(document):
        _add(asked, model, field, value)
    for tensor in asked.inputs:
        check_items(model, tensor.name, tensor.shape, most_items)
    if asked.parameters.pop("binary_data_output", False) is not False:
        raise InputError("parameter 'binary_data_output'", expected="false: all outputs are JSON")
    complete(asked, exchange.header_id, exchange.headers, exchange)
    return model, asked


def _fields(document: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Return the fields of a body, those in its object ``parameters`` as if they lay beside it."""
    for name, value in document.items():
        if name == "parameters":
            if not isinstance(value, dict):
                raise InputError("parameters", expected="an object", got=type(value).__name__)
            yield from without_nulls(value).items()
        else:
            yield name, value


def _add(asked: Asked, model: Model, name: str, value: Any) -> None:
    """Add a field: an input where the model has one of its name, else a parameter."""
    port = model.signature.inputs.get(name)
    if port is not None:
        asked.inputs.append(_input(port, value))
        return
    if not isinstance(value, (str, int, float)):
        raise InputError(
            f"model {model.name!r} has no input {name!r}, and a parameter is a string, a number, true or false",
            hint=among(name, model.signature.inputs),
        )
    if name in asked.parameters:
        raise InputError(f"parameter {name!r} is there twice")
    asked.parameters[name] = value


def _input(port: Port, value: Any) -> Encoded:
    """Return the tensor for a value, or a list of them: the last axis of any length takes them, others have one element.

    Raises:
        InputError: The values do not fill the shape of the input.
    """
    values = value if isinstance(value, list) else [value]
    left, shape = len(values), list(port.shape)
    for axis in port.shape:
        if axis > 0:
            left, over = divmod(left, axis)
            left = -1 if over else left
    for place in reversed(range(len(shape))):
        if shape[place] < 0:
            shape[place], left = max(left, 0), min(left, 1)
    if left != 1 and values:
        raise InputError(
            f"input {port.name!r}", expected=f"values for {list(port.shape)}", got=f"{len(values)}"
        )
    return Encoded(port.name, port.datatype, tuple(shape), values, from_json)


async def _document(answer: Answer) -> bytes:
    elements = sum(tensor.array.size for tensor in answer.outputs)
    return await call_by_size(elements, _written, answer)


def _written(answer: Answer) -> bytes:
    """Return an answer as JSON: the elements of each output under its name, a single one without a list."""
    values = (answer.model.name, answer.model.version, answer.id)
    document = {name: value for name, value in zip(_NAMES, values, strict=True) if value}
    document |= {tensor.name: _value(tensor) for tensor in answer.outputs}
    return orjson.dumps({**document, **answer.parameters}, option=orjson.OPT_SERIALIZE_NUMPY)


def _value(tensor: Tensor) -> Any:
    values: Any = as_json_values(tensor.name, tensor.datatype, tensor.array)
    if tensor.parameters.get("content_type") == JSON:
        values = [orjson.Fragment(text) for text in values]
    return values[0] if tensor.array.size == 1 else values
