"""The routes of the live page: its files, what it shows, and its load test."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

import headrace
from headrace.errors import InputError
from headrace_formats.page import HEADERS, Page
from headrace_serve.client_input import whole_number
from headrace_serve.errors import ServeError, error_json
from headrace_serve.http.metrics import can_encode
from headrace_serve.http.page_forms import form_of
from headrace_serve.http.replies import Reply
from headrace_serve.http.waiting import wait_for
from headrace_serve.ui.graph import edges_of, nodes_of
from headrace_serve.ui.load import MOST_CLIENTS, Replay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace_serve.admission.keys import Right
    from headrace_serve.http.exchange import Exchange
    from headrace_serve.ui.live import LivePage

__all__ = ["PAGE_ROUTES"]

_PAGE: Final = Page("headrace_serve.ui")
_REPLAYED: Final = (b"host", b"content-type", b"authorization", b"x-api-key", b"accept")


async def _to_page(exchange: Exchange) -> Reply:
    # Relative, so that it is right behind a proxy that serves this below a path of its own.
    place = "../ui" if exchange.scope["path"].endswith("/ui/") else "ui"
    return Reply(307, [], "text/plain", {"location": place})


async def _example(exchange: Exchange) -> Reply:
    name, examples = exchange.path["file"], exchange.service.examples
    example = None if examples is None else await asyncio.to_thread(examples.read, name)
    if example is None:
        return _missing(exchange, f"there is no example {name[:80]!r}")
    return Reply(200, [example.content], example.content_type)


def _missing(exchange: Exchange, missing: str) -> Reply:
    exchange.code = "route"
    return Reply(404, [error_json(missing, "route")])


async def _page(exchange: Exchange) -> Reply:
    name = exchange.path.get("file", "index.html")
    file = _PAGE.file(name)
    if file is None or "index.html" in exchange.path.values():  # its links start from /ui
        return _missing(exchange, f"the page has no file {name[:80]!r}")
    return Reply(200, [file.content], file.content_type, dict(HEADERS))


def _live_of(exchange: Exchange) -> LivePage:
    live: Any = exchange.service.live  # there are no routes without it
    return live  # type: ignore[no-any-return]


async def _models(exchange: Exchange) -> Reply:
    live, service = _live_of(exchange), exchange.service
    described = []
    for model in service.models:
        plan = headrace.explain(model.pipe.config)
        try:
            latest = service.models.find(model.name) is model
        except ServeError:  # a later version is not built yet
            latest = False
        described.append(
            {
                "id": f"{model.name}:{model.version}",
                "name": model.name,
                "version": model.version,
                "nodes": nodes_of(plan),
                "edges": edges_of(plan),
                "form": form_of(model, latest=latest),
                "most_clients": MOST_CLIENTS,
            }
        )
    examples = service.examples
    about = {
        "server": service.server_name,
        "version": headrace.__version__,
        "catalogue": live.revision(service.models),
        "metrics": can_encode(),
        "examples": [] if examples is None else examples.listed(),
    }
    return Reply.json({**about, "models": described})


async def _state(exchange: Exchange) -> Reply:
    live, service = _live_of(exchange), exchange.service
    given = _query(exchange)
    since = {name: whole_number(text) for name, text in given.items()}
    known = {name: number for name, number in since.items() if number is not None}
    state = live.state(service.models, known)
    state |= {
        "catalogue": live.revision(service.models),
        "ready": service.ready,
        "exchanges": service.updates.exchanges(),
        "in_flight": sum(service.counters.in_flight.values()) - 1,
    }
    return Reply.json(state)


async def _load(exchange: Exchange) -> Reply:
    live, given = _live_of(exchange), _query(exchange)
    path, _, query = given.get("to", "").partition("?")
    name = exchange.path["model"]
    exchange.model = exchange.service.find(name) or await wait_for(exchange, name)
    parts = path.split("/")
    infers = parts[:4] == ["", "v2", "models", name] and parts[-1] == "infer"
    if parts != ["", "run", name] and not infers:
        wanted = f"/run/{name}, or an infer route of the model"
        raise InputError("to", expected=wanted, got=path[:80])
    clients = whole_number(given.get("clients", ""))
    if clients is None or clients > MOST_CLIENTS:
        got = given.get("clients", "")[:40]
        raise InputError("clients", expected=f"0 to {MOST_CLIENTS}", got=got)
    headers = tuple(
        (key, exchange.header(key).encode("latin-1")) for key in _REPLAYED if exchange.header(key)
    )
    below = exchange.scope.get("root_path", "")
    replay = Replay(path, query.encode("latin-1"), headers, await exchange.body(), below)
    live.load.run(exchange.scope["app"], replay, clients)
    return Reply.json({"clients": clients})


def _query(exchange: Exchange) -> dict[str, str]:
    text = exchange.scope["query_string"].decode("latin-1")
    return {name: values[-1] for name, values in parse_qs(text).items()}


PAGE_ROUTES: tuple[tuple[str, str, Callable[[Exchange], Awaitable[Reply]], Right | None], ...] = (
    ("GET", "/", _to_page, None),
    ("GET", "/ui/", _to_page, None),
    ("GET", "/ui", _page, None),
    ("GET", "/ui/models.json", _models, "describe"),
    ("GET", "/ui/state.json", _state, "describe"),
    ("GET", "/ui/{file}", _page, None),
    ("GET", "/ui/examples/{file}", _example, "describe"),
    ("POST", "/ui/load/{model}", _load, "infer"),
)
"""Method, path, handler and right of each route; page and scripts hold nothing that a key would guard."""
