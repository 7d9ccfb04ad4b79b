"""The protocol over HTTP as an ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from headrace.errors import InputError
from headrace_serve.errors import (
    DisconnectedError,
    UnavailableError,
    UnknownModelError,
    UnsupportedError,
    error_json,
)
from headrace_serve.http import extensions as rest_extensions
from headrace_serve.http import openapi
from headrace_serve.http.apis import handler_of
from headrace_serve.http.exchange import Exchange, Reply
from headrace_serve.http.generate import generate, generate_stream
from headrace_serve.http.metrics import Snapshot, encoded
from headrace_serve.http.page_routes import PAGE_ROUTES
from headrace_serve.http.plain_route import run
from headrace_serve.http.preflight import Origins
from headrace_serve.http.tensors import HEADER_LENGTH, read_body, write_body
from headrace_serve.inference.parameters import TRACE, without_nulls
from headrace_serve.inference.tensors import complete, place_outputs
from headrace_serve.keys import Keys
from headrace_serve.models import described
from headrace_serve.models.catalogue import build_models
from headrace_serve.remembered import dump_of
from headrace_serve.service import Service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace_serve.keys import Right
    from headrace_serve.routes import ApiRoute

    Handler = Callable[[Exchange], Awaitable[Reply | None]]

__all__ = ["application", "asgi"]

logger = logging.getLogger("headrace.serve")

_CLOSE_S = 30.0
_MOST_PATHS = 256
_LONGEST_PATH = 256
_HEADER_LENGTH = HEADER_LENGTH.encode()


def asgi(models: Any, **settings: Any) -> Starlette:
    """Build the models and give an ASGI application that serves them.

    The application answers REST, in an HTTP server that the user starts. At the end of its lifespan it closes
    the pipelines that were built here. A `headrace.Pipeline` among ``models`` stays open.

    Args:
        models: See `headrace_serve.models.entries.read_entries`.
        settings: The arguments of `headrace_serve.service.Service`. ``keys`` may also be the path of a file.

    Raises:
        ConfigError, SetupError, PluginError: As `headrace.pipe` raises them.
    """
    settings["keys"] = Keys.of(settings.get("keys"))
    catalogue = build_models(
        models, keys=settings["keys"], allow_import=settings.get("allow_import", True)
    )

    service: Service | None = None

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if service is not None:
            service.built_in.check()
            service.loop = asyncio.get_running_loop()
        yield
        if service is not None:
            service.following.follow()
            await asyncio.to_thread(service.models.close, _CLOSE_S)

    try:
        service = Service(catalogue, given=models, **settings)
        return application(service, lifespan)
    except BaseException:
        catalogue.close(2.0)
        raise


def application(service: Service, lifespan: Any = None, *, admin: bool = False) -> Starlette:
    """Return the application for a service.

    Args:
        service: The service.
        lifespan: The context of the application's life.
        admin: Whether it has the routes of those who operate the server alone: health, metrics, the repository.
    """

    def route(
        method: str,
        path: str,
        handler: Handler,
        right: Right | None = "describe",
        *,
        own: bool = False,
    ) -> Route:
        endpoint: Any = _Endpoint(service, f"{method} {path}", handler, right, own)
        return Route(path, endpoint, methods=[method])

    def per_model(
        method: str, end: str, handler: Handler, right: Right | None = "describe"
    ) -> list[Route]:
        places = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
        return [route(method, f"{place}{end}", handler, right) for place in places]

    def api_route(place: str, found: ApiRoute) -> Route:
        method, path = place.split()
        endpoint: Any = _Endpoint(
            service,
            place,
            handler_of(found),
            found.right,
            later="{model}" not in path,
            error=found.error,
        )
        return Route(path, endpoint, methods=[method])

    generating = [
        *per_model("POST", "/generate", generate, "infer"),
        *per_model("POST", "/generate_stream", generate_stream, "infer"),
    ]
    infer = per_model("POST", "/infer", _infer, "infer")
    run_file = route("POST", "/run/{model}", run, "infer")
    cors = []
    if service.cors_origins:
        origins: Any = Origins
        cors.append(
            Middleware(
                origins,
                service=service,
                allow_origins=service.cors_origins,
                allow_methods=["GET", "POST"],
                allow_headers=_SENT_HEADERS,
                expose_headers=[HEADER_LENGTH, "Retry-After", "X-Request-Id"],
            )
        )
    nothing: Any = _Endpoint(service, "other", _nothing, None)
    operating = [
        route("GET", "/metrics", _metrics),
        route("GET", "/v2/health/live", _live, None),
        route("GET", "/v2/health/ready", _ready, None),
        *per_model("GET", "/ready", _model_ready, None),
        route("POST", "/v2/repository/index", _index),
        *(route(*one, own=True) for one in rest_extensions.REPOSITORY_ROUTES),
    ]
    asking = [
        *infer,
        run_file,
        *generating,
        route("GET", "/openapi.json", _openapi),
        route("GET", "/docs", _docs),
        route("GET", "/v2", _server),
        route("GET", "/v2/", _server),
        route("GET", "/v2/models/stats", _all_statistics),
        route("GET", "/v2/memory", _memory),
        *per_model("GET", "", _metadata),
        *per_model("GET", "/config", _config),
        *per_model("GET", "/stats", _statistics),
        *(api_route(*one) for one in service.apis.items()),
        *(route(*one, own=True) for one in PAGE_ROUTES if service.live is not None),
        *(route(*one, own=True) for one in rest_extensions.MEMORY_ROUTES),
        *(
            route(method, f"/v2/{place}", _unsupported)
            for place in _UNSUPPORTED
            for method in ("GET", "POST")
        ),
    ]
    fast = () if cors or admin else tuple(one.endpoint for one in (*infer, run_file))
    made = _Application(
        fast,
        middleware=cors,
        routes=[
            *([] if admin else asking),
            *operating,
            Route("/{rest:path}", nothing, methods=None),
        ],
        lifespan=lifespan,
    )
    made.router.default = nothing  # for targets that are no path, as in ``OPTIONS *``
    return made


class _Application(Starlette):
    """Routes requests, and inferences without Starlette, whose routes and middleware would double their cost.

    Args:
        infer: The applications that answer an inference without a version in its path, one with a version, and a
            file. Empty if middleware must see every request.
        settings: The arguments of Starlette.
    """

    def __init__(self, infer: tuple[ASGIApp, ...], **settings: Any) -> None:
        super().__init__(**settings)
        self._infer = infer
        self._known: dict[str, tuple[ASGIApp, dict[str, str]]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # no route is one; its server answers 403
            await send({"type": "websocket.close"})
            return
        if self._infer and scope["type"] == "http" and scope["method"] == "POST":
            path = scope["path"]
            found = self._known.get(path) or self._find(path)
            if found is not None:
                answer, scope["path_params"] = found
                await answer(scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    def _find(self, path: str) -> tuple[ASGIApp, dict[str, str]] | None:
        """Return the application for a path, and the names in it; None if the path is not that of an inference."""
        match path.split("/"):
            case ["", "run", model] if model:
                found = self._infer[2], {"model": model}
            case ["", "v2", "models", model, "infer"] if model:
                found = self._infer[0], {"model": model}
            case ["", "v2", "models", model, "versions", version, "infer"] if model and version:
                found = self._infer[1], {"model": model, "version": version}
            case _:
                return None
        if len(path) <= _LONGEST_PATH:
            if len(self._known) >= _MOST_PATHS:
                self._known.clear()
            self._known[path] = found
        return found


_SENT_HEADERS = (
    "Authorization", "X-API-Key", "Content-Type", "Content-Encoding", HEADER_LENGTH, "X-Request-Id",
    "X-Timing", *TRACE,
)  # fmt: skip
"""Headers that a page of an allowed origin may send."""

_UNSUPPORTED = (
    "cudasharedmemory/{rest:path}",
    "trace/setting",
    "models/{model}/trace/setting",
    "logging",
)


@dataclass(frozen=True)
class _Endpoint:
    """Answers the requests of one route: asks the gate, then for the key. Every error becomes an answer.

    Args:
        service: The service.
        route: The name of the route.
        handler: Answers a request that may come in.
        right: The right that the key must have. None: no key is needed.
        own: Whether, without keys, only the server's own pages may use it.
        later: Whether the handler checks the key for each model.
        error: Makes the body of a refusal for its status, code and text. None: it is that of the protocol.
    """

    _service: Service
    _route: str
    _handler: Handler
    _right: Right | None
    _own: bool = False
    later: bool = False
    error: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._service, self._route, scope, receive, send)
        try:
            try:
                keys = self._service.keys
                self._service.gate.check(scope, keyed=keys is not None, own=self._own)
                if keys is not None and self._right is not None:
                    model = exchange.path.get("model")
                    exchange.line.key = keys.check(
                        exchange.headers, self._right, model, later=self.later
                    )
                reply = await self._handler(exchange)
                if reply is None:  # it was sent, event by event
                    return
            except DisconnectedError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - each is answered
                reply = self._failed(exchange, error)
            await exchange.reply(reply)
        except DisconnectedError:
            return
        finally:
            exchange.end()

    def _failed(self, exchange: Exchange, error: BaseException) -> Reply:
        """Return the answer for an error."""
        refused = exchange.refused(error)
        after = self._service.retry_after_s(exchange.model, error) if refused.retry else 0
        made = Reply.refused(refused, exchange.identifier or exchange.request_id, after)
        if self.error is not None:
            made.parts = [orjson.dumps(self.error(refused.status, refused.code, refused.text))]
        return made


async def _infer(exchange: Exchange) -> Reply:
    service, header_length = exchange.service, exchange.header(_HEADER_LENGTH)
    model, body = await exchange.for_model(is_json=not header_length)
    access = service.access(exchange.hold)
    most_items = service.limits.narrowed(model.limits).max_items

    async def parsed(head: bytes) -> Any:
        found: Any = await exchange.parsed(head)
        exchange.note_identifier(found)
        return found

    asked, wanted = await read_body(body, header_length, model, access, most_items, parsed)
    complete(asked, exchange.request_id, exchange.headers, exchange.line)
    answer = await exchange.while_connected(service.infer(model, asked, exchange.line))
    if asked.places:
        await place_outputs(answer, asked.places, access)
    parts, length = await write_body(answer, wanted, None if answer.parameters else asked.outline)
    if length is None:
        return Reply.of_inference(parts, "application/json")
    headers = {HEADER_LENGTH: str(length)}
    return Reply.of_inference(parts, "application/octet-stream", **headers)


async def _server(exchange: Exchange) -> Reply:
    return Reply.json(described.server_metadata(exchange.service))


async def _openapi(exchange: Exchange) -> Reply:
    service = exchange.service
    below = exchange.scope.get("root_path", "")
    keyed = service.keys is not None
    made = openapi.document(service.models, keyed=keyed, below=below, apis=service.apis)
    return Reply.json(made)


async def _docs(exchange: Exchange) -> Reply:
    text = openapi.page(exchange.service.models).encode()
    return Reply(200, [text], "text/html; charset=utf-8")


async def _metrics(exchange: Exchange) -> Reply:
    snapshot = Snapshot(exchange.service)
    accepted = exchange.header(b"accept")
    kind, text = await asyncio.to_thread(encoded, snapshot, accepted)
    return Reply(200, [text], kind)


async def _live(exchange: Exchange) -> Reply:
    live = exchange.service.models.live
    return Reply.json({"live": live}, 200 if live else 503)


async def _ready(exchange: Exchange) -> Reply:
    ready = exchange.service.ready
    return Reply.json({"ready": ready}, 200 if ready else 503)


async def _model(exchange: Exchange) -> Any:
    name, version = exchange.path["model"], exchange.path.get("version", "")
    exchange.model = exchange.service.described(name, version)
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
    except UnavailableError:  # it is being loaded
        return Reply.json({"name": name, "ready": False}, 503)
    ready = service.is_ready(model)
    return Reply.json({"name": model.name, "ready": ready}, 200 if ready else 503)


async def _metadata(exchange: Exchange) -> Reply:
    model = await _model(exchange)
    return Reply.json(described.model_metadata(exchange.service.models, model))


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
    found = await asyncio.to_thread(dump_of, [*exchange.service.models], asked[-1])
    return Reply(200, [found], "application/x-ndjson")


async def _index(exchange: Exchange) -> Reply:
    asked = await rest_extensions.json_object(exchange, "ready")
    only = without_nulls(asked).get("ready", False)
    if not isinstance(only, bool):
        raise InputError("ready", expected="true or false", got=repr(only)[:40])
    return Reply.json(described.index(exchange.service, only_ready=only))


async def _unsupported(exchange: Exchange) -> Reply:
    raise UnsupportedError(f"{exchange.scope['path']} is not supported by this server")


async def _nothing(exchange: Exchange) -> Reply:
    method, path = exchange.scope["method"], exchange.scope["path"]
    others, own = exchange.scope["app"].routes[:-1], path.removeprefix(exchange.scope["root_path"])
    allowed = {one for route in others if route.path_regex.match(own) for one in route.methods}
    exchange.line.code = "route"
    docs, takes = f"{exchange.scope['root_path']}/docs", ", ".join(sorted(allowed))
    what = f"there is no route {method} {path}; {docs} lists the routes"
    status, text = (405, f"{path} takes {takes}") if takes else (404, what)
    # Clients of an API find the text in its form alone.
    begins = [one for place, one in exchange.service.apis.items() if _first(place) == _first(own)]
    made = error_json(text, "route")
    if begins and begins[0].error is not None:
        made = orjson.dumps(begins[0].error(status, "route", text))
    return Reply(status, [made], headers={"allow": takes} if takes else None)


def _first(place: str) -> str:
    """Return the first segment of a path, also behind a method."""
    return place.partition("/")[2].partition("/")[0]
