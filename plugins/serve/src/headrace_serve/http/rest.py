"""The protocol over HTTP as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

import orjson
from starlette.applications import Starlette
from starlette.routing import Match, Route

from headrace.errors import InputError, OverloadedError
from headrace.keys import REQUEST_SIZE
from headrace_serve.admission.keys import Keys
from headrace_serve.errors import (
    NotBuiltError,
    UnavailableError,
    UnknownModelError,
    error_json,
    unsupported,
)
from headrace_serve.http import extensions as rest_extensions
from headrace_serve.http import openapi
from headrace_serve.http.api_requests import handlers_of
from headrace_serve.http.endpoints import Direct, Endpoint, completed
from headrace_serve.http.exchange import Exchange, Wire
from headrace_serve.http.generate import generate, generate_stream
from headrace_serve.http.metrics import Snapshot, encoded
from headrace_serve.http.page_routes import PAGE_ROUTES
from headrace_serve.http.plain_route import RUN, run
from headrace_serve.http.plans import Plan, Plans
from headrace_serve.http.preflight import Origins
from headrace_serve.http.replies import Reply
from headrace_serve.http.tensors import (
    HEADER_LENGTH,
    HEADER_LENGTH_BYTES,
    OCTETS,
    read_again,
    read_body,
    write_body,
)
from headrace_serve.http.waiting import receive, wait_for
from headrace_serve.inference.messages import Asked
from headrace_serve.inference.parameters import without_nulls
from headrace_serve.inference.requests import RESPONSE_PARAMETERS, written
from headrace_serve.inference.results import JSON
from headrace_serve.inference.tensors import complete
from headrace_serve.models import described
from headrace_serve.models.catalogue import build_models
from headrace_serve.monitoring.observe_probes import dump_of
from headrace_serve.service import Service
from headrace_serve.threads import Pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from starlette.types import Receive, Scope, Send

    from headrace_serve.admission.keys import Right
    from headrace_serve.apis.routes import ApiRoute
    from headrace_serve.http.endpoints import Handler
    from headrace_serve.http.tensors import Wanted
    from headrace_serve.inference.messages import Answer
    from headrace_serve.inference.parsed_requests import ParsedRequest, PlainOutputs

__all__ = ["Application", "application", "asgi"]

logger = logging.getLogger("headrace.serve")

_CLOSE_S = 30.0
_METRICS = Pool("metrics", 2)
_DUMPS = Pool("memory", 1)
_dumping: list[None] = []
"""Holds something while a request reads what is remembered. Used by one event loop."""


def asgi(models: Any, **settings: Any) -> Starlette:
    """Build the models and give an ASGI application that serves them.

    The application answers REST, in an HTTP server that the user starts. At the end of its lifespan it closes
    the pipelines that were built here. A `headrace.Pipeline` among ``models`` stays open.

    Args:
        models: See `headrace_serve.models.entries.read_entries`.
        settings: The arguments of `headrace_serve.service.Service`. ``keys`` may also be the path of a file. ``memory`` is
            that of `headrace_serve.Server`.

    Raises:
        ConfigError, SetupError, PluginError: As `headrace.pipe` raises them.
    """
    settings["keys"] = Keys.of(settings.get("keys"))
    catalogue = build_models(
        models,
        keys=settings["keys"],
        allow_import=settings.get("allow_import", True),
        memory=settings.pop("memory", None),
    )

    service: Service | None = None

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if service is not None:
            service.built_in.check()
            service.loop = asyncio.get_running_loop()
            service.updates.look()
        yield
        if service is not None:
            service.updates.follow()
            await asyncio.to_thread(service.models.close, _CLOSE_S)

    try:
        service = Service(catalogue, given=models, **settings)
        return application(service, lifespan)
    except BaseException:
        catalogue.close(2.0)
        raise


def application(service: Service, lifespan: Any = None, *, admin: bool = False) -> Application:
    """Return the application for a service, which another server may mount below a path.

    Args:
        service: The service.
        lifespan: The context of the application's life.
        admin: Whether it has the routes of those who operate the server alone: health, metrics, the repository.
    """
    return Application(service, lifespan, admin=admin)


class Application(Starlette):
    """Answers what comes as messages of ASGI, as `headrace_serve.http.protocol` what comes as bytes.

    Attributes:
        table: Says what a head means.
    """

    def __init__(self, service: Service, lifespan: Any, *, admin: bool) -> None:
        self.table = Routes(service, self, admin=admin)
        super().__init__(routes=self.table.routes, lifespan=lifespan)
        self._plans = Plans(service, self.table.plan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; Starlette does the rest."""
        if scope["type"] == "websocket":  # no route is one; its server answers 403
            await send({"type": "websocket.close"})
        elif scope["type"] == "http":
            head = self._plans.made(dict(scope), scope["headers"])
            wire = Wire(self.table.service, head, scope, receive, send)
            await head.plan.route.answer(wire)
        else:
            await super().__call__(scope, receive, send)


