"""Callers that wait for requests in a graph, in steps or by `walk` in their own thread.

A caller takes it along where every node runs once and the branches are cheap.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING

from headrace._run.batches.runners import Waiter, wait
from headrace._run.graph.graph_request import GraphRequest, send_all
from headrace._run.graph.traversal import finish, no_result
from headrace._run.requests.entry import Entry, restore
from headrace._run.requests.refusals import endless_wait
from headrace._run.steps.box import post, refuse_inside
from headrace._run.steps.threads import check_stack
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace._run.graph.route import Ends, Graph, Route
    from headrace._run.node import Node
    from headrace.keys import Request

CHEAP_S = 200e-6
"""Below this mean forward, branches run one after the other in the caller's thread."""


def is_cheap(route: Route) -> bool:
    """Tell whether a caller may run the branches of a route one after the other itself."""
    for node in route.parallel:
        for instance in node.instances:
            if instance.mean_s >= CHEAP_S:
                return False
    return True


def may_wait(route: Route, entry: Entry) -> bool:
    """Refuse a request that needs an instance of this thread, where none is free."""
    for step in route.steps:
        if step.node.is_held_by_this_thread() and not step.node.free:
            error = endless_wait(step.name)
            step.node.count_refused(entry.request, error)
            entry.refuse(error)
            return False
    return True


def run_and_wait(graph: Graph, items: list[tuple[Route, Entry]]) -> None:
    """Let several requests go through the graph, and wait until each entry has its outcome."""
    if not items:
        return
    refuse_inside(items[0][0].first.name)
    check_stack()
    fresh = [(route, entry) for route, entry in items if may_wait(route, entry)]
    requests = [GraphRequest(graph, route, entry) for route, entry in fresh]
    entries = [entry for _, entry in fresh]
    wait(graph.box, Waiter(entries), entries, send_all, requests)


def walk(graph: Graph, route: Route, request: Request) -> None:
    """Take a request through the graph in the calling thread, without a deadline.

    It raises the error of the request.
    """
    if not route.is_walked or (route.parallel and not is_cheap(route)):
        entry = Entry(request)
        run_and_wait(graph, [(route, entry)])
        entry.raise_error()
        return
    data = request["data"]
    token, walking = object(), graph.walking
    home = route.first
    try:
        walking[token] = get_ident()
        route.first.call(request)
        if route.is_chain:  # one dict all the way
            for _, _, node, _ in route.hops:
                request["data"] = request.pop("result")
                node.call(request, internal=True, home=home)
        else:
            _hop(route, request, home)
        request["data"] = data
    except BaseException as error:
        restore(request, data, error)
        raise
    finally:
        walking.pop(token, None)
        if graph.box.closes:
            post(graph.box, graph.box.look_if_quiet)


def _hop(route: Route, request: Request, home: Node) -> None:
    """Take a request through the nodes after the first."""
    ends: Ends = {route.start.name: request}
    current = request
    for name, make, node, before in route.hops:
        if before is not None and "result" in ends[before]:
            current = ends[name] = dict(ends[before])  # the node with `or` is passed by
            continue
        try:
            current = ends[name] = make(ends)
        except HeadraceError as error:
            node.count_refused(request, error)
            raise
        node.call(current, internal=True, home=home)
    if len(route.sinks) == 1 and "result" in current:
        if current is not request:
            request.update(current)
        return
    silent = finish([(sink, ends[sink.name]) for sink in route.sinks], request)
    if silent is not None:
        missing = no_result(silent)
        silent.node.count_late(request, missing)
        raise missing
