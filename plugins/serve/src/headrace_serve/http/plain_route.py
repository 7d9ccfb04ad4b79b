"""``POST /run/{model}``: the body is the file, the query has the other inputs; no client library is needed."""

from __future__ import annotations

import asyncio
import contextlib
import re
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import numpy as np
import orjson

from headrace import keys
from headrace.errors import HeadraceError, InputError
from headrace_formats import quality
from headrace_serve.client_input import loads, whole_number
from headrace_serve.datatypes import from_text, raw_bytes
from headrace_serve.errors import BodyTooLargeError, MediaTypeError, refusal
from headrace_serve.http.bodies import SMALL_JSON_BYTES
from headrace_serve.http.endpoints import Direct, completed
from headrace_serve.http.events import EVENTS, event, send_events
from headrace_serve.http.multipart import read_form
from headrace_serve.http.replies import Reply, error_body
from headrace_serve.http.waiting import receive, wait
from headrace_serve.inference.messages import Tensor
from headrace_serve.inference.parameters import TRACE, with_trace
from headrace_serve.inference.requests import request_of
from headrace_serve.inference.results import (
    JSON,
    as_json_text,
    as_plain_array,
    elements_of,
    outputs_of,
)
from headrace_serve.threads import MANY, call_by_size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from headrace_serve.errors import Refusal
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port

__all__ = ["RUN", "Query", "file_input", "reads_json", "run"]

_PARAMETERS = ("timeout", "priority")
_MOST_PARAMETERS = 100
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n\x1a\n": "image/png", b"GIF8": "image/gif"}
"""The first bytes of picture files, with their type. WebP is not listed, because `_kind_of` checks two places of it.
"""

_ANY_BYTES = "application/octet-stream"
_TEXT = "text/plain"
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFUSED = frozenset(keys.RESERVED) - {keys.REQUEST_ID}
"""Keys of a request that decide how it is run; a client must not set them."""


def file_input(model: Model) -> str | None:
    """Return the name of the input that the body becomes.

    It is the only input whose items are BYTES, of several such inputs, the one with the key ``data``. None if there
    is no such input, or if another input is not a single value: a query can hold only single values.
    """
    ports = model.signature.inputs
    files = [name for name, port in ports.items() if port.each and port.datatype == "BYTES"]
    if len(files) > 1:
        files = [name for name in files if ports[name].key == keys.DATA]
    others = [port for name, port in ports.items() if name not in files[:1]]
    return files[0] if files and all(map(_is_single, others)) else None


def _is_single(port: Port) -> bool:
    return all(axis in (-1, 1) for axis in port.shape) and port.datatype != "BF16"


async def run(exchange: Exchange) -> Reply | None:
    """Answer one request: its body is one file, or multipart with several files, each with its own outcome.

    The query may have ``timeout`` (microseconds) and ``priority``. Its other keys are the model's other
    inputs, or keys of the request of the pipeline, whose values are text. The answer for one file is the outputs
    by name as JSON (``{"result": ...}``), or the bytes of the only output if ``Accept`` asks for their type. If it
    asks for events, each part of the answer is one when it comes, and the answer the last.

    Returns:
        The answer. None if it was sent as events.
    """
    try:
        model, body = exchange.find(), None
        if model is None:
            model, body = await wait(exchange)
    except HeadraceError:
        exchange.identifier = _identifier_in(exchange.scope["query_string"])
        raise
    exchange.model = model
    query = _read_query(model, exchange)
    if body is None:
        exchange.admit(model)
        most = exchange.limits.max_json_bytes if query.reads_json else None
        now, body = await receive(exchange, model, most)
        if now is not model:
            model, query = now, _read_query(now, exchange)
    if query.reads_json or not _is_multipart(exchange.header(b"content-type")):
        return await _run_one(exchange, model, query, body)
    return await _run_files(exchange, model, body)


async def _run_one(exchange: Exchange, model: Model, query: Query, body: bytes) -> Reply | None:
    """Answer a request whose body is one file, or JSON."""
    content: Any = body
    if query.reads_json:
        content = await exchange.parsed(body, partial(_fields_in, model))
    elif (
        model.fields is not None
        and body.lstrip()[:1] in (b"{", b"[")
        and _is_form(exchange.header(b"content-type"))
    ):
        with contextlib.suppress(BodyTooLargeError):  # what is too large to be JSON is a file
            await exchange.parsed(body, _refuse_json)
    request = _asked(exchange, query, content)
    if _wants_events(exchange.header(b"accept")):
        if exchange.header_id:
            request.setdefault(keys.REQUEST_ID, exchange.header_id)
        stream = exchange.service.stream(model, request, exchange.parameters, exchange)
        await send_events(exchange, _events(model, stream), partial(_failed, exchange))
        return None
    return await completed(exchange, request, RUN)


