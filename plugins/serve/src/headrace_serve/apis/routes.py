"""The routes of other servers, which plugins give by the hook `headrace.hookspecs.headrace_apis`."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import headrace
from headrace.errors import ConfigError, Problem, among

__all__ = ["Answering", "ApiRoute", "routes_of"]

_PLACE = re.compile(r"(GET|POST) /\S+")
_OWN = re.compile(r"\w+ /(v2(?!/rerank$)|run|ui|docs|metrics|openapi\.json)(/|$)")
"""Where the server has routes of its own: Cohere's clients have the only other one below ``/v2``."""
_NAMED = re.compile(r"\{\w+\}")


Answering = Generator[tuple[Any, ...], tuple[list[dict[str, Any]], list[Any]], Any]
"""What the generator of a route is: it yields what to run, is sent the requests as the pipeline has left them and their results,
and returns the answer."""


@dataclass(frozen=True)
class ApiRoute:
    """A route of another server.

    Attributes:
        api: The name of its API.
        function: Answers what `headrace_serve.http.api_requests.Asked` has: a coroutine, an asynchronous generator of events, or
            for such a request and its JSON a generator of type `Answering`.
        right: The right that a key must have. None: no key is needed.
        error: Makes the body of a refusal for its status, code and text. None: it is that of every other route.
    """

    api: str
    function: Callable[..., Any]
    right: Literal["infer", "describe"] | None
    error: Callable[[int, str, str], Any] | None

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        said = (inspect.getdoc(self.function) or self.api).partition("\n")[0]
        return f"{self.api}: {said}"


def routes_of(names: Sequence[str]) -> dict[str, ApiRoute]:
    """Return the routes of these APIs, by method and path.

    Raises:
        ConfigError: No plugin has an API of a name, several have it, its table is wrong, or two have the same route.
        PluginError: Its table cannot be imported.
    """
    offers = [
        (offering, name, path)
        for offering in headrace.plugins.installed()
        if offering.usable
        for name, path in offering.offers["apis"].items()
    ]
    count = Counter(name for _, name, _ in offers)
    known = {
        **{f"{offering.plugin}:{name}": (offering, path) for offering, name, path in offers},
        **{name: (offering, path) for offering, name, path in offers if count[name] == 1},
    }
    routes: dict[str, ApiRoute] = {}
    taken: dict[str, tuple[str, str]] = {}
    for api in [names] if isinstance(names, str) else dict.fromkeys(names):
        if api not in known:
            raise _wrong(f"no plugin has an API {api!r}", among(api, sorted(known)))
        plugin, path = known[api]
        for place, route in _table(api, plugin.load(path)).items():
            same, first = taken.setdefault(_NAMED.sub("{}", place), (api, place))
            if same == api:
                routes[place] = route
            elif first == place and place.startswith("GET") and route.right == routes[place].right:
                routes[place] = _both(routes[place], route)
            else:
                problem = f"{place!r} is a route of {same!r} and of {api!r}"
                raise _wrong(problem, "Serve one of them.")
    return routes


def _both(first: ApiRoute, second: ApiRoute) -> ApiRoute:
    """Return a route that two APIs have, and only read: its answer has the fields of both, an error the form of the first."""

    async def answer(asked: Any) -> Any:
        bodies = [await route.function(asked) for route in (second, first)]
        if all(isinstance(body, dict) for body in bodies):
            return {key: value for body in bodies for key, value in body.items()}
        return bodies[-1]

    answer.__doc__ = inspect.getdoc(first.function)
    return ApiRoute(f"{first.api}, {second.api}", answer, first.right, first.error)


def _table(api: str, table: Any) -> dict[str, ApiRoute]:
    if not isinstance(table, Mapping):
        raise _wrong(f"API {api!r} is no table of routes, but {type(table).__name__}")
    more = {"error": None, "open": ()} | {k: table[k] for k in ("error", "open") if k in table}
    for place in more["open"]:
        if place not in table:
            raise _wrong(f"API {api!r} lets {place!r} be open, which is none of its routes")
    routes = {}
    for place, function in table.items():
        if place in more:
            continue
        if not _PLACE.fullmatch(place) or not callable(function):
            raise _wrong(f"API {api!r}: {place!r} is no route", "One is 'POST /path': a function.")
        if _OWN.match(place):
            raise _wrong(f"API {api!r}: {place!r} lies where the server has routes of its own")
        right: Any = "describe" if place.startswith("GET") else "infer"
        right = None if place in more["open"] else right
        routes[place] = ApiRoute(api, function, right, more["error"])
    return routes


def _wrong(problem: str, hint: str | None = None) -> ConfigError:
    return ConfigError(Problem("serve", f"--api: {problem}", hint=hint))
