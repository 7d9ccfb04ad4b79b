"""The routes of the live page: its files, what it shows, and its load test."""

from __future__ import annotations

import importlib.resources
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import headrace
from headrace.errors import InputError
from headrace_serve.errors import NotAllowedError, ServeError, UnknownModelError
from headrace_serve.http.exchange import Reply
from headrace_serve.http.page_forms import form_of
from headrace_serve.ui.graph import edges_of, nodes_of
from headrace_serve.ui.load import MOST_CLIENTS, Replay

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace_serve.http.exchange import Exchange
    from headrace_serve.keys import Right
    from headrace_serve.ui.live import LivePage

__all__ = ["PAGE_ROUTES"]

_KINDS: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_FILES: Final = frozenset(
    ("style.css", "main.js", "server.js", "graph.js", "charts.js", "form.js", "answer.js")
)
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The browser asks nobody but this server, whatever a page, or an answer in it, may say."""
_REPLAYED: Final = (b"content-type", b"authorization", b"x-api-key", b"accept")


async def _page(exchange: Exchange) -> Reply:
    return _file("index.html")


async def _part(exchange: Exchange) -> Reply:
    name = exchange.path["file"]
    if name not in _FILES:
        raise UnknownModelError(name)
    return _file(name)


def _file(name: str) -> Reply:
    content = (importlib.resources.files("headrace_serve.ui") / "page" / name).read_bytes()
    kind = f"{_KINDS[name.rpartition('.')[2]]}; charset=utf-8"
    return Reply(200, [content], kind, _headers())


def _is_loopback(host: str) -> bool:
    """Return whether a host in a request is this machine, without asking for its name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _headers() -> dict[str, str]:
    return {
        "cache-control": "no-store",
        "content-security-policy": _POLICY,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
    }


def _allowed_live(exchange: Exchange) -> LivePage:
    """Return the state behind the page, if the page of this server asks for it.

    Without keys anybody on this machine may ask, but no page of elsewhere: neither by a name that leads to this machine, nor
    from its own origin.

    Raises:
        NotAllowedError: It is another page.
    """
    host = exchange.header(b"host")
    if exchange.service.keys is None and not _is_loopback(urlsplit(f"//{host}").hostname or ""):
        raise NotAllowedError("without keys, the page is asked for by an address of this machine")
    origin = exchange.header(b"origin")
    if origin and urlsplit(origin).netloc != host:
        raise NotAllowedError(f"a page of {origin[:80]} may not ask for this")
    live: Any = exchange.service.live  # there are no routes without it
    return live  # type: ignore[no-any-return]


async def _models(exchange: Exchange) -> Reply:
    live, service = _allowed_live(exchange), exchange.service
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
    about = {"server": service.server_name, "version": headrace.__version__}
    made = Reply.json({**about, "catalogue": live.revision(service.models), "models": described})
    made.headers |= _headers()
    return made


async def _state(exchange: Exchange) -> Reply:
    live, service = _allowed_live(exchange), exchange.service
    given = _query(exchange)
    since = {name: int(text) for name, text in given.items() if text.isascii() and text.isdigit()}
    state = live.state(service.models, since)
    state |= {
        "catalogue": live.revision(service.models),
        "ready": service.ready,
        "in_flight": sum(service.counters.in_flight.values()) - 1,
    }
    made = Reply.json(state)
    made.headers |= _headers()
    return made


async def _load(exchange: Exchange) -> Reply:
    live, given = _allowed_live(exchange), _query(exchange)
    path, _, query = given.get("to", "").partition("?")
    name = exchange.path["model"]
    exchange.model = exchange.service.find(name)
    parts = path.split("/")
    if parts != ["", "run", name] and not (
        parts[:4] == ["", "v2", "models", name] and parts[-1] == "infer"
    ):
        raise InputError(
            "to", expected=f"/run/{name}, or an infer route of the model", got=path[:80]
        )
    clients = given.get("clients", "")
    if not (clients.isascii() and clients.isdigit()) or int(clients) > MOST_CLIENTS:
        raise InputError("clients", expected=f"0 to {MOST_CLIENTS}", got=clients[:40])
    headers = tuple(
        (key, exchange.header(key).encode("latin-1")) for key in _REPLAYED if exchange.header(key)
    )
    below = exchange.scope.get("root_path", "")
    replay = Replay(path, query.encode("latin-1"), headers, await exchange.body(), below)
    live.load.run(exchange.scope["app"], replay, int(clients))
    return Reply.json({"clients": int(clients)})


def _query(exchange: Exchange) -> dict[str, str]:
    text = exchange.scope["query_string"].decode("latin-1")
    return {name: values[-1] for name, values in parse_qs(text).items()}


PAGE_ROUTES: tuple[tuple[str, str, Callable[[Exchange], Awaitable[Reply]], Right | None], ...] = (
    ("GET", "/ui", _page, None),
    ("GET", "/ui/models.json", _models, "describe"),
    ("GET", "/ui/state.json", _state, "describe"),
    ("GET", "/ui/{file}", _part, None),
    ("POST", "/ui/load/{model}", _load, "infer"),
)
"""Method, path, handler and right of each route; page and scripts hold nothing that a key would guard."""