def _asked(exchange: Exchange, query: Query, content: Any) -> dict[str, Any]:
    """Return the request of the pipeline for a file, or for the keys in a body of JSON."""
    exchange.identifier = query.identifier
    request, exchange.parameters = query.asked(content, exchange.traced)
    return request


def _read(exchange: Exchange, model: Model, body: bytes) -> dict[str, Any] | None:
    """Return the request of the pipeline for one file or small JSON. None where its answer, or its body, has parts."""
    plan = exchange.plan
    if plan.form is None or plan.form[0] is not model:
        kind = exchange.header(b"content-type")
        query = _read_query(model, exchange)
        has_parts = _is_multipart(kind) or _wants_events(exchange.header(b"accept"))
        may_be_json = not query.reads_json and model.fields is not None and _is_form(kind)
        plan.form = model, None if has_parts or may_be_json else query
    query = plan.form[1]
    if query is None:
        return None
    content: Any = body
    if query.reads_json:
        if len(body) > min(SMALL_JSON_BYTES, exchange.limits.max_json_bytes):
            return None
        exchange.identifier = query.identifier
        content = exchange.parsed_now(body, partial(_fields_in, model))
    return _asked(exchange, query, content)


def _write(exchange: Exchange, request: dict[str, Any]) -> Reply | None:
    """Return the answer of a request that has ended. None for a large one."""
    result = request["result"]
    if elements_of(result) > MANY:
        return None
    exchange.note_answered(1)
    return _reply(exchange.model, result, exchange.header(b"accept"))


async def _finish(exchange: Exchange, request: dict[str, Any]) -> Reply:
    """Answer a request with a large result."""
    exchange.note_answered(1)
    result, accepted = request["result"], exchange.header(b"accept")
    return await call_by_size(elements_of(result), _reply, exchange.model, result, accepted)


RUN = Direct(_read, _write, _finish)


async def _run_files(exchange: Exchange, model: Model, body: bytes) -> Reply:
    """Answer a request whose body is several files, each with its own outcome."""
    service = exchange.service
    accepted = exchange.header(b"accept")
    if _wants_events(accepted):
        problem = "accept: the events are the parts of one answer, and the body is several files"
        raise InputError(problem, hint="Send one file as the body.")
    most = service.limits.narrowed(model.limits).max_items
    kind = exchange.header(b"content-type")
    files, fields = read_form(body, kind, most, _MOST_PARAMETERS)
    query = Query(model, exchange.scope["query_string"], "file", fields)
    exchange.identifier = query.identifier
    headers = exchange.traced

    async def outcome(name: str, content: bytes) -> bytes:
        answer: dict[str, Any] = {"name": name}
        try:
            request, parameters = query.asked(content, headers)
            if exchange.header_id:
                request.setdefault(keys.REQUEST_ID, exchange.header_id)
            result = await service.run(model, request, parameters, exchange)
            text = await call_by_size(elements_of(result), _document, outputs_of(model, result))
        except HeadraceError as error:
            why = refusal(error, debug=service.debug_errors)
            answer |= {"error": why.text, "code": why.code, "node": why.node}
            return orjson.dumps(answer)
        return orjson.dumps(answer)[:-1] + b"," + text[1:]

    outcomes = await exchange.while_connected(asyncio.gather(*starmap(outcome, files)))
    return Reply.of_inference([b'{"outcomes":[' + b",".join(outcomes) + b"]}"], JSON)


def _wants_events(accepted: str) -> bool:
    """Return whether ``Accept`` names events, and does not want JSON more."""
    if EVENTS not in accepted.lower():
        return False
    wanted = quality(accepted, EVENTS)
    return wanted > 0 and wanted >= quality(accepted, JSON)


async def _events(model: Model, stream: AsyncGenerator[tuple[bool, Any]]) -> AsyncGenerator[bytes]:
    """Give an event for each part of an answer, and ``end`` with its result."""
    async with contextlib.aclosing(stream) as each:
        async for is_last, part in each:
            if is_last and part is None:
                outputs: Mapping[str, Any] = dict.fromkeys(model.signature.outputs)
            else:
                outputs = outputs_of(model, part)
            document = await call_by_size(elements_of(part), _document, outputs)
            yield event(document, "end" if is_last else "")


def _failed(exchange: Exchange, why: Refusal) -> bytes:
    return event(error_body(why, exchange.identifier or exchange.header_id), "error")


def reads_json(model: Model, kind: str) -> bool:
    """Return whether a model reads bodies of a media type as JSON: by its fields, or always."""
    if model.takes_json:
        return True
    return model.fields is not None and _media_type(kind) == JSON


