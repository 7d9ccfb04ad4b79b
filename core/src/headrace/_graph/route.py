"""How nodes are linked, and the route of a request that enters at a node, worked out once per node."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import InputError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

KEPT = ("context", "request_id")
"""The keys that a ``map`` copies without naming them."""

Pairs = tuple[tuple[str, str], ...]
"""Pairs of source key and target key that a map takes from one node."""

Ends = dict[str, "Request"]
"""Per node of a route that has ended, its dict at that moment."""


class Each(NamedTuple):
    """The ``each`` of a node, which runs once per element of a list.

    Attributes:
        node: The name of the node.
        source: The key that holds the list.
        target: The key under which the node finds the element.
        keep_errors: ``each_errors = "none"``: the result of an element that fails is None.
    """

    node: str
    source: str
    target: str
    keep_errors: bool = False


@dataclass(frozen=True)
class Links:
    """How one node is linked to the others.

    Attributes:
        name: The name of the node.
        next: The names of its successors.
        map: For each node that the map names, pairs of source key and target key; None without a map.
        otherwise: The key ``or``: the node runs only where its predecessor gave no result.
        each: Its own ``each``; None when it runs once.
        reposts: The nodes at which a `Repost` in its expression lets a request go on.
        limits: By such a node, how often a request may be reposted in all until it goes on there.
        calls: The nodes that its expression calls with ``Forward[node.x]``.
        alias_of: The node behind it, when it is a second door; else None.
        levels: Its own ``each``; for a second door also those of the nodes behind it.
        timeout_ms: The smallest ``timeout_ms`` of it and the second doors behind it, which the node behind
            them does not know; None for none, and for a node that is no second door.
    """

    name: str
    next: tuple[str, ...] = ()
    map: Mapping[str, Pairs] | None = None
    otherwise: bool = False
    each: Each | None = None
    reposts: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)
    calls: tuple[str, ...] = ()
    alias_of: str | None = None
    levels: tuple[Each, ...] = ()
    timeout_ms: float | None = None


def is_graph(links: Mapping[str, Links]) -> bool:
    """Tell whether a request may go through more than one call of one node."""
    return len(links) > 1 or any(one.levels or one.reposts for one in links.values())


@dataclass(eq=False)
class Step:
    """A node on a route.

    Attributes:
        name: The node.
        index: Its place among all nodes, in file order.
        scheduler: Its scheduler, which only the drivers use.
        links: How it is linked.
        next: The steps after it.
        make: Makes the dict on which it runs, from the ends of its predecessors; see `_input_of`.
        takes_copy: Whether it runs on a shallow copy of its predecessor's dict: the predecessor has other
            successors, or a later map reads the keys with which the predecessor ended.
        skipped: The names of this step and all after it, where a `Repost` may end the leg here.
        levels, timeout_ms: See `Links`.
        runs_once: Whether a request runs here as a single entry under the limits of the node alone: there
            is no ``each``, and no ``timeout_ms`` of a second door.
    """

    name: str
    index: int
    scheduler: Scheduler
    links: Links
    next: tuple[Step, ...]
    make: Callable[[Ends], Request]
    takes_copy: bool
    skipped: frozenset[str]

    def __post_init__(self) -> None:
        self.levels, self.timeout_ms = self.links.levels, self.links.timeout_ms
        self.runs_once = not self.levels and self.timeout_ms is None


class Route:
    """The nodes that take part when a request enters at one node.

    Attributes:
        steps: The nodes, each after its predecessors.
        start, first: The node at which a request enters, and its scheduler.
        joins: For each node with several predecessors, their number.
        sinks: The nodes without successors, in file order.
        parallel: The schedulers of branches that may run at the same time, also after a `Repost`.
        is_walked: Whether a caller may take its request along: every node runs once, or with ``or`` perhaps not at all.
        is_chain: Whether every node runs once and hands its dict to the one next node.
        hops: Name, `Step.make` and scheduler of the nodes after the first; and for one with ``or`` its predecessor, else None.
    """

    def __init__(
        self,
        entry: str,
        links: Mapping[str, Links],
        schedulers: Mapping[str, Scheduler],
        lenient: Collection[str],
    ) -> None:
        """Work out the route.

        Args:
            entry: The node at which a request enters.
            links: How all nodes are linked, in file order.
            schedulers: The schedulers of the nodes, by name.
            lenient: The nodes that may end without a result.
        """
        before: dict[str, list[str]] = {name: [] for name in reached(links, entry)}
        for name, one in links.items():
            if name in before:
                for following in one.next:
                    before[following].append(name)
        order = list(TopologicalSorter(before).static_order())
        mapped = {source for name in order for source in (links[name].map or ())}
        index = {name: i for i, name in enumerate(links)}
        made: dict[str, Step] = {}
        for name in reversed(order):
            one, first = links[name], next(iter(before[name]), None)
            copies = first is not None and (len(links[first].next) > 1 or first in mapped)
            made[name] = Step(
                name,
                index[name],
                schedulers[name],
                one,
                tuple(made[following] for following in one.next),
                _input_of(one, before[name], before, lenient, copies=copies),
                copies,
                frozenset(reached(links, name)) if one.reposts else frozenset(),
            )
        self.steps = tuple(made[name] for name in order)
        self.start = self.steps[0]
        self.first = self.start.scheduler
        self.joins = {name: len(found) for name, found in before.items() if len(found) > 1}
        sinks = (one for one in self.steps if not one.next)
        self.sinks = tuple(sorted(sinks, key=lambda one: one.index))
        self.parallel = tuple(schedulers[name] for name in _parallel(links, entry))
        self.is_walked = all(one.runs_once and not one.links.reposts for one in self.steps)
        self.is_chain = self.is_walked and all(
            len(one.next) <= 1
            and not one.links.otherwise
            and one.name not in lenient
            and (one is self.start or one.links.map is None)
            for one in self.steps
        )
        self.hops = [
            (
                one.name,
                one.make,
                one.scheduler,
                before[one.name][0] if one.links.otherwise else None,
            )
            for one in self.steps[1:]
        ]

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The keys without which a request may not enter; ``each`` makes its target keys itself."""
        made = {each.target for each in self.start.levels}
        return tuple(key for key in self.first.needs if key not in made)


