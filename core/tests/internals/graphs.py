"""The adapter between tests and requests on their way through a graph."""

from __future__ import annotations

import threading

from headrace._running.batch import batches_run, entry_here
from headrace._running.entry import Entry
from headrace._running.graph_request import GraphRequest


def graph_request(pipe, request):
    """Return a request that is about to enter the graph of a pipeline, and that graph."""
    graph = pipe._engine.graph
    return GraphRequest(graph, graph.route_of(request), Entry(request)), graph


def entry_of(request):
    """Find the entry of a request in a batch that runs here, or make one for it."""
    return entry_here()(request)


def running(monkeypatch, batches):
    """Let the calling thread run these batches."""
    monkeypatch.setitem(batches_run, threading.get_ident(), batches)
