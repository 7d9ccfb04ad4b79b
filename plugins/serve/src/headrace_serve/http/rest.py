"""The protocol over HTTP as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

import orjson
from starlette.applications import Starlette
from starlette.routing import Match, Route

from headrace.errors import InputError, OverloadedError
from headrace_serve.admission.keys import Keys
from headrace_serve.errors import (
    DisconnectedError,
    NotBuiltError,
    UnavailableError,
    UnknownModelError,
    error_json,
    unsupported,
)
from headrace_serve.http import extensions as rest_extensions
from headrace_serve.http import openapi
from headrace_serve.http.api_requests import handler_of
from headrace_serve.http.exchange import Exchange, Reply, Wire
from headrace_serve.http.generate import generate, generate_stream
from headrace_serve.http.metrics import Snapshot, encoded
from headrace_serve.http.page_routes import PAGE_ROUTES
from headrace_serve.http.plain_route import run
from headrace_serve.http.plans import Plan, Plans
from headrace_serve.http.preflight import Origins
from headrace_serve.http.tensors import HEADER_LENGTH, read_again, read_body, write_body
from headrace_serve.http.waiting import receive, wait_for
from headrace_serve.inference.parameters import TRACED, without_nulls
from headrace_serve.inference.tensors import complete
from headrace_serve.models import described
from headrace_serve.models.catalogue import build_models
from headrace_serve.monitoring.observe_probes import dump_of
from headrace_serve.service import Service
from headrace_serve.threads import Pool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.types import Receive, Scope, Send

    from headrace_serve.admission.keys import Right
    from headrace_serve.apis.routes import ApiRoute

    Handler = Callable[[Exchange], Awaitable[Reply | None]]

__all__ = ["Application", "Endpoint", "application", "asgi"]

logger = logging.getLogger("headrace.serve")

_CLOSE_S = 30.0
_METRICS = Pool("metrics", 2)
_DUMPS = Pool("memory", 1)
_dumping: list[None] = []
"""Holds something while a request reads what is remembered. Used by one event loop."""
_OCTETS = "application/octet-stream"
_HEADER_LENGTH = HEADER_LENGTH.encode()


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
            plan, varying = self._plans.made(dict(scope), scope["headers"])
            await plan.route.answer(Wire(plan, varying, scope, receive, send))
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
    ) -> Route:
        name = f"{method} {path}"
        costs = method == "POST" or not (right is None or path in _DOCUMENTS)
        endpoint: Any = Endpoint(service, name, handler, right, own, costs, probe)
        return Route(path, endpoint, methods=[method])

    def per_model(
        method: str,
        end: str,
        handler: Handler,
        right: Right | None = "describe",
        *,
        probe: bool = False,
    ) -> list[Route]:
        places = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        return [route(method, f"{root}{end}", handler, right, probe=probe) for root in places]

    def api_route(place: str, api: ApiRoute) -> Route:
        method, path = place.split()
        endpoint: Any = Endpoint(
            service,
            place,
            handler_of(api),
            api.right,
            costs=method == "POST" or api.right is not None,
            is_task=True,
            later="{model}" not in path,
            error=api.error,
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
        *per_model("POST", "/infer", _infer, "infer"),
        route("POST", "/run/{model}", run, "infer"),
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


@dataclass(frozen=True)
class Endpoint:
    """Answers the requests of one route: asks the gate, then for the key. Every error becomes an answer.

    Args:
        service: The service.
        name: The name of the route.
        handler: Answers a request that may come in.
        right: The right that the key must have. None: no key is needed.
        own: Whether, without keys, only the server's own pages may use it.
        costs: Whether, without keys, pages of other sites may not ask for it, even if they cannot read the answer.
        is_task: Whether its handler is code of others, which may need a task of asyncio.
        probe: Whether it may be asked for by any host: a probe comes by the address of a pod.
        later: Whether the handler checks the key for each model.
        error: Makes the body of a refusal for its status, code and text. None: it is that of the protocol.
    """

    service: Service
    name: str
    handler: Handler
    right: Right | None
    own: bool = False
    costs: bool = True
    probe: bool = False
    is_task: bool = False
    later: bool = False
    error: Any = None

    async def answer(self, wire: Any) -> None:
        """Answer a request: with a plan, from its body to the last byte of the answer.

        Args:
            wire: The request as it comes: a `headrace_serve.http.cycle.Cycle`, or a `Wire` of ASGI.
        """
        exchange = Exchange(self.service, wire)
        try:
            try:
                reply = await self._reply(exchange)
                if reply is None:  # it was sent, event by event
                    return
            except DisconnectedError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - each is answered
                reply = self._failed(exchange, error)
            try:
                if not exchange.reply_now(reply):
                    await exchange.reply(reply)
            except OverloadedError as error:  # answers that clients do not take use all the room
                await exchange.reply(self._failed(exchange, error))
        except DisconnectedError:
            return
        except Exception:
            logger.exception("the answer of %s could not be sent", self.name)
            wire.abort()
        finally:
            exchange.end()
            wire.task = None

    def _reply(self, exchange: Exchange) -> Awaitable[Reply | None]:
        """Ask the gate, unless it has let in such a request, and for the key; then give what makes the answer."""
        keys, plan = self.service.keys, exchange.plan
        if not plan.passed:
            self.service.gate.check(plan.scope, self, keyed=keys is not None)
            plan.passed = True
            if plan.keep is not None:
                plan.keep()
        if keys is not None and self.right is not None:
            model = plan.path.get("model")
            key = keys.check(exchange.headers, self.right, model, later=self.later)
            exchange.line.key = key
        return self.handler(exchange)

    def _failed(self, exchange: Exchange, error: BaseException) -> Reply:
        """Return the answer for an error."""
        refused = exchange.refused(error)
        after = self.service.retry_after_s(exchange.model, error) if refused.retry else 0
        reply = Reply.refused(refused, exchange.identifier or exchange.request_id, after)
        if self.error is not None:
            reply.parts = [orjson.dumps(self.error(refused.status, refused.code, refused.text))]
        return reply


async def _infer(exchange: Exchange) -> Reply:
    service, length = exchange.service, exchange.wire.varying.get(_HEADER_LENGTH, b"")
    model = exchange.enter()
    most = None if length else exchange.limits.max_json_bytes
    body: Any = None if model is None else exchange.whole(most)
    if model is None or body is None:
        model, body = await receive(exchange, model, most)
    known = read_again(body, length, model)
    if known is None:
        known = await read_body(body, length.decode("latin-1"), model, exchange)
    asked, wanted = known
    if asked.request is None or exchange.request_id or not TRACED.isdisjoint(exchange.wire.varying):
        complete(asked, exchange.request_id, exchange.headers, exchange.line)
    wire = exchange.wire
    if wire.disconnected:
        raise DisconnectedError
    wire.is_watched = True
    try:
        answer = await service.infer(model, asked, exchange.line, exchange.limits)
    except asyncio.CancelledError:
        exchange.check_connected()
        raise
    wire.is_watched = False
    again: Any = None if asked.parsed is None else asked.parsed.again
    if answer.body is not None:
        return Reply(200, answer.body, _OCTETS, again.headers, compressible=True)
    parts, size = await write_body(answer, wanted, None if answer.parameters else asked.parsed)
    if size is None:
        return Reply.of_inference(parts, "application/json")
    return Reply.of_inference(parts, _OCTETS, {HEADER_LENGTH: str(len(parts[0]))})


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
    exchange.line.code = "route"
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