class Routes:
    """The routes of a service. Starlette compares their paths.

    Args:
        service: The service.
        application: Answers them.
        admin: See `application`.

    Attributes:
        routes: They.
    """

    def __init__(self, service: Service, application: Application, *, admin: bool) -> None:
        self.service = service
        self._origins = Origins(service) if service.cors_origins else None
        self._nothing = Endpoint(service, "other", partial(_nothing, self), None)
        self.routes = _table(service, admin=admin)
        self._application = application

    def plan(self, scope: Any) -> Plan:
        """Return what a parsed head means."""
        headers, scope["app"] = dict(scope["headers"]), self._application
        added: Mapping[str, str] = {}
        if self._origins is not None:
            preflight, added = self._origins.read(scope, headers)
            if preflight is not None:
                endpoint = Endpoint(self.service, "other", preflight, None)
                return Plan(endpoint, scope, {}, headers, {})
        written = _with_slashes(scope)
        for route in self.routes:
            match, child = route.matches(written)
            if match is Match.FULL and all(child["path_params"].values()):
                names = {k: v.replace(_SLASH, "/") for k, v in child["path_params"].items()}
                return Plan(route.endpoint, scope, names, headers, added)
        return Plan(self._nothing, scope, {}, headers, added)

    def takes(self, scope: Any) -> list[str]:
        """Return the methods that a path takes."""
        matched = [(route, *route.matches(scope)) for route in self.routes]
        matched_methods = [
            route.methods or ()
            for route, match, child in matched
            if match is not Match.NONE and all(child["path_params"].values())
        ]
        return sorted({method for methods in matched_methods for method in methods})


_SLASH = "\x1f"
"""Stands for a slash within a name, which a path has as ``%2F``."""


def _with_slashes(scope: Any) -> Any:
    """Return a scope whose path says which slashes are part of a name."""
    raw = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return scope
    path = raw.partition(b"?")[0].decode("latin-1").replace("%2F", _SLASH).replace("%2f", _SLASH)
    return {**scope, "path": unquote(path)}


def _table(service: Service, *, admin: bool) -> list[Route]:
    def route(
        method: str,
        path: str,
        handler: Handler,
        right: Right | None = "describe",
        *,
        own: bool = False,
        probe: bool = False,
        direct: Direct | None = None,
    ) -> Route:
        name = f"{method} {path}"
        costs = method == "POST" or not (right is None or path in _DOCUMENTS)
        endpoint: Any = Endpoint(service, name, handler, right, own, costs, probe, direct=direct)
        return Route(path, endpoint, methods=[method])

    def per_model(
        method: str,
        end: str,
        handler: Handler,
        right: Right | None = "describe",
        **more: Any,
    ) -> list[Route]:
        places = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        return [route(method, f"{root}{end}", handler, right, **more) for root in places]

    def api_route(place: str, api: ApiRoute) -> Route:
        method, path = place.split()
        handler, direct = handlers_of(api)
        endpoint: Any = Endpoint(
            service,
            place,
            handler,
            api.right,
            costs=method == "POST" or api.right is not None,
            later="{model}" not in path,
            error=api.error,
            direct=direct,
        )
        if path.endswith("/{model}"):  # clients do not quote the slashes of a name
            path = f"{path[:-1]}:path}}"
        return Route(path, endpoint, methods=[method])

    operating = [
        route("GET", "/metrics", _metrics, probe=True),
        route("GET", "/v2/health/live", _live, None, probe=True),
        route("GET", "/v2/health/ready", _ready, None, probe=True),
        *per_model("GET", "/ready", _model_ready, None, probe=True),
        route("POST", "/v2/repository/index", _index),
        *(route(*row, own=True) for row in rest_extensions.REPOSITORY_ROUTES),
    ]
    if admin:
        return operating
    return [
        *per_model("POST", "/infer", _infer, "infer", direct=_INFER),
        route("POST", "/run/{model}", run, "infer", direct=RUN),
        *per_model("POST", "/generate", generate, "infer"),
        *per_model("POST", "/generate_stream", generate_stream, "infer"),
        route("GET", "/openapi.json", _openapi),
        route("GET", "/docs", _docs),
        route("GET", "/v2", _server),
        route("GET", "/v2/", _server),
        route("GET", "/v2/models/stats", _all_statistics),
        route("GET", "/v2/memory", _memory),
        *per_model("GET", "", _metadata),
        *per_model("GET", "/config", _config),
        *per_model("GET", "/stats", _statistics),
        *(api_route(*row) for row in service.apis.items()),
        *(route(*row, own=True) for row in PAGE_ROUTES if service.live is not None),
        *(
            route(method, f"/v2/{place}", _unsupported)
            for place in _UNSUPPORTED
            for method in ("GET", "POST")
        ),
        *operating,
    ]


