"""The word `Benchmark`: a closed loop on the part of an expression inside of it."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace

if TYPE_CHECKING:
    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["Benchmark"]


class Benchmark(headrace.Backend):
    """Measure the backend inside: ``Benchmark(clients=10,total=1000,warm_up=20)[X]``.

    The requests of the batch are the samples. ``warm_up`` and then ``total`` requests, copies of
    the samples in turn, go through X in a closed loop: each of ``clients`` clients sends its next
    request when it has its answer.

    One thread runs X: it takes as many of the waiting requests as one batch as X and the node's ``max`` allow, the
    oldest first, and the clients are not threads. Only if X is ``Forward[node]`` is each client a thread that calls the node, so that the node's
    queue, policies and instances are measured.

    The figures are those of one load of ``headrace bench --json``, without its histogram of
    latencies: ``throughput_rps``, ``latency_ms`` (``mean``, ``p50``, ``p90``, ``p99``, ``max``),
    ``ok``, ``failed`` by code, ``seconds``, ``batch_size`` (empty if X is ``Forward[node]``: the batches of
    a node are in ``stats()``), ``cpu``, ``gpu``, and ``clock``, which says what the latencies cover. A request that fails is counted in ``failed``. If every request of a sample fails,
    the sample gets its first error instead of the figures.

    Reads:
        data: The data that X reads; other keys of the samples are sent along.

    Writes:
        result: The figures of all samples together, a dict that JSON can hold.

    Batch:
        1 or more samples, or the range of X.

    Raises:
        BackendError: The first error of X for a sample of which no request succeeded.

    Source:
        The word of torchpipe. Clients without threads are Headrace's own.
    """

    class Options(headrace.Options):
        """How many requests are sent, and by how many clients.

        Attributes:
            clients: How many send at a time.
            total: Requests that are measured, of all clients.
            warm_up: Requests before them that are not measured.
        """

        clients: int = Field(10, ge=1, le=10_000)
        total: int = Field(1000, ge=1)
        warm_up: int = Field(20, ge=0)

    takes = 1
    rerun = False  # a second run would take as long again

    def init(self, options: Any, context: InitContext) -> None:
        """Choose the closed loop for X: threads that call a node, or one thread that runs batches."""
        from headrace_observe.bench.inner_load import of_backend, of_node

        self.chosen = options
        self.node_name = context.node_name
        (child,) = context.children
        self.child = child
        most = context.batch.max or max(context.batch.sizes or (), default=None)
        alone = functools.partial(of_backend, most=most)
        self.run_load = of_node if "calls_node" in child.describe() else alone

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Run the samples through X, and give the figures as ``result``."""
        chosen, dependency = self.chosen, self.child
        samples = [{k: v for k, v in request.items() if k != "result"} for request in batch]
        if chosen.warm_up:
            self.run_load(dependency, samples, chosen.clients, chosen.warm_up, self.node_name)
        point, errors = self.run_load(
            dependency, samples, chosen.clients, chosen.total, self.node_name
        )
        figures = point.to_dict()
        del figures["latency_histogram"]
        for index, request in enumerate(batch):
            if index not in errors:
                request["result"] = copy.deepcopy(figures)  # each result belongs to its caller
        return [errors.get(index) for index in range(len(batch))] if errors else None