# The dict that goes from node to node: the same one, a shallow copy, or a new one that a map makes.


def _input_of(
    links: Links,
    before: Sequence[str],
    known: Collection[str],
    lenient: Collection[str],
    *,
    copies: bool,
) -> Callable[[Ends], Request]:
    """Return the function that makes the dict on which a node runs.

    Args:
        links: How the node is linked.
        before: Its predecessors.
        known: All nodes of the route.
        lenient: The nodes that may end without a result; at any other node that fails the request.
        copies: Whether the node takes a copy of its predecessor's dict.

    Returns:
        A function that raises NoResultError where a predecessor gave no result, and InputError where
        a source key of the map is missing, or no predecessor brings ``data``.
    """
    may_lack = () if links.otherwise else tuple(name for name in before if name in lenient)
    if links.map is not None:
        pairs = [
            (name, source, target)
            for name, found in links.map.items()
            if name in known
            for source, target in found
        ]
        return _map_of(pairs, links, may_lack)
    source = before[0] if before else links.name  # the function is never called for the first node
    otherwise = links.otherwise

    def handed_over(ends: Ends) -> Request:
        if may_lack:
            _check_results(may_lack, links, ends)
        request = dict(ends[source]) if copies else ends[source]
        if not otherwise:
            request["data"] = request.pop("result")
        return request

    return handed_over


def _map_of(
    pairs: Sequence[tuple[str, str, str]], links: Links, may_lack: Sequence[str]
) -> Callable[[Ends], Request]:
    """Return the function that makes the dict of a map; see `_input_of`."""

    def mapped(ends: Ends) -> Request:
        if may_lack:
            _check_results(may_lack, links, ends)
        request: Request = {}
        for name, source, target in pairs:
            ended = ends[name]
            if source in ended:
                request[target] = ended[source]
            elif source == "result" and links.otherwise and "data" in ended:
                request[target] = ended["data"]
            else:
                asks = f"that the map of node {links.name!r} asks for"
                what = f"node {name!r} ended without the key {source!r} {asks}"
                raise InputError(what, key=source, node=name)
            if "context" in ended or "request_id" in ended:
                for key in KEPT:
                    if key in ended and key not in request:
                        request[key] = ended[key]
        if "data" not in request:
            what = f"nothing on this way brings 'data' to node {links.name!r}"
            raise InputError(what, key="data", node=links.name)
        return request

    return mapped


def _check_results(names: Sequence[str], links: Links, ends: Ends) -> None:
    for name in names:
        if "result" not in ends[name]:
            what = f"node {name!r} gave no 'result' for node {links.name!r}"
            raise NoResultError(what, node=name)


def _parallel(links: Mapping[str, Links], entry: str) -> list[str]:
    """Return all nodes on the way from ``entry`` that may run at the same time as another one."""
    all_reached = reached(links, entry, reposts=True)
    found: set[str] = set()
    for name in all_reached:
        if len(links[name].next) > 1:
            branches = [reached(links, following) for following in links[name].next]
            common = branches[0].intersection(*branches[1:])
            found.update(one for branch in branches for one in branch - common)
    return [name for name in links if name in found]


def roots(links: Mapping[str, Links]) -> tuple[str, ...]:
    """Return the nodes to which no other node leads: a request without ``node_name`` may begin there.

    A node leads to another one by ``next``, by a `Repost`, or by an expression that calls the other; a
    second door leads to the node behind it if the door has ``each`` or ``next`` and that node has no
    ``next``. Of several nodes that lead to each other in a cycle of reposts, the first in the file is a root.
    """
    following = {name for one in links.values() for name in one.next}
    found: list[str] = []
    candidates = [name for name in links if name not in following]
    behind = {name: reached(links, name, reposts=True, calls=True) for name in candidates}
    for name in candidates:
        leads = [other for other in candidates if other != name and name in behind[other]]
        # Two nodes of a cycle lead to each other: of these only the first in the file, found before, counts.
        if not any(other not in behind[name] or other in found for other in leads):
            found.append(name)
    return tuple(found)


def reached(
    links: Mapping[str, Links], *starts: str, reposts: bool = False, calls: bool = False
) -> set[str]:
    """Return the nodes ``starts``, and those to which they lead."""

    def ways(name: str) -> list[str]:
        one = links[name]
        found = [*one.next, *(one.reposts if reposts else ())]
        if calls and not (name in starts and _is_another_entry(links, one)):
            found += one.calls
        return [following for following in found if following in links]

    return closure(starts, ways)


def closure(starts: Iterable[str], ways: Callable[[str], Iterable[str]]) -> set[str]:
    """Return ``starts`` and all to which they lead, where ``ways(name)`` gives what follows a name."""
    found, todo = {*starts}, [*starts]
    while todo:
        new = set(ways(todo.pop())) - found
        found |= new
        todo += new
    return found


def _is_another_entry(links: Mapping[str, Links], one: Links) -> bool:
    """Tell whether a second door leaves the node behind it a root of its own."""
    return one.alias_of is not None and bool(links[one.alias_of].next or not (one.each or one.next))
