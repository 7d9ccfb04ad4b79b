"""The graph of a pipeline: its nodes, how they are linked, and the requests that are on their way."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.route import Route, roots
from headrace._texts import repr_of
from headrace.errors import InputError, among

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._run.blueprint import Links
    from headrace._run.box import Box
    from headrace._run.node import Node
    from headrace.keys import Request


class Graph:
    """All nodes of a pipeline and how they are linked.

    Attributes:
        roots: The nodes at which a request without ``node_name`` may begin.
        only: The route from the only root. None where there are several roots.
        open: The requests that have begun and not ended.
        walking: Per request that its caller takes along, the thread of the caller.
    """

    def __init__(self, box: Box, links: Mapping[str, Links], nodes: Mapping[str, Node]) -> None:
        """Link the nodes.

        Args:
            box: The box of the pipeline.
            links: How each node is linked, in file order.
            nodes: The nodes, by name.
        """
        self.box = box
        self._schedulers = nodes
        self.open: dict[Any, None] = {}
        self.walking: dict[object, int] = {}
        self._links = links
        self.roots = roots(links)
        self._lenient = {  # where a request may end without a result, since an `or` follows
            name
            for name, one in links.items()
            if any(links[following].otherwise for following in one.next)
        }
        for name, scheduler in self._schedulers.items():
            scheduler.must_have_result = name not in self._lenient
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
            what, got = "the pipeline has several roots, and the request names none", None
            there, near = ", ".join(self.roots), None
            if name is not None:  # a request may enter at any node
                got, there = repr_of(name), ", ".join(self._links)
                what = f"no node is called {got}"
                near = among(name, self._links, "") or None if isinstance(name, str) else None
            raise InputError(what, key="node_name", expected=f"one of {there}", got=got, hint=near)
        return self.route_from(name)

    def route_from(self, name: str) -> Route:
        """Return the route of a request that enters at a node."""
        route = self._routes.get(name)
        if route is None:
            route = Route(name, self._links, self._schedulers, self._lenient)
            self._routes[name] = route
        return route

    def needs_this_thread(self) -> bool:
        """Tell whether a request needs the calling thread to go on."""
        return get_ident() in [*self.walking.values()]