_DOCUMENTS = ("/docs", "/openapi.json", "/v2", "/v2/")

_UNSUPPORTED = (
    "cudasharedmemory/{rest:path}",
    "systemsharedmemory/{rest:path}",
    "trace/setting",
    "models/{model}/trace/setting",
    "logging",
)


async def _infer(exchange: Exchange) -> Reply:
    length = exchange.varying.get(HEADER_LENGTH_BYTES, b"")
    model = exchange.enter()
    most = None if length else exchange.limits.max_json_bytes
    model, body = await receive(exchange, model, most)
    request = read_again(exchange, model, body) if exchange.document is None else None
    if request is not None:
        return await completed(exchange, request, _INFER)
    asked, wanted = await read_body(body, length.decode("latin-1"), model, exchange)
    complete(asked, exchange.header_id, exchange.headers, exchange)
    work = exchange.service.infer(model, asked, exchange, exchange.limits)
    answer = await exchange.while_connected(work)
    return await _reply_with(answer, wanted, asked.parsed)


def _write_again(exchange: Any, request: dict[str, Any]) -> Reply | None:
    """Return the answer where only its numbers differ from an earlier one."""
    again: PlainOutputs | None = exchange.form.again
    if again is None or RESPONSE_PARAMETERS in request:
        return None
    parts = again.parts(request["result"], exchange.identifier)
    if parts is None:
        return None
    exchange.note_answered(request.get(REQUEST_SIZE, 1))
    return Reply.of_inference(parts, again.content_type, again.headers)


async def _finish(exchange: Exchange, request: dict[str, Any]) -> Reply:
    """Answer a request of a form that has not been answered yet, or with more than numbers."""
    model, form = exchange.model, exchange.form
    asked = Asked([], form.outputs, exchange.identifier, form.parameters, parsed=form)
    try:
        answer = await written(model, asked, request, exchange.limits, {})
    except BaseException as error:
        exchange.service.note_failed(model, error, exchange, exchange.began_ns)
        raise
    exchange.note_answered(answer.inferences)
    return await _reply_with(answer, form.wanted, form)


async def _reply_with(answer: Answer, form: Wanted, parsed: ParsedRequest | None) -> Reply:
    parts, size = await write_body(answer, form, None if answer.parameters else parsed)
    if size is None:
        return Reply.of_inference(parts, JSON)
    return Reply.of_inference(parts, OCTETS, {HEADER_LENGTH: str(len(parts[0]))})


_INFER = Direct(read_again, _write_again, _finish)


async def _server(exchange: Exchange) -> Reply:
    return Reply.json(described.server_metadata(exchange.service))


async def _openapi(exchange: Exchange) -> Reply:
    service = exchange.service
    below = exchange.scope.get("root_path", "")
    keyed = service.keys is not None
    document = openapi.document(service.models, keyed=keyed, below=below, apis=service.apis)
    return Reply.json(document)


async def _docs(exchange: Exchange) -> Reply:
    text = openapi.page(exchange.service.models).encode()
    return Reply(200, [text], "text/html; charset=utf-8")


