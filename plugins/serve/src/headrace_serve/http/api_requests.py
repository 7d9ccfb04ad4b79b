"""What a function of another server's API gets, and how its answer is sent."""

from __future__ import annotations

import base64
import binascii
import contextlib
import inspect
import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

import numpy as np
import orjson

from headrace import keys
from headrace.errors import ClosedError, ContractError, InputError, among
from headrace_formats import write_json
from headrace_serve.client_input import whole_number
from headrace_serve.datatypes import from_json
from headrace_serve.errors import BodyTooLargeError, ItemError, MediaTypeError, NotBuiltError
from headrace_serve.http.bodies import SMALL_JSON_BYTES
from headrace_serve.http.endpoints import Direct
from headrace_serve.http.events import event, send_events
from headrace_serve.http.replies import Reply
from headrace_serve.http.waiting import wait_for
from headrace_serve.inference.parameters import with_trace
from headrace_serve.inference.results import JSON, as_json_text, elements_of
from headrace_serve.models import described
from headrace_serve.threads import MANY, call_by_size
from headrace_tensors import DATATYPES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from headrace_serve.admission.limits import Limits
    from headrace_serve.apis.routes import ApiRoute
    from headrace_serve.errors import Refusal
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.models.fields import Fields
    from headrace_serve.models.model import Model
    from headrace_serve.models.signature import Port

__all__ = ["Asked", "handlers_of"]

logger = logging.getLogger("headrace.serve")

_TIMEOUT = b"x-request-timeout-ms"
_LONGEST_MS = 10**9
_MOST_COLLECTED = 1 << 20
"""So many parts may wait where no client reads them one by one: a backend may give them faster than the server collects them."""
_PAGES = ("html", "xml", "svg", "javascript")


class Inputs(NamedTuple):
    """What a model is asked for: the arguments of `Asked.requests`."""

    name: str
    values: list[Any]
    shared: Mapping[str, Any] | None = None
    spare: Sequence[str] = ()


