"""What goes from node to node: the same dict, a shallow copy, or what a map makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._plan.links import KEPT
from headrace.errors import InputError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._graph.graph import Route, Station
    from headrace.keys import Request

__all__ = ["Ends", "elements", "finish", "gather", "input_of", "passes_by"]


class Ends:
    """How the nodes of one walk have ended.

    Attributes:
        dicts: Per node, its dict as it was at its end (a shallow copy where a map needs it later).
    """

    __slots__ = ("dicts",)

    def __init__(self) -> None:
        self.dicts: dict[str, Request] = {}

    def note(self, station: Station, request: Request) -> None:
        """Take note of the end of a node."""
        self.dicts[station.name] = dict(request) if station.kept else request


def passes_by(station: Station, ends: Ends) -> bool:
    """Tell whether a node with ``or`` is passed by, because its predecessor gave a result."""
    return (
        station.links.otherwise
        and bool(station.before)
        and "result" in ends.dicts[station.before[0]]
    )


def input_of(station: Station, route: Route, ends: Ends) -> Request:
    """Make the dict that a node runs on.

    Raises:
        NoResultError: A predecessor gave no result.
        InputError: A source that the map names is missing.
    """
    if not station.links.otherwise:
        for name in station.before:
            if "result" not in ends.dicts[name]:
                raise NoResultError(
                    f"node {name!r} gave no 'result' for node {station.name!r}", node=name
                )
    if station.links.map is not None:
        return _mapped(station, ends)
    (before,) = station.before
    ended = ends.dicts[before]
    source = route.by_name[before]
    request = dict(ended) if source.shared or source.kept else ended
    if not station.links.otherwise:
        request["data"] = request.pop("result")
    return request


def _mapped(station: Station, ends: Ends) -> Request:
    request: Request = {}
    assert station.links.map is not None  # noqa: S101 - the caller has looked
    for name, pairs in station.links.map.items():
        ended = ends.dicts.get(name)
        if ended is None:
            continue  # it takes no part in this walk
        for key in KEPT:
            if key in ended:
                request.setdefault(key, ended[key])
        for source, target in pairs.items():
            if source == "result" and station.links.otherwise and source not in ended:
                source = "data"
            if source not in ended:
                raise InputError(
                    f"node {name!r} ended without the key {source!r} that the map of node "
                    f"{station.name!r} asks for",
                    key=source,
                    node=name,
                )
            request[target] = ended[source]
    if "data" not in request:
        raise InputError(
            f"nothing on this way brings 'data' to node {station.name!r}",
            key="data",
            node=station.name,
        )
    return request


def elements(station: Station, request: Request) -> list[Request]:
    """Make one shallow copy per element of the list that ``each`` names.

    Raises:
        InputError: The key is missing, or holds no list.
    """
    assert station.links.each is not None  # noqa: S101 - the caller has looked
    source, target = station.links.each
    values: Any = request.get(source)
    if not isinstance(values, (list, tuple)):
        raise InputError(
            f"node {station.name!r} runs once per element of {source!r}",
            key=source,
            expected="a list",
            got=type(values).__name__ if source in request else "nothing",
            node=station.name,
        )
    copies = []
    for value in values:
        copy = dict(request)
        copy.pop("result", None)
        copy[target] = value
        copies.append(copy)
    return copies


def gather(
    station: Station,
    request: Request,
    copies: list[Request],
    errors: list[BaseException | None],
) -> BaseException | None:
    """Put the results of all elements into the request; give the error that fails it, if any."""
    results = []
    for copy, error in zip(copies, errors, strict=True):
        if error is None and "result" not in copy:
            error = NoResultError(
                f"an element gave no 'result' in node {station.name!r}", node=station.name
            )
        if error is not None and not station.links.keep_errors:
            return error
        results.append(None if error is not None else copy["result"])
    request["result"] = results
    return None


def finish(route: Route, ends: Ends, request: Request, data: Any) -> None:
    """Give the caller's dict what the sinks have: ``result`` and, from a single one, its keys.

    Raises:
        NoResultError: A sink gave no result.
    """
    for name in route.sinks:
        if "result" not in ends.dicts[name]:
            raise NoResultError(f"node {name!r} gave no 'result'", node=name)
    if len(route.sinks) == 1:
        ended: Mapping[str, Any] = ends.dicts[route.sinks[0]]
        if ended is not request:
            request.update(ended)
    else:
        request["result"] = {name: ends.dicts[name]["result"] for name in route.sinks}
    request["data"] = data