def _fields_in(model: Model, body: bytes) -> dict[str, Any]:
    """Return the keys of the request in a body of JSON.

    Raises:
        InputError: It is no JSON.
        FieldError: A field is wrong.
    """
    if model.fields is not None:
        return model.fields.read(body)
    return {keys.DATA: loads(body)}


def _is_form(kind: str) -> bool:
    """Return whether a media type is that of a form, which curl gives every body."""
    return _media_type(kind) == "application/x-www-form-urlencoded"


def _is_multipart(kind: str) -> bool:
    return kind.lower().startswith("multipart/")


def _media_type(kind: str) -> str:
    return kind.partition(";")[0].strip().lower()


def _refuse_json(body: bytes) -> None:
    """Refuse JSON that was sent as a form to a model with fields, which would read it as the bytes of a file.

    Raises:
        InputError: The body is an object or a list of JSON.
    """
    try:
        loads(body)
    except InputError:
        return
    raise InputError(
        "the body is JSON, and its content type is that of a form, which curl -d gives it",
        hint="Send it as JSON: curl --json '{...}', or curl -H 'Content-Type: application/json' -d '{...}'."
        " If it is a file, send it with 'Content-Type: application/octet-stream'.",
    )


def _read_query(model: Model, exchange: Exchange) -> Query:
    """Return the query of a request, parsed, and note its id, which the answer of a refused one has, too."""
    text: bytes = exchange.scope["query_string"]
    kind = exchange.header(b"content-type")
    exchange.identifier = _identifier_in(text)
    as_json = reads_json(model, kind)
    if not as_json and not model.takes_any_bytes and _media_type(kind) == JSON:
        raise MediaTypeError(
            f"the body is JSON, and model {model.name!r} declares no fields: send a file as application/octet-stream,"
            f" tensors to /v2/models/{model.name}/infer, or let the server declare them (request, or body, of the model)"
        )
    use = "json" if as_json else "form" if _is_multipart(kind) else "file"
    kept = use.encode() + text
    query = model.queries.known.get(kept)
    if query is None:
        query = Query(model, text, use)
        model.queries.keep(kept, query)
    return query


class Query:
    """The query of a request, parsed once: the request of the pipeline for each file, without the file.

    Attributes:
        identifier: The key ``request_id``, which is the id of the request. ``""`` without it.
        reads_json: Whether the body is JSON, and not a file.

    Args:
        model: The model that the request is for.
        text: The query string.
        use: What the body is: ``json``, ``file``, or a ``form`` whose fields may bring what the query lacks.
        fields: The fields of a form that was read, which mean what those of the query do.

    Raises:
        InputError: The model takes no file, or the query is wrong.
    """

    def __init__(
        self, model: Model, text: bytes, use: str, fields: Iterable[tuple[str, str]] = ()
    ) -> None:
        as_json = use == "json"
        self.reads_json = as_json
        file = "" if as_json else file_input(model)
        if file is None:
            raise InputError(
                f"model {model.name!r} takes tensors, not a file",
                hint=f"Use POST /v2/models/{model.name}/infer.",
            )
        self._parameters: dict[str, Any] = {}
        more: dict[str, str] = {}
        tensors = [Tensor(file, "BYTES", (1,), np.array([b""], object))]
        inputs: Mapping[str, Port] = {} if as_json else model.signature.inputs
        for name, value in _given(text, fields).items():
            if name in _PARAMETERS:
                self._parameters[name] = _whole(name, value)
            elif name in TRACE:
                self._parameters[name] = value
            elif name in inputs and name != file:
                tensors.append(_single(inputs[name], value))
            elif _KEY.fullmatch(name) is None or name in _REFUSED or name == file:
                raise InputError(
                    f"parameter {name[:80]!r}",
                    expected=f"{', '.join(_PARAMETERS)}, or a key that a client may set: a name as "
                    f"'threshold', and none of {', '.join(sorted({file, *_REFUSED}))}",
                )
            else:
                more[name] = value
        self._request: dict[str, Any] = more if use != "file" else request_of(model, tensors, more)
        for value in self._request.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False  # requests of several clients share the array
        self._file = inputs.get(file)
        self.identifier = more.get(keys.REQUEST_ID, "")

    def asked(
        self, body: bytes | dict[str, Any], headers: Mapping[str, str]
    ) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Give the request of the pipeline for one file, and its parameters.

        Args:
            body: The file, or the keys in a body of JSON.
            headers: Those of the request, which may name its trace.

        Raises:
            InputError: The model takes text, and the file is not UTF-8, or a key is in the query, too.
        """
        if isinstance(body, dict):
            twice = next((name for name in body if name in self._request), None)
            if twice is not None:
                raise InputError(f"{twice!r} is in the query and in the body")
            request = {**self._request, **body}
        else:
            request = {**self._request, **self._file_key(body)}
        return request, with_trace(self._parameters, headers) if headers else self._parameters

    def _file_key(self, body: bytes) -> dict[str, bytes | str]:
        """Return the key that holds the file."""
        port: Any = self._file
        if not port.text:
            return {port.key: body}
        try:
            return {port.key: body.decode("utf-8")}
        except UnicodeDecodeError:
            raise InputError(f"input {port.name!r} is no UTF-8 text") from None


def _given(query: bytes, fields: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Return the parameters of a query, and the fields of a form."""
    if query.count(b"&") >= _MOST_PARAMETERS:
        raise InputError("the query", expected=f"at most {_MOST_PARAMETERS} parameters")
    given: dict[str, str] = {}
    for name, value in [*parse_qsl(query.decode("latin-1"), keep_blank_values=True), *fields]:
        if name in given:
            raise InputError(f"parameter {name[:80]!r} is there twice")
        given[name] = value
    return given


