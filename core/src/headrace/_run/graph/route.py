"""The graph of a pipeline: how its nodes are linked, what is on its way, and the routes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from headrace._texts import repr_of
from headrace.errors import InputError, NoResultError, among

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from headrace._run.contract.settings import Links
    from headrace._run.graph.graph_request import GraphRequest
    from headrace._run.node import Node
    from headrace._run.steps.box import Box
    from headrace.keys import Request

KEPT = ("context", "request_id")
"""The keys that a ``map`` copies without naming them."""

Ends = dict[str, "Request"]
"""Per node of a route that has ended, its dict at that moment."""


def is_graph(links: Mapping[str, Links]) -> bool:
    """Tell whether a request may go through more than one call of one node."""
    return len(links) > 1 or any(linked.each is not None for linked in links.values())


@dataclass(eq=False)
class Step:
    """A node on a route.

    Attributes:
        name: The node.
        index: Its place among all nodes, in file order.
        node: Its node, which only the drivers use.
        links: How it is linked.
        next: The steps after it.
        make: Makes the dict on which it runs, from the ends of its predecessors. See `_input_of`.
        takes_copy: Whether it runs on a shallow copy of its predecessor's dict: the predecessor has
            other successors, or a later map reads the keys with which the predecessor ended.
        each: Its links where it runs once per element. None where it runs once.
    """

    name: str
    index: int
    node: Node
    links: Links
    next: tuple[Step, ...]
    make: Callable[[Ends], Request]
    takes_copy: bool

    def __post_init__(self) -> None:
        self.each = self.links if self.links.each is not None else None


class Route:
    """The nodes that take part when a request enters at one node.

    Attributes:
        steps: The nodes, each after its predecessors.
        start, first: The step at which a request enters, and its node.
        joins: For each node with several predecessors, their number.
        sinks: The nodes without successors, in file order.
        parallel: The nodes of branches that may run at the same time.
        is_walked: Whether a caller may take its request along: every node runs once, or with ``or``
            perhaps not at all, and none lets it go on elsewhere.
        is_chain: Whether every node runs once and hands its dict to the one next node.
        hops: Name, `Step.make` and node of the nodes after the first, and for one with ``or`` its
            predecessor, else None.
    """

    def __init__(
        self,
        entry: str,
        links: Mapping[str, Links],
        nodes: Mapping[str, Node],
        lenient: Collection[str],
    ) -> None:
        """Work out the route.

        Args:
            entry: The node at which a request enters.
            links: How all nodes are linked, in file order.
            nodes: The nodes, by name.
            lenient: The nodes that may end without a result.
        """
        before: dict[str, list[str]] = {name: [] for name in nodes_reached(links, entry)}
        for name, linked in links.items():
            for following in linked.next if name in before else ():
                before[following].append(name)
        order = list(TopologicalSorter(before).static_order())
        mapped = {source for name in order for source in links[name].map}
        index = {name: i for i, name in enumerate(links)}
        steps: dict[str, Step] = {}
        for name in reversed(order):
            linked, first = links[name], next(iter(before[name]), None)
            copies = first is not None and (len(links[first].next) > 1 or first in mapped)
            steps[name] = Step(
                name,
                index[name],
                nodes[name],
                linked,
                tuple(steps[following] for following in linked.next),
                _input_of(linked, before[name], before, lenient, copies=copies),
                copies,
            )
        self.steps = tuple(steps[name] for name in order)
        self.start = self.steps[0]
        self.first = self.start.node
        self.joins = {name: len(names) for name, names in before.items() if len(names) > 1}
        sinks = (step for step in self.steps if not step.next)
        self.sinks = tuple(sorted(sinks, key=lambda step: step.index))
        self.parallel = tuple(nodes[name] for name in parallel(links, before))
        self.is_walked = all(step.each is None and not step.links.reposts for step in self.steps)
        self.is_chain = self.is_walked and all(
            len(step.next) <= 1
            and not step.links.otherwise
            and step.name not in lenient
            and (step is self.start or not step.links.map)
            for step in self.steps
        )
        passed = {name: before[name][0] for name in order if links[name].otherwise and before[name]}
        self.hops = [
            (step.name, step.make, step.node, passed.get(step.name)) for step in self.steps[1:]
        ]

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """The keys without which a request may not enter; ``each`` makes its target keys itself."""
        pair = self.start.each
        return tuple(key for key in self.first.needs if pair is None or key != pair._each_keys[1])


class Graph:
    """All nodes of a pipeline and how they are linked.

    Attributes:
        roots: The nodes at which a request without ``node_name`` may begin.
        only: The route from the only root. None where there are several roots.
        open: The requests that have begun and not ended.
        walking: Per request that its caller takes along, the thread of the caller.
    """

    def __init__(self, box: Box, links: Mapping[str, Links], nodes: Mapping[str, Node]) -> None:
        """Link the nodes, by the box of the pipeline, the links in file order, and the nodes."""
        self.box, self._links, self._nodes = box, links, nodes
        self.open: dict[GraphRequest, None] = {}
        self.walking: dict[object, int] = {}
        self.roots = roots(links)
        self._lenient = {  # where a request may end without a result, since an `or` follows
            name
            for name, linked in links.items()
            if any(links[following].otherwise for following in linked.next)
        }
        for name, node in nodes.items():
            node.must_have_result = name not in self._lenient
        self._routes: dict[str, Route] = {}
        self.only = self.route_from(self.roots[0]) if len(self.roots) == 1 else None

    def route_of(self, request: Request) -> Route:
        """Return the route of a request.

        Raises:
            InputError: The request names no node where there are several roots, or an unknown node.
        """
        name = request.get("node_name")
        if name is None and self.only is not None:
            return self.only
        if not isinstance(name, str) or name not in self._links:
            message, got = "the pipeline has several roots, and the request names none", None
            there, like = ", ".join(self.roots), None
            if name is not None:  # a request may enter at any node
                got, there = repr_of(name), ", ".join(self._links)
                message = f"no node is called {got}"
                like = among(name, self._links, "") or None if isinstance(name, str) else None
            raise InputError(
                message, key="node_name", expected=f"one of {there}", got=got, hint=like
            )
        return self.route_from(name)

    def route_from(self, name: str) -> Route:
        """Return the route of a request that enters at a node."""
        route = self._routes.get(name)
        if route is None:
            route = Route(name, self._links, self._nodes, self._lenient)
            self._routes[name] = route
        return route


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
        lenient: The nodes that may end without a result. At any other node that fails the request.
        copies: Whether the node takes a copy of its predecessor's dict.

    Returns:
        A function that raises NoResultError where a predecessor gave no result, and InputError
        where a source key of the map is missing, or no predecessor brings ``data``.
    """
    may_lack = () if links.otherwise else tuple(name for name in before if name in lenient)
    if links.map:
        pairs = [
            (name, source, target)
            for name, taken in links.map.items()
            if name in known
            for source, target in pairs_of(taken)
        ]
        return _map_of(pairs, links, may_lack)
    source = before[0] if before else links.name  # the function is never called for the first node
    otherwise = links.otherwise

    def pass_on(ends: Ends) -> Request:
        if may_lack:
            _check_results(may_lack, links, ends)
        request = dict(ends[source]) if copies else ends[source]
        if not otherwise:
            request["data"] = request.pop("result")
        return request

    return pass_on


