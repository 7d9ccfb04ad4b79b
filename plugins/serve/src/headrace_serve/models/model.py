"""One version of a served model: its pipeline, what clients are told of it, what is counted."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import ExitStack
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError, among
from headrace_serve.models.fields import check_keys, read_fields
from headrace_serve.models.parsed_cache import ParsedCache
from headrace_serve.models.planned import described
from headrace_serve.models.signature import read_signature
from headrace_serve.monitoring.counters import Counts
from headrace_serve.monitoring.run_times import is_timed

if TYPE_CHECKING:
    from headrace import Pipeline
    from headrace_serve.inference.parsed_requests import ParsedRequest
    from headrace_serve.models.entries import ModelEntry
    from headrace_serve.models.signature import Signature

__all__ = ["Model"]

logger = logging.getLogger("headrace.serve")

_ASKED_S = 0.02
_LEAVING_S = 30.0


class Model:
    """One version of a model.

    Attributes:
        name, version: The name and version by which requests name the model.
        pipe: The pipeline.
        signature: The inputs and outputs.
        counts: The counters of answered requests.
        called: Those of the requests of other models. None where nobody counts them.
        unloaded: Whether the model takes no requests, because it was unloaded or has left.
        absent: Whether it has, and a request brings it back.
        use: The version of `headrace_models` that has the pipeline, told when the last request came.
        failed: Whether it takes no requests because it could not be built again, and nobody has unloaded it.
        code: The code of that error.
        loading: Whether a new pipeline is being built to take the place of this one.
        reason: Why the model is unloaded. ``""`` if it is not.
        limits: Limits of this model, by name. The smaller of these and the server's limits counts.
        entry: The name of the node at which requests enter.
        entry_keys: The keys of that node, with the number of instances where ``"auto"`` is written.
        queue_size: The most requests that may wait.
        timed: Whether the pipeline has the probe that times each request.
        rest_requests, grpc_requests: Earlier inferences over REST and over gRPC, as parsed.
        labels: The labels of the classes of outputs, by the outputs' names.
        queries: The queries of earlier requests of the plain route.
        fields: The fields of its bodies of JSON. None: it has none.
        takes_json: Whether a body of the plain route is JSON, and its value the key ``data``.
        takes_any_bytes: Whether a body of the plain route is bytes, whatever its media type is.
        decoupled: Whether a request of ``ModelStreamInfer`` has any number of responses: the parts of its answer.
        configuration: The configuration that clients are told, where a plugin has read it. None: the pipeline says it.
        inside: The number of requests that this server has admitted and not answered.
        receiving: The number of these requests whose bodies are still being received.
        clock: Gives the time in seconds.
        histograms: What counts the times of requests for ``/metrics``. None before the metrics were asked for.
        measured: Attaches it to the pipeline until `close`.
    """

    counts: Counts
    called: Counts | None = None
    unloaded = absent = loading = failed = False
    code: str | None = None
    use: Any = SimpleNamespace(last_use=None, leases=None)
    reason = ""
    inside = receiving = 0
    histograms: Any = None
    clock = staticmethod(time.monotonic)
    _asked_s = float("-inf")
    _not_waiting = 0

    def __init__(
        self,
        name: str,
        version: str,
        entry: ModelEntry,
        before: Model | None = None,
        pipe: Pipeline | None = None,
    ) -> None:
        """Read what clients are told of a pipeline.

        Args:
            name: The name of the model.
            version: Its version.
            entry: What is served, and how.
            before: The model of this name and version that is served until now. If its pipeline is this one, the counters go
                on, else all begin with 0, as those of a new pipeline do.
            pipe: The pipeline. None: the one that the entry holds.

        Raises:
            SetupError: Clients could not be told what the pipeline takes and gives.
        """
        self.name = name
        self.version = version
        self.measured = ExitStack()
        self.pipe: Pipeline = entry.config if pipe is None else pipe
        plan = self.pipe.config.plan()
        self.signature = read_signature(*described(self.pipe, plan), entry)
        self.entry = plan.roots[0]
        self.entry_keys = {k: key.value for k, key in plan.nodes[self.entry].values.items()}
        self.entry_keys["instance_num"] = plan.nodes[self.entry].instance_num
        self.queue_size = int(self.entry_keys["queue_size"])
        self.timed = is_timed(self.pipe)
        self.fields = read_fields(entry, self.pipe.config, self.entry)
        _check_labels(name, entry, self.signature)
        if entry.inputs is not None:
            check_keys(name, self.signature.inputs, self.pipe.config, self.entry)
        self.limits = entry.limits
        self.takes_json = entry.body == "json"
        self.takes_any_bytes = entry.body == "bytes"
        self.decoupled = entry.decoupled
        self.configuration = getattr(entry.config, "configuration", None)
        self.labels = entry.labels or {}
        self.rest_requests: ParsedCache[ParsedRequest] = ParsedCache()
        self.grpc_requests: ParsedCache[ParsedRequest] = ParsedCache()
        self.queries: ParsedCache[Any] = ParsedCache()
        same = before is not None and before.pipe is self.pipe
        self.counts = before.counts if before is not None and same else Counts()
        self._advised: dict[str, object] = before._advised if before is not None and same else {}

    def stats(self) -> dict[str, Any]:
        """Return what ``stats()`` of the pipeline says, and log its advice, once for each node."""
        stats = self.pipe.stats()
        for name, node in stats["nodes"].items():
            key = object()  # of two threads that ask at a time one logs
            if node["advice"] is not None and self._advised.setdefault(name, key) is key:
                logger.warning("model %r, version %s: %s", self.name, self.version, node["advice"])
        return stats

    def waiting(self) -> int:
        """Return how many requests wait in the pipeline, or are being received for it.

        Reading the pipeline's statistics costs more than refusing a request, so they are read at most every 20 ms. In
        between the number is an estimate: each request that this server admits adds one, each answer subtracts one.
        """
        now_s = self.clock()
        if now_s - self._asked_s >= _ASKED_S:
            nodes = self.stats()["nodes"].values()
            waiting = sum(int(node["waiting"]) for node in nodes) + self.receiving
            self._not_waiting = self.inside - waiting
            self._asked_s = now_s
        return max(0, self.inside - self._not_waiting)

    @property
    def threads(self) -> int:
        """The number of threads that the instances and their libraries may run at a time."""
        nodes = self.pipe.config.plan().nodes.values()
        own = (node for node in nodes if node.alias_of is None)
        return sum((node.instance_num - node.wide) * node.threads for node in own)

    @property
    def ready(self) -> bool:
        """Whether the model takes requests."""
        return self.pipe.ready and not self.unloaded

    @property
    def serves(self) -> bool:
        """Whether a request would be served: the model is here, or a request brings it back, and its last build has not failed."""
        return self.ready or (self.absent and not self.failed)

    def leave(self) -> None:
        """Measure no more requests, and keep the pipeline open for those that are read and have yet to reach it."""
        self.measured.close()
        leases = self.use.leases
        if self.inside > self.receiving and leases is not None and leases.take():
            self._look(leases, time.monotonic() + _LEAVING_S)

    def _look(self, leases: Any, until_s: float) -> None:
        if self.inside > self.receiving and time.monotonic() < until_s:
            asyncio.get_running_loop().call_later(_ASKED_S, self._look, leases, until_s)
        else:
            leases.give_back()


def _check_labels(name: str, entry: ModelEntry, signature: Signature) -> None:
    for output in entry.labels or ():
        if output not in signature.outputs:
            text = f"model {name!r} has labels for an output {output!r}, which it does not have"
            raise SetupError(text, hint=among(output, signature.outputs))
