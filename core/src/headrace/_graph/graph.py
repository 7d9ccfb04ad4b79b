"""The graph of a built pipeline: its routes, and the requests that are on their way."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace._graph.route import Route, roots
from headrace._portable import nearest, shown
from headrace._scheduling.threads import Watchers, served_by
from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._graph.route import Links
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request


class Graph:
    """All nodes of a pipeline and how they are linked.

    Attributes:
        roots: The nodes at which a request without ``node_name`` may begin.
        only: The route from the only root; None where there are several roots.
        in_flight: A token per request that has begun and not ended. Between two nodes a request is in no
            queue, so closing would not wait for it without the token. With each token the thread without which
            the request does not go on; 0 for a request that any thread takes from node to node.
        closers: The threads that wait for the end of requests: a close, or a reload.
    """

    def __init__(self, links: Mapping[str, Links], schedulers: Mapping[str, Scheduler]) -> None:
        """Link the nodes.

        Args:
            links: How each node is linked, in file order.
            schedulers: The schedulers of the nodes, by name.
        """
        self._schedulers = schedulers
        self.in_flight: dict[object, int] = {}
        self.closers = Watchers()
        self.link(links)

    def link(self, links: Mapping[str, Links]) -> None:
        """Link the nodes anew; requests that are on their way keep the route with which they began."""
        self._links = links
        self.roots = roots(links)
        # A request may end without a result at a node that an `or` follows. The rule belongs to the
        # scheduler, so it holds for all second doors to it as well.
        lenient = {
            id(self._schedulers[name])
            for name, one in links.items()
            if any(links[following].otherwise for following in one.next)
        }
        self._lenient = {name for name in links if id(self._schedulers[name]) in lenient}
        for scheduler in self._schedulers.values():
            scheduler.result_required(id(scheduler) not in lenient)
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
                got, there = shown(name), ", ".join(self._links)
                what = f"no node is called {got}"
                near = nearest(name, self._links) if isinstance(name, str) else None
            hint = f"Did you mean {near!r}?" if near else None
            raise InputError(what, key="node_name", expected=f"one of {there}", got=got, hint=hint)
        return self.route_from(name)

    def route_from(self, name: str) -> Route:
        """Return the route of a request that enters at a node."""
        # `link` replaces the links first and then the table of routes; this looks up the table first and then the
        # links. So what is put into the new table is a route of the new links, in whichever order the two run.
        routes = self._routes
        route = routes.get(name)
        if route is None:
            route = routes[name] = Route(name, self._links, self._schedulers, self._lenient)
        return route

    def ended(self, request: object) -> None:
        """Remove a request from those in flight; a second call changes nothing."""
        self.in_flight.pop(request, None)
        self.closers.wake()

    def needs_this_thread(self) -> bool:
        """Tell whether a request needs the calling thread, or one that waits for it, to go on."""
        return not served_by(get_ident()).isdisjoint(list(self.in_flight.values()))

    def wait_ended(self, until: float) -> bool:
        """Wait until no request is on its way; False when ``until`` came first."""
        return self.closers.wait(lambda: not self.in_flight, until)
