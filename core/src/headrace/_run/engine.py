"""The engine: a running pipeline, and how it is closed.

It never refers to the Pipeline that users hold: else dropping the last reference could not close
it.
"""

from __future__ import annotations

import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._run.closing import Closer, fail_open
from headrace._run.entrance import Entrance
from headrace._run.graph.route import Graph
from headrace._run.process import close_at_exit, report, report_forked
from headrace._run.records.probes import Probes
from headrace._run.records.statistics import statistics
from headrace._run.requests.deadlocks import engines
from headrace._run.starting import start
from headrace._run.steps.box import Box, ask, is_inside
from headrace._version import __version__
from headrace.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.blueprint import Blueprint, BuiltNode
    from headrace._run.node import Node
    from headrace._run.records.probes import GuardedProbe


class Engine:
    """The nodes of a pipeline, and the state of the whole.

    Attributes:
        box: All steps that change the state of the nodes.
        blueprint: The blueprint of the pipeline.
        graph: The graph. None where all requests go to one node.
        entrance: Where requests enter, once all is built.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self.box = Box()
        engines.add(self)
        self.blueprint = blueprint
        self.graph: Graph | None = None
        self.entrance: Entrance
        self.nodes: list[Node] = []
        # One attach or detach at a time; nothing that waits for a request takes it.
        self.changes = threading.RLock()
        self.closer = Closer(self)
        self.forked = False
        self._unsaid: list[Callable[[], None]] = []  # of a forked child

    def start(self, owner: object) -> None:
        """Build the pipeline; it is closed when this fails, or when nobody refers to ``owner``."""
        start(self.blueprint, self.box, partial(self._use, owner))

    def _use(self, owner: object, built: dict[str, BuiltNode]) -> None:
        blueprint = self.blueprint
        self.built, self.began_s = built, time.process_time()
        self.probes = blueprint.heard
        # Each after the nodes that it calls.
        self.nodes = list(dict.fromkeys([item.node for item in built.values()]))
        if blueprint.is_graph:
            nodes = {name: self.built[name].node for name in blueprint.order}
            self.graph = Graph(self.box, blueprint.links, nodes)
        self.entrance = Entrance(self.box, self.graph, self.nodes[0])
        self.entrance.use(self.enters())
        self.box.look_if_quiet = self.closer.look_if_quiet
        close_at_exit(self)
        weakref.finalize(owner, _close_dropped, self).atexit = False

    def enters(self) -> dict[Any, Any]:
        """Return a backend of each class that has a function ``enter``, and such probes."""
        enters: dict[Any, Any] = {}
        for node in self.built.values():
            enters |= node.enters
        return enters | self.probes.enters()

    # State and statistics.

    @property
    def state(self) -> str:
        """The state of the pipeline: ready, degraded, closing or closed."""
        if self.closer.is_over or self.forked:
            report(self._unsaid)
            return "closed"
        if self.closer.error is not None:
            return "closing"
        instances = [instance for node in self.nodes for instance in node.instances]
        return "ready" if all(instance.ready for instance in instances) else "degraded"

    @property
    def ready(self) -> bool:
        """Whether requests are accepted, and each node has an instance that serves."""
        report(self._unsaid)
        served = (any(instance.ready for instance in node.instances) for node in self.nodes)
        return self.closer.error is None and all(served)

    def statistics(self) -> dict[str, Any]:
        """Return the answer of ``Pipeline.stats()``; within a step as things are just then."""
        inside, read = self.forked or is_inside(), self._statistics
        shown = read() if inside else ask(self.box, read)
        cpu_s, nodes = time.process_time() - self.began_s, shown["nodes"]
        for name, node in nodes.items():
            node["advice"] = self.built[name].advice(nodes, cpu_s)
        return shown

    def _statistics(self) -> dict[str, Any]:
        order = self.blueprint.order
        nodes = {name: statistics(self.built[name].node) for name in order}
        shown = {"state": self.state, "nodes": nodes}
        shown |= self.blueprint.store._statistics(among=(*shown, "probes"))
        if self.probes.all:
            shown["probes"] = self.probes.statistics()
        return shown

    def describe(self) -> dict[str, Any]:
        """Return the answer of ``Pipeline.describe()``."""
        nodes = {
            name: self.built[name].describe(self.blueprint.nodes[name].links.next)
            for name in self.blueprint.order
        }
        return {"headrace": __version__, "nodes": nodes, **self.blueprint.described()}

    def busy(self) -> bool:
        """Tell whether a backend still runs, or hangs in its ``close``."""
        return self.closer.hangs() or any(node.busy() for node in self.nodes)

    def needs_this_thread(self) -> bool:
        """Tell whether this thread runs a batch, tells a probe, or takes a request to its nodes."""
        # Between two nodes a signal handler may interrupt the thread that takes a request.
        me = threading.get_ident()
        if me in self.box.telling or any(node.is_held_by_this_thread() for node in self.nodes):
            return True
        return self.graph is not None and me in [*self.graph.walking.values()]

    # Probes that are attached and detached while the pipeline runs.

    def add_probe(self, probe: GuardedProbe) -> None:
        """Let one more probe receive every node's events, unless it was detached meanwhile."""
        with self.changes:
            self.entrance.check_open()
            taken = {other.name for other in self.probes.all}
            names = (probe.name, *(f"{probe.name} {number}" for number in range(2, len(taken) + 2)))
            probe.name = next(name for name in names if name not in taken)
            if not probe.gone:
                self._listen([*self.probes.all, probe])
            service = list(self.probes.in_service)
        for node, instance in service:
            Probes([probe]).notify("instance_changed", node, instance, "ready")

    def remove_probe(self, probe: GuardedProbe) -> None:
        """Let a probe receive nothing any more."""
        probe.gone = True
        with self.changes:
            self._listen([other for other in self.probes.all if other is not probe])

    def _listen(self, probes: Sequence[GuardedProbe]) -> None:
        self.probes.set(probes)
        for built in self.built.values():
            built.node.listen(self.probes)

    def close(self, *, drain: bool, timeout: float) -> None:
        """Close the pipeline; see ``Pipeline.close``."""
        self.closer.close(drain=drain, timeout=timeout)

    def after_fork(self) -> None:
        """Refuse all requests in the child of a fork, where no thread of the parent exists."""
        self.forked = True
        if self.closer.error is None:
            self._unsaid = [partial(report_forked, self.blueprint.order)]
        message = "this pipeline belongs to the parent process; build one after the fork"
        self.closer.error = ClosedError(message)
        self.box.after_fork()
        if hasattr(self, "entrance"):  # else the fork came in the midst of the build
            self.entrance.close(self.closer.error, self._unsaid)
        for node in self.nodes:
            node.refusing, node.dead, node.special = self.closer.error, True, True
            node.free = []
            node.inbox.clear()
            node.short_cut.set_bounds()
            if node.pending.open:
                self.box.threads.pool.run(ask, self.box, fail_open, node, self.closer.error)


def _close_dropped(engine: Engine) -> None:
    """Close a pipeline to which no reference is left. Requests that wait still run."""
    if engine.state == "closed":
        return
    try:
        engine.box.threads.pool.run(partial(engine.close, drain=True, timeout=30.0))
    except RuntimeError:
        return  # the interpreter ends, and the exit handler closes the pipeline