def _identifier_in(query: bytes) -> str:
    """Return the id in the query of a request that is refused, for its answer; ``""`` without one."""
    try:
        return _given(query).get(keys.REQUEST_ID, "")
    except InputError:
        return ""


def _whole(name: str, value: str) -> int:
    number = whole_number(value)
    if number is None:
        unit = " of microseconds" if name == "timeout" else ""
        raise InputError(f"parameter {name!r}", expected=f"a whole number{unit}", got=value[:40])
    return number


def _single(port: Port, text: str) -> Tensor:
    """Give the tensor of one element for a value of the query."""
    shape = (1,) * len(port.shape)
    array: Any = np.empty(shape, object)
    if port.datatype == "BYTES":
        array.reshape(-1)[0] = text.encode()
        return Tensor(port.name, port.datatype, shape, array)
    try:
        array = from_text(port.datatype, text).reshape(shape)
    except (ValueError, OverflowError):
        raise InputError(
            f"parameter {port.name!r}", expected=f"a value of {port.datatype}", got=text[:40]
        ) from None
    return Tensor(port.name, port.datatype, shape, array)


def _reply(model: Model, result: Any, accepted: str) -> Reply:
    """Return the answer in the form that ``Accept`` prefers, of those that the type of the result has."""
    outputs = outputs_of(model, result)
    only: Any = next(iter(outputs.values())) if len(outputs) == 1 else None
    kinds = _kinds_for(only)
    kind = kinds[0]
    if accepted:
        kind = max(kinds, key=partial(quality, accepted))  # of equal ones the first
        if not quality(accepted, kind):
            problem = f"accept: the result is no {accepted[:80]!r}"
            raise InputError(problem, expected=" or ".join(kinds))
    return Reply.of_inference([_document(outputs) if kind == JSON else raw_bytes(only)], kind)


def _kind_of(content: bytes) -> str | None:
    """Return the media type of a picture; None for other bytes."""
    if content.startswith(b"RIFF"):
        return "image/webp" if content[8:12] == b"WEBP" else None
    return next((kind for begins, kind in _PICTURES.items() if content.startswith(begins)), None)


def _kinds_for(only: Any) -> list[str]:
    """Return the media types in which a client can have a result, the best first; ``only`` is the only output, or None.

    Bytes that are no picture have the same types whatever they hold.
    """
    if not isinstance(only, bytes):
        return [JSON, _TEXT] if isinstance(only, str) else [JSON]
    kind = _kind_of(only)
    return [_ANY_BYTES, JSON, _TEXT] if kind is None else [kind, _ANY_BYTES]


def _document(outputs: Mapping[str, Any]) -> bytes:
    """Return the outputs as an object of JSON."""
    parts = [orjson.dumps(name) + b":" + _json_value(name, v) for name, v in outputs.items()]
    return b"{" + b",".join(parts) + b"}"


def _json_value(name: str, value: Any) -> bytes:
    if type(value) is int:  # fast, for the most frequent result: the number of a class
        return b"%d" % value
    try:
        if isinstance(value, bytes):
            value = value.decode("utf-8")
        elif isinstance(value, (list, tuple, np.ndarray)):
            array = as_plain_array(value)
            if array is not None and array.dtype.kind in "OS":
                texts = [text.decode() if isinstance(text, bytes) else text for text in array.flat]
                value = np.array(texts, object).reshape(array.shape)
    except UnicodeDecodeError:
        raise InputError(
            f"output {name!r} is no text",
            hint="JSON holds no other bytes. Ask with Accept for application/octet-stream.",
        ) from None
    return as_json_text(value).encode()