def pairs_of(mapping: Mapping[str, str | Sequence[str]]) -> list[tuple[str, str]]:
    """Return the pairs of source key and target key that a map takes from one node."""
    listed = ((source, [to] if isinstance(to, str) else to) for source, to in mapping.items())
    return [(source, target) for source, targets in listed for target in targets]


def _map_of(
    pairs: Sequence[tuple[str, str, str]], links: Links, may_lack: Sequence[str]
) -> Callable[[Ends], Request]:
    """Return the function that makes the dict of a map; see `_input_of`."""

    def map_keys(ends: Ends) -> Request:
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
                message = f"node {name!r} ended without the key {source!r} {asks}"
                raise InputError(message, key=source, node=name)
            if "context" in ended or "request_id" in ended:
                for key in KEPT:
                    if key in ended and key not in request:
                        request[key] = ended[key]
        if "data" not in request:
            message = f"nothing on this way brings 'data' to node {links.name!r}"
            raise InputError(message, key="data", node=links.name)
        return request

    return map_keys


def _check_results(names: Sequence[str], links: Links, ends: Ends) -> None:
    for name in names:
        if "result" not in ends[name]:
            message = f"node {name!r} gave no 'result' for node {links.name!r}"
            raise NoResultError(message, node=name)


def parallel(links: Mapping[str, Links], forks: Iterable[str]) -> set[str]:
    """Return the nodes that may run beside another one, where branches part at ``forks``."""
    beside: set[str] = set()
    for name in forks:
        if len(links[name].next) > 1:
            branches = [nodes_reached(links, following) for following in links[name].next]
            common = branches[0].intersection(*branches[1:])
            beside.update(name_beside for branch in branches for name_beside in branch - common)
    return beside


def roots(links: Mapping[str, Links]) -> tuple[str, ...]:
    """Return the nodes to which no other leads: without ``node_name`` a request begins there.

    A node leads to another one by ``next``, by letting requests go on there, or by an expression
    that calls the other. Of several nodes that lead to each other in a cycle, the first in the file
    is a root.
    """
    following = {name for linked in links.values() for name in linked.next}
    first: list[str] = []
    candidates = [name for name in links if name not in following]
    behind = {name: nodes_reached(links, name, all_ways=True) for name in candidates}
    for name in candidates:
        leads = [other for other in candidates if other != name and name in behind[other]]
        # Two nodes of a cycle lead to each other: of these only the first in the file, found
        # before, counts.
        if not any(other not in behind[name] or other in first for other in leads):
            first.append(name)
    return tuple(first)


def nodes_reached(links: Mapping[str, Links], start: str, *, all_ways: bool = False) -> set[str]:
    """Return the node ``start``, and those to which it leads by ``next``, or in all ways."""

    def ways(name: str) -> list[str]:
        at = links[name]
        next_names = [*at.next, *at.reposts, *at.calls] if all_ways else at.next
        return [following for following in next_names if following in links]

    return closure([start], ways)


def closure(starts: Iterable[str], ways: Callable[[str], Iterable[str]]) -> set[str]:
    """Return ``starts`` and all to which they lead; ``ways(name)`` follow a name."""
    reached, todo = {*starts}, [*starts]
    while todo:
        new = set(ways(todo.pop())) - reached
        reached |= new
        todo += new
    return reached
