"""What goes from node to node: the same dict, a shallow copy, or what a map makes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace._graph.links import KEPT
from headrace._portable import shown, told
from headrace.errors import ContractError, InputError, LimitError, NoResultError
from headrace.keys import REPOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace._graph.graph import Station
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = [
    "MOST_REPOSTS",
    "Ends",
    "Hop",
    "finish",
    "hops_of",
    "input_of",
    "mapped",
    "passes_by",
    "repost_of",
    "too_often",
    "unable",
]

MOST_REPOSTS = 100
"""How often one request may go on at another node."""

Ends = dict[str, "Request"]
"""Per node of a route, its dict as it was at its end."""


class Hop(NamedTuple):
    """How one plain node of a route is reached, worked out beforehand.

    Attributes:
        name: The node.
        scheduler: Its queue and instances.
        source: The node whose dict it takes; None with a map.
        copies: Whether it takes a copy.
        pairs: The map: per pair the node, its key and the key it goes to.
        station: The node as a station.
    """

    name: str
    scheduler: Scheduler
    source: str | None
    copies: bool
    pairs: tuple[tuple[str, str, str], ...]
    station: Station


def hops_of(stations: Sequence[Station]) -> tuple[Hop, ...]:
    """Work out how the nodes of a route after the first are reached."""
    by_name = {station.name: station for station in stations}
    hops = []
    for station in stations[1:]:
        source = None if station.links.map is not None else station.before[0]
        copies = source is not None and by_name[source].copied
        pairs = tuple(
            (name, key, target)
            for name, keys in (station.links.map or {}).items()
            for key, target in keys
            if name in by_name
        )
        hops.append(Hop(station.name, station.scheduler, source, copies, pairs, station))
    return tuple(hops)


def passes_by(station: Station, ends: Ends) -> bool:
    """Tell whether a node with ``or`` is passed by, because its predecessor gave a result."""
    return station.links.otherwise and bool(station.before) and "result" in ends[station.before[0]]


def input_of(station: Station, by_name: Mapping[str, Station], ends: Ends) -> Request:
    """Make the dict that a node runs on.

    Raises:
        NoResultError: A predecessor gave no result.
        InputError: A source that the map names is missing.
    """
    if not station.links.otherwise:
        for name in station.before:
            if "result" not in ends[name]:
                raise NoResultError(
                    f"node {name!r} gave no 'result' for node {station.name!r}", node=name
                )
    if station.links.map is not None:
        sources = station.links.map.items()
        pairs = [(n, k, t) for n, keys in sources if n in ends for k, t in keys]
        return mapped(station, pairs, ends)
    (before,) = station.before
    ended = ends[before]
    request = dict(ended) if by_name[before].copied else ended
    if not station.links.otherwise:
        request["data"] = request.pop("result")
    return request


def mapped(station: Station, pairs: Sequence[tuple[str, str, str]], ends: Ends) -> Request:
    """Make the dict that a map describes.

    Raises:
        InputError: A source is missing, or nothing brings ``data``.
    """
    request: Request = {}
    for name, source, target in pairs:
        ended = ends[name]
        if source in ended:
            request[target] = ended[source]
        elif source == "result" and station.links.otherwise:
            request[target] = ended["data"]
        else:
            raise InputError(
                f"node {name!r} ended without the key {source!r} that the map of node "
                f"{station.name!r} asks for",
                key=source,
                node=name,
            )
        if "context" in ended or "request_id" in ended:
            for key in KEPT:
                if key in ended and key not in request:
                    request[key] = ended[key]
    if "data" not in request:
        raise InputError(
            f"nothing on this way brings 'data' to node {station.name!r}",
            key="data",
            node=station.name,
        )
    return request


def repost_of(station: Station, request: Request) -> str | None:
    """Take out of a dict at which node its walk is to go on, if a `Repost` ended it here.

    Raises:
        ContractError: The key names a node that no `Repost` of this one does.
    """
    target = request.pop(REPOST, None)
    if target is None:
        return None
    if type(target) is not str or target not in station.links.reposts:
        raise ContractError(
            f"the key {REPOST!r} holds {shown(target)}: it is written by Repost[node] only",
            node=station.name,
        )
    if "result" not in request:
        raise NoResultError(
            f"node {station.name!r} gave no 'result' to repost to {target!r}", node=station.name
        )
    request["data"] = request.pop("result")
    return str(target)


def unable(station: Station, error: BaseException) -> ContractError:
    """Make the error of a request that cannot go on from a node, for its dict or a value raises."""
    failure = ContractError(f"the request cannot go on: {told(error)}", node=station.name)
    failure.__cause__ = error
    return failure


def too_often(station: Station, target: str) -> LimitError:
    """Make the error of a request that goes on at another node time and again."""
    return LimitError(
        f"the request was reposted more than {MOST_REPOSTS} times, last from node "
        f"{station.name!r} to {target!r}",
        limit=MOST_REPOSTS,
        node=station.name,
        hint="See why it never comes to an end.",
    )


def finish(sinks: Sequence[tuple[Station, Request]], request: Request) -> None:
    """Give the caller's dict what the sinks have: ``result`` and, from a single one, its keys.

    Its ``data`` is that of the sink, and is to be put back.

    Raises:
        NoResultError: A sink gave no result; it is counted there.
    """
    for station, ended in sinks:
        if "result" not in ended:
            error = NoResultError(f"node {station.name!r} gave no 'result'", node=station.name)
            station.scheduler.count_late(error)
            raise error
    if len(sinks) == 1:
        ((_, ended),) = sinks
        if ended is not request:
            request.update(ended)
    else:
        request["result"] = {station.name: ended["result"] for station, ended in sinks}
