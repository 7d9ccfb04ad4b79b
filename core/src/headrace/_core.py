"""What a pipeline is made of and how it ends; it never refers to the Pipeline that users hold."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from headrace._build import build_pipeline
from headrace._describe import describe_node
from headrace._graph import Graph
from headrace._process import close_at_exit
from headrace.errors import ClosedError, InputError

if TYPE_CHECKING:
    from headrace._graph import Route
    from headrace._plan import PipelinePlan
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.scheduler import Scheduler

__all__ = ["Core"]


class Core:
    """The schedulers of a pipeline, and the state of the whole."""

    def __init__(self, plan: PipelinePlan, *, shortcut: bool) -> None:
        self._plan = plan
        self._built = build_pipeline(plan, shortcut=shortcut)
        self._schedulers: list[Scheduler] = []
        for node in self._built.nodes.values():
            if node.scheduler not in self._schedulers:
                self._schedulers.append(node.scheduler)
        self.only: Scheduler | None = self._built.front
        self.graph: Graph | None = None
        if plan.is_graph or self._built.commons.dispatchers:
            schedulers = {name: self._built.nodes[name].scheduler for name in plan.order}
            own_ms = {
                name: node.keys.timeout_ms
                for name, node in plan.nodes.items()
                if node.door_to is not None
            }
            self.graph = Graph(plan.links, schedulers, own_ms)
            for dispatcher in self._built.commons.dispatchers:
                dispatcher.walk = self.graph.walk
        elif self.only is None:
            self.only = self._schedulers[0]
        if self._built.front is not None and self._built.front not in self._schedulers:
            self._schedulers.append(self._built.front)
        self._lock = threading.Lock()
        self._teardown = threading.RLock()
        self._closing: ClosedError | None = None
        self._closed = threading.Event()
        self._forked = False
        close_at_exit(self)

    # Requests.

    def check_open(self) -> None:
        """Raise ClosedError when requests are refused."""
        if self._closing is not None:
            raise ClosedError(self._closing.args[0])

    def admit(self, entry: Entry) -> None:
        """Check a request on entry; one that is wrong is done, with its error."""
        try:
            entry.weight = self._entry_scheduler(entry.request).checked(entry.request)
        except InputError as error:
            entry.refuse(error)
            return
        entry.request.pop("result", None)

    def refuse(self, entry: Entry, error: InputError) -> None:
        """Refuse a request before it enters, and count it."""
        entry.refuse(error)
        self._entry_scheduler(entry.request).count_refused(error)

    def _entry_scheduler(self, request: Any) -> Scheduler:
        """Give the scheduler that answers for a request before it has entered."""
        if self.only is not None:
            return self.only
        name = request.get("node_name") if isinstance(request, dict) else None
        node = self._built.nodes.get(name) if isinstance(name, str) else None
        return node.scheduler if node is not None else self._schedulers[0]

    @property
    def walked(self) -> Graph:
        """The graph of a pipeline that is called by walking through it."""
        assert self.graph is not None  # noqa: S101 - all that has no graph has one scheduler
        return self.graph

    def route_of(self, entry: Entry) -> Route | None:
        """Give the way of an entry through the graph; None when it is refused."""
        try:
            return self.walked.route_of(entry.request)
        except InputError as error:
            self.refuse(entry, error)
            return None

    # Looking.

    @property
    def state(self) -> str:
        """One of ready, degraded, closing, closed."""
        if self._closed.is_set() or self._forked:
            return "closed"
        if self._closing is not None:
            return "closing"
        alive = all(i.living for s in self._schedulers for i in s.instances)
        return "ready" if alive else "degraded"

    @property
    def ready(self) -> bool:
        """Whether requests are accepted and each node has a living instance."""
        return self._closing is None and all(
            any(i.living for i in s.instances) for s in self._schedulers
        )

    def statistics(self) -> dict[str, Any]:
        """Give what ``Pipeline.stats()`` gives."""
        nodes = {name: self._built.nodes[name].scheduler.statistics() for name in self._plan.order}
        queues = self._built.commons.queues.statistics()
        return {"state": self.state, "nodes": nodes, **({"queues": queues} if queues else {})}

    def describe(self) -> dict[str, Any]:
        """Give what ``Pipeline.describe()`` gives."""
        import headrace

        nodes = {
            name: describe_node(self._built.nodes[name], self._plan.links[name].next)
            for name in self._plan.order
        }
        return {"headrace": headrace.__version__, "nodes": nodes}

    def busy(self) -> bool:
        """Tell whether a backend still runs."""
        return any(len(s.idle_instances()) < len(s.instances) for s in self._schedulers)

    # The end.

    def close(self, *, drain: bool, timeout: float) -> None:
        """Close; see ``Pipeline.close``."""
        if self._forked:
            return
        until = time.monotonic() + timeout
        with self._lock:
            if self._closing is None:
                self._closing = ClosedError()
            closing = self._closing
        for scheduler in reversed(self._schedulers):
            scheduler.refuse(closing, drain=drain)
        self._built.commons.queues.close()
        if any(scheduler.held_by_this_thread() for scheduler in self._schedulers):
            threading.Thread(
                target=self._finish, args=(until,), name="headrace-close", daemon=True
            ).start()
            return
        self._finish(until)

    def _finish(self, until: float) -> None:
        """Wait for what is open, fail what is left, and close what was built."""
        # Callers before those they call: a node is quiet only when nobody hands it requests.
        quiet = True
        for scheduler in reversed(self._schedulers):
            quiet = scheduler.wait_quiet(until - time.monotonic()) and quiet
        if not quiet:
            late = ClosedError("the pipeline was closed before the request was done")
            for scheduler in self._schedulers:
                scheduler.fail_open(late, self._retire)
        with self._teardown:
            self._close_idle()
        self._closed.set()

    def _close_idle(self) -> None:
        idle = {id(i) for s in self._schedulers for i in s.idle_instances()}
        all_idle = True
        self._built.front_parts.close()
        for node in reversed(self._built.nodes.values()):
            own = node.scheduler.instances
            for index in reversed(range(len(node.instances))):
                if index < len(own) and id(own[index]) not in idle:
                    all_idle = False
                else:
                    node.instances[index].close()
            node.scheduler.stop_runners()
            if all_idle:
                node.parts.close()
        if self._built.front is not None:
            self._built.front.stop_runners()

    def _retire(self, instance: Instance) -> None:
        """Close an instance whose batch ended after the pipeline was closed."""
        with self._teardown:
            self._close_idle()

    def after_fork(self) -> None:
        """Refuse everything in a child process: the threads of the parent do not run there."""
        self._forked = True
        self._closing = ClosedError(
            "this pipeline belongs to the parent process; build one after the fork"
        )
        for scheduler in self._schedulers:
            scheduler.after_fork(self._closing)