class Asked:
    """One request of another server's API.

    Attributes:
        path: The values of the names in the path.
        query: The parameters of the query, of each the last value.
        exchange: The request.
        body_bytes: The bytes of its body, decompressed. 0 before it is there.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.body_bytes = 0
        self._known: Any = None  # the catalogue that has the model of the request
        self.path = exchange.path
        query = exchange.scope["query_string"]
        self.query = dict(parse_qsl(query.decode("latin-1"))) if query else {}

    def header(self, name: str) -> str:
        """Return the value of a header, ``""`` where there is none."""
        return self.exchange.header(name.lower().encode("latin-1"))

    async def body(self) -> bytes:
        """Receive the body, decompressed, within the limits."""
        if "model" in self.path:
            await self._found(self.path["model"])  # a full queue refuses before the body comes
        body = await self.exchange.body()
        self.body_bytes = len(body)
        return body

    async def json(self) -> Any:
        """Receive the body, and parse it as JSON, within the limits.

        Raises:
            InputError: It is no JSON.
        """
        if "model" in self.path:
            await self._found(self.path["model"])
        text = await self.exchange.body(self.exchange.limits.max_json_bytes)
        self.body_bytes = len(text)
        return await self.exchange.parsed(text)

    def refused_type(self, why: str, *taken: str) -> Exception:
        """Return the error of a body whose ``Content-Type`` nothing here takes: the answer is 415.

        Args:
            why: What is wrong.
            taken: The types that are taken.
        """
        return MediaTypeError(f"{why}. {self.exchange.scope['path']} takes {', '.join(taken)}")

    def check_ready(self) -> None:
        """Check that the server takes requests for all models.

        Raises:
            ClosedError: It does not: the answer is 503.
        """
        if not self.exchange.service.ready:
            raise ClosedError("the server is not ready")

    def models(self) -> list[str]:
        """Return the names of the models, and of aliases, that the client's key may use."""
        service = self.exchange.service
        only = None
        if service.keys is not None:
            only = service.keys.find(self.exchange.headers)[1].models
        names = dict.fromkeys((*service.models.names, *service.aliases()))
        return [name for name in names if only is None or name in only]

    def model(self, name: str) -> dict[str, Any]:
        """Return what ``GET /v2/models/NAME`` says of a model, and whether it is ``ready``.

        Raises:
            HeadraceError: There is no such model, or the key does not allow it.
        """
        service = self.exchange.service
        self.check_key(name, "describe")
        model = self.exchange.model = service.described(name)
        said = described.model_metadata(service.models, model)
        return {**said, "name": name, "ready": service.is_ready(model)}

    async def requests(
        self,
        name: str,
        values: list[Any],
        shared: Mapping[str, Any] | None = None,
        spare: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Make requests for a model from plain data, with arrays of the types that its inputs have.

        Args:
            name: The model.
            values: Of each request an object with a value for each input, by its name or key, or for each field of the
                model's JSON. Anything else is the value of the only input, or of that whose key is ``data``.
                ``{"b64": text}`` is bytes, and bytes are a file.
            shared: Further inputs or fields of all requests. They are read once, and the requests have the same objects.
            spare: Keys of ``shared`` that are left out where the model does not declare them. The log names each once.

        Raises:
            InputError: The model has no such input, or a value does not fit.
        """
        model = await self._found(name)
        inputs, limits = Inputs(name, values, shared, spare), self.exchange.limits
        return await call_by_size(elements_of([*inputs[1:3]]), _requests, model, inputs, limits)

    async def run(
        self, name: str, request: Any, emit: Callable[[Any], object] | None = None
    ) -> Any:
        """Run a request of a model's pipeline, and return its result. The dict has what the backends have written.

        Args:
            name: The model.
            request: The request, or a list of requests, whose results come as a list.
            emit: Is called with each part of the answer. None: there are only results.

        Raises:
            HeadraceError: As the pipeline raises it, and where the server refuses the request.
        """
        model, exchange = await self._found(name), self.exchange
        if isinstance(request, list):
            work: Any = exchange.service.run_all(
                model, [*map(self._named, request)], self.parameters(), exchange
            )
        elif emit is None:
            named = self._named(request)
            work = exchange.service.run(model, named, self.parameters(), exchange)
        else:
            work = self._collected(name, request, emit)
        return await exchange.while_connected(work)

    async def _collected(self, name: str, request: Any, emit: Callable[[Any], object]) -> Any:
        result: Any = None
        async for is_last, result in self.parts(name, request, most=_MOST_COLLECTED):
            if not is_last:
                emit(result)
        return result

    async def parts(
        self, name: str, request: dict[str, Any], **more: int
    ) -> AsyncGenerator[tuple[bool, Any], None]:
        """Run a request, and give each part of its answer when it comes, and the result last.

        Args:
            name: The model.
            request: The request.
            more: ``most`` of ``pipe.stream``.

        Returns:
            Pairs: whether it is the result, and the part or result.
        """
        model, exchange = await self._found(name), self.exchange
        named = self._named(request)
        stream = exchange.service.stream(model, named, self.parameters(), exchange, **more)
        async with contextlib.aclosing(stream) as each:
            async for part in each:
                yield part

    def _named(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict):
            raise TypeError(f"a request is a dict, got {type(request).__name__}")
        if self.exchange.header_id:
            request.setdefault(keys.REQUEST_ID, self.exchange.header_id)
        return request

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that the headers give: the trace, and ``timeout`` in microseconds."""
        traced = self.exchange.traced
        parameters = with_trace({}, traced) if traced else {}
        given = self.exchange.header(_TIMEOUT)
        if given:
            timeout_ms = whole_number(given)
            if not timeout_ms or timeout_ms > _LONGEST_MS:
                expected = f"a whole number of milliseconds from 1 to {_LONGEST_MS}"
                raise InputError("header X-Request-Timeout-Ms", expected=expected, got=given[:40])
            parameters["timeout"] = timeout_ms * 1000
        return parameters

    def check_key(self, name: str, right: Any) -> None:
        """Check that the client's key has a right, and holds for a model."""
        exchange, known = self.exchange, self.exchange.service.keys
        if known is not None:
            exchange.key = known.check(exchange.headers, right, name)

    async def _found(self, name: str) -> Model:
        """Return a model that takes requests, and take a place in its queue."""
        exchange, service = self.exchange, self.exchange.service
        self.check_key(name, "infer")
        model: Model | None = exchange.model
        is_known = self._known is service.models
        if not is_known or model is None or model.name != name or model.unloaded:
            model = service.find(name, key=exchange.share_key)
            if model is None:
                timeout_us = self.parameters().get("timeout")
                model = await wait_for(exchange, name, timeout_us=timeout_us)
            if model is not exchange.model:
                exchange.give_place_back()
                exchange.admit(model)
            # An alias is asked for each time, and a model that is gone.
            self._known = service.models if model.name == name else None
        most = exchange.limits.max_body_bytes
        if self.body_bytes > most:
            raise BodyTooLargeError(f"the body has {self.body_bytes} bytes, the limit is {most}")
        return model


_told: set[str] = set()
"""Keys that change no answer, which the log has named."""


def _requests(model: Model, inputs: Inputs, limits: Limits) -> list[dict[str, Any]]:
    """Make the requests of a model, within limits; see `Asked.requests`."""
    values, shared = inputs.values, dict(inputs.shared or {})
    if len(values) > limits.max_items:
        raise InputError(f"{len(values)} items", expected=f"at most {limits.max_items}")
    others = {key: value for key, value in shared.items() if key not in inputs.spare}
    for key in inputs.spare:
        try:
            _made(model, values[:1], {**others, key: shared[key]})
        except InputError:
            del shared[key]
            if key not in _told:
                _told.add(key)
                logger.info("%r is taken, and changes no answer", key)
    return _made(model, values, shared)


def _made(model: Model, values: list[Any], shared: dict[str, Any]) -> list[dict[str, Any]]:
    inputs = model.signature.inputs
    ports = {**{port.key: port for port in inputs.values()}, **inputs}
    known = [*inputs] if model.fields is None else model.fields.names
    only = next(iter(inputs)) if len(inputs) == 1 and model.fields is None else keys.DATA
    requests: list[dict[str, Any]] = []
    common: dict[str, Any] = {}
    for value in values:
        if not isinstance(value, dict) or value.keys() == {"b64"}:
            value = {only: value}
        own = {**value, **({} if requests else shared)}
        wrong = [key for key in own if key not in (ports if model.fields is None else known)]
        if wrong:
            problem = f"model {model.name!r} has no {', '.join(map(repr, wrong))}"
            raise InputError(problem, hint=among(wrong[0], known))
        if model.fields is None:
            if not requests:
                common = _by_ports([(ports[key], v) for key, v in shared.items()], {})
            requests.append(_by_ports([(ports[key], v) for key, v in value.items()], common))
            _check_all(model, requests[-1])
        elif requests and shared:
            requests.append(model.fields.read_beside(requests[0], value))
        else:
            requests.append(_by_fields(model.fields, own))
    return requests


def _by_fields(fields: Fields, value: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(value.get(keys.DATA), bytes):
        return fields.read(write_json(value).encode())
    if not fields.takes_file(keys.DATA):
        raise InputError("the model takes JSON, not a file")
    return fields.completed(value)


def _by_ports(values: list[tuple[Port, Any]], common: dict[str, Any]) -> dict[str, Any]:
    request: dict[str, Any] = dict(common)
    for port, value in values:
        if port.key in request:
            raise InputError(f"input {port.name!r} is there twice")
        array = request[port.key] = _from_plain(port, value)
        if port.batch_axis == 0 and np.ndim(array) == len(port.shape):
            rows = request.setdefault(keys.REQUEST_SIZE, len(array))
            if rows != len(array):
                problem = f"input {port.name!r} has {len(array)} rows, others have {rows}"
                raise InputError(problem)
    return request


def _check_all(model: Model, request: dict[str, Any]) -> None:
    for port in model.signature.inputs.values():
        if port.key not in request and not port.optional:
            raise InputError(f"input {port.name!r} of model {model.name!r} is missing")


def _from_plain(port: Port, value: Any) -> Any:
    """Return the value of an input of one request: without the axis of items or rows."""
    if port.datatype == "BYTES" and isinstance(value, dict) and value.keys() == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InputError(f"input {port.name!r}", expected="base64 in b64") from None
    if port.datatype == "BYTES" and (port.text or port.each):  # the backend says what else it takes
        return value
    is_array = isinstance(value, np.ndarray)
    shape: list[int] = [*value.shape] if is_array else []
    inner = None if is_array else value
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    item = port.each or (port.batch_axis == 0 and not (is_array and value.ndim == len(port.shape)))
    dtype = DATATYPES[port.datatype]
    typed = not is_array or np.can_cast(value.dtype, dtype, "same_kind")
    if not (typed and port.fits(shape, item=item)):
        wanted = f"{port.datatype} {list(port.shape[1:] if item else port.shape)}"
        got = f"shape {shape}" if is_array or isinstance(value, list) else type(value).__name__
        raise InputError(f"input {port.name!r}", expected=wanted, got=got)
    if is_array:
        with np.errstate(over="ignore"):
            array = value.astype(dtype, copy=False)
        fits = array == value  # what is rounded differs, too
        if dtype.kind == "f":
            fits = np.isfinite(array) | ~np.isfinite(value)
        if not np.all(fits):
            raise InputError(f"input {port.name!r}: it holds values outside of {port.datatype}")
        return array
    flat, known = (value, tuple(shape)) if shape else ([value], (1,))
    return from_json(port.name, port.datatype, known, flat).reshape(shape)


def handlers_of(route: ApiRoute) -> tuple[Callable[[Exchange], Any], Direct | None]:
    """Return what answers a route by the function of an API, and how that is done without waiting."""
    if not inspect.isgeneratorfunction(route.function):
        return partial(_answered, route), None
    find, direct = partial(_find, route), partial(ItemError, 0)
    return partial(_inferred, route), Direct(_read, _write, _finish, find, direct)


async def _answered(route: ApiRoute, exchange: Exchange) -> Reply | None:
    answer = route.function(Asked(exchange))
    if not hasattr(answer, "__aiter__"):
        try:
            answer = await answer
        except NotBuiltError as error:  # of `Asked.model`
            await wait_for(exchange, error.name, error.version)
            answer = await route.function(Asked(exchange))
    if hasattr(answer, "__aiter__"):
        await send_events(exchange, _events(answer), partial(_failed, route))
        return None
    if isinstance(answer, tuple):
        content, kind = answer
        if any(page in kind.lower() for page in _PAGES):
            raise ContractError(f"{route.api!r} answers with {kind!r}, which browsers run")
        return Reply.of_inference([content], kind)
    return await _reply(answer)


async def _inferred(route: ApiRoute, exchange: Exchange) -> Reply:
    """Answer by a generator, which may have read the body already."""
    asked = Asked(exchange)
    if exchange.form is None:
        _begin(route, asked, await asked.json())
    else:
        asked.body_bytes = exchange.received_bytes
    generator, inputs = exchange.form
    requests = await asked.requests(*inputs)
    results = await asked.run(inputs.name, requests)
    return await _reply(_end(generator, requests, results))


def _begin(route: ApiRoute, asked: Asked, document: Any) -> Inputs:
    """Let a generator read a body, and return what it yields."""
    generator = route.function(asked, document)
    inputs = Inputs(*next(generator))
    asked.exchange.form = generator, inputs
    return inputs


def _end(generator: Any, requests: list[dict[str, Any]], results: list[Any]) -> Any:
    try:
        generator.send((requests, results))
    except StopIteration as end:
        return end.value
    raise ContractError("the generator of a route yields a second time")


def _find(route: ApiRoute, exchange: Exchange, body: bytes) -> Model | None:
    if len(body) > min(SMALL_JSON_BYTES, exchange.limits.max_json_bytes):
        return None
    asked, models = Asked(exchange), exchange.service.models
    inputs = _begin(route, asked, exchange.parsed_now(body))
    asked.check_key(inputs.name, "infer")
    if len(inputs.values) != 1 or elements_of([*inputs[1:3]]) > MANY or not models.has(inputs.name):
        return None  # an alias chooses
    return exchange.service.find(inputs.name)


def _read(exchange: Exchange, model: Model, _: bytes) -> dict[str, Any]:
    exchange.parameters = Asked(exchange).parameters()
    (request,) = _requests(model, exchange.form[1], exchange.limits)
    return request


def _write(exchange: Exchange, request: dict[str, Any]) -> Reply | None:
    exchange.note_answered(1)
    answer = exchange.document = _end(exchange.form[0], [request], [request["result"]])
    return None if _elements(answer) > MANY else Reply.of_inference([_text(answer)], JSON)


async def _finish(exchange: Exchange, _: dict[str, Any]) -> Reply:
    return await _reply(exchange.document)


async def _reply(answer: Any) -> Reply:
    return Reply.of_inference([await call_by_size(_elements(answer), _text, answer)], JSON)


async def _events(answer: Any) -> AsyncGenerator[bytes, None]:
    async with contextlib.aclosing(answer) as each:
        async for part in each:
            text = part.encode() if isinstance(part, str) else _text(part)
            yield event(b"\ndata: ".join(text.splitlines()))


def _failed(route: ApiRoute, why: Refusal) -> bytes:
    make = route.error or (lambda status, code, text: {"error": text, "code": code})
    return event(orjson.dumps(make(why.status, why.code, why.text)))


def _elements(answer: Any) -> int:
    """Return about how many numbers an answer has."""
    if isinstance(answer, dict):
        return sum(map(_elements, answer.values()))
    if isinstance(answer, list) and answer:
        return len(answer) * _elements(answer[0])
    return math.prod(getattr(answer, "shape", ()))


def _text(answer: Any) -> bytes:
    """Return an answer as JSON."""
    with contextlib.suppress(TypeError):
        text = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
        if b"null" not in text:  # of which orjson makes NaN and infinity
            return text
    return as_json_text(answer).encode()
