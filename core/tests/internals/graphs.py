"""The adapter between tests and requests on their way through a graph."""

from __future__ import annotations

import threading

from headrace._graph.request import GraphRequest
from headrace._graph.request import start as start
from headrace._scheduling.batch import entry_here
from headrace._scheduling.cycles import batches_run
from headrace._scheduling.entry import NOBODY, Entry

__all__ = [
    "entry_of",
    "graph_request",
    "running",
    "start",
]


def graph_request(pipe, request):
    """Return a request that is about to enter the graph of a pipeline, and that graph."""
    graph = pipe._engine.graph
    return GraphRequest(graph, graph.route_of(request), Entry(request), NOBODY), graph


def entry_of(request):
    """Find the entry of a request in a batch that runs here, or make one for it."""
    return entry_here()(request)


def running(monkeypatch, batches):
    """Let the calling thread run these batches."""
    monkeypatch.setitem(batches_run, threading.get_ident(), batches)