async def _metrics(exchange: Exchange) -> Reply:
    snapshot = Snapshot(exchange.service)
    accepted = exchange.header(b"accept")
    kind, text = await _METRICS.run(encoded, snapshot, accepted)
    return Reply(200, [text], kind)


async def _live(exchange: Exchange) -> Reply:
    live = exchange.service.models.live
    return Reply.json({"live": live}, 200 if live else 503)


async def _ready(exchange: Exchange) -> Reply:
    ready = exchange.service.ready
    return Reply.json({"ready": ready}, 200 if ready else 503)


async def _model(exchange: Exchange) -> Any:
    name, version = exchange.path["model"], exchange.path.get("version", "")
    service = exchange.service
    try:
        exchange.model = service.described(name, version)
    except NotBuiltError:
        exchange.model = await wait_for(exchange, name, version)
    return exchange.model


async def _model_ready(exchange: Exchange) -> Reply:
    service = exchange.service
    name, version = exchange.path["model"], exchange.path.get("version", "")
    try:
        model = exchange.model = service.models.find(*service.named(name, version))
    except UnknownModelError as error:
        # The answer does not list the served models, because this route needs no key and would reveal them to
        # everybody.
        raise UnknownModelError(error.name, error.version) from None
    except UnavailableError:  # it is being loaded, or was not built yet
        ready = service.takes_requests(name, version)
        return Reply.json({"name": name, "ready": ready}, 200 if ready else 503)
    ready = service.is_ready(model)
    return Reply.json({"name": model.name, "ready": ready}, 200 if ready else 503)


async def _metadata(exchange: Exchange) -> Reply:
    model = await _model(exchange)
    service = exchange.service
    told = described.model_metadata(service.models, model)
    return Reply.json({**told, **service.updates.memory_of(model.name, model.version)})


async def _config(exchange: Exchange) -> Reply:
    return Reply.json(described.config(await _model(exchange)))


async def _statistics(exchange: Exchange) -> Reply:
    model = await _model(exchange)
    version = exchange.path.get("version", "")
    return Reply.json(described.statistics(exchange.service.models.named(model.name, version)))


async def _all_statistics(exchange: Exchange) -> Reply:
    return Reply.json(described.statistics(exchange.service.models))


async def _memory(exchange: Exchange) -> Reply:
    asked = parse_qs(exchange.scope["query_string"].decode("latin-1")).get("request_id", [None])
    if _dumping:  # of one request much is made, and held
        raise OverloadedError("another request reads what is remembered", queue_size=1, waiting=1)
    _dumping.append(None)
    dump = asyncio.ensure_future(_DUMPS.run(dump_of, [*exchange.service.models], asked[-1]))
    dump.add_done_callback(lambda _: _dumping.clear())
    rows = await exchange.while_connected(asyncio.shield(dump))
    return Reply(200, [rows], "application/x-ndjson")


async def _index(exchange: Exchange) -> Reply:
    asked = await rest_extensions.json_object(exchange, "ready")
    only = without_nulls(asked).get("ready", False)
    if not isinstance(only, bool):
        raise InputError("ready", expected="true or false", got=repr(only)[:40])
    return Reply.json(described.index(exchange.service, only_ready=only))


async def _unsupported(exchange: Exchange) -> Reply:
    raise unsupported(exchange.scope["path"])


async def _nothing(routes: Routes, exchange: Exchange) -> Reply:
    method, path = exchange.scope["method"], exchange.scope["path"]
    own = path.removeprefix(exchange.scope["root_path"])
    exchange.code = "route"
    docs, takes = f"{exchange.scope['root_path']}/docs", ", ".join(routes.takes(exchange.scope))
    problem = f"there is no route {method} {path}; {docs} lists the routes"
    status, text = (405, f"{path} takes {takes}") if takes else (404, problem)
    # Clients of an API find the text in its form alone.
    begins = [api for place, api in exchange.service.apis.items() if _first(place) == _first(own)]
    body = error_json(text, "route")
    if begins and begins[0].error is not None:
        body = orjson.dumps(begins[0].error(status, "route", text))
    return Reply(status, [body], headers={"allow": takes} if takes else None)


def _first(place: str) -> str:
    """Return the first segment of a path, also behind a method."""
    return place.partition("/")[2].partition("/")[0]
