"""The engine: a running pipeline, and how it is closed.

It never refers to the Pipeline that users hold: otherwise dropping the last reference could not close it.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from headrace._engine.blueprint import build_node, start
from headrace._engine.entrance import Entrance
from headrace._engine.teardown import Retirement, Teardown
from headrace._graph.caller import run_from_front
from headrace._graph.graph import Graph
from headrace._process import close_at_exit, say, say_forked
from headrace._scheduling.probes import Probes
from headrace._scheduling.threads import Signal, drained, helpers, reentrant
from headrace._scheduling.timer import shared_timer
from headrace.errors import ClosedError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._backend import Backend
    from headrace._engine.blueprint import Blueprint, BuiltNode, Change, Started
    from headrace._engine.teardown import Closing
    from headrace._scheduling.probes import GuardedProbe
    from headrace._scheduling.scheduler import Scheduler


_GRACE_S = 0.8
"""How long processes that hang in their ``close`` are left behind, before they are ended."""


class Engine:
    """The schedulers of a pipeline, and the state of the whole.

    Attributes:
        blueprint: The blueprint of the pipeline, a new one after each reload.
        graph: The graph; None where all requests go to one scheduler.
        entrance: Where requests enter, once all is built.
        closes: Functions that are called, in any order, when the pipeline begins to close.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint
        self.closes: list[Callable[[], None]] = []
        self.graph: Graph | None = None
        self.entrance: Entrance
        self._retirements: list[Retirement] = []
        self._building = False
        self._lock = threading.RLock()
        self._teardown = Teardown()
        self._closing: ClosedError | None = None
        self._closed = False
        self._forked = False
        self._unsaid: list[Callable[[], None]] = []  # of a forked child

    def start(self, owner: object) -> None:
        """Build the pipeline. It is closed when this fails, or when no reference to ``owner`` is left."""
        start(self.blueprint, partial(self._use, owner))

    def _use(self, owner: object, started: Started) -> None:
        blueprint = self.blueprint
        self._nodes = started.nodes
        self._front = started.front
        self.probes = started.probes
        self._schedulers = self._in_order()
        only = self._front.scheduler if self._front is not None else None
        if blueprint.is_graph or blueprint.dispatchers:
            schedulers = {name: self._nodes[name].scheduler for name in blueprint.order}
            self.graph = Graph(blueprint.links, schedulers)
            for dispatcher in blueprint.dispatchers:
                dispatcher.pass_on = partial(run_from_front, self.graph)
        elif only is None:
            only = self._schedulers[0]
        self.entrance = Entrance(only, self.graph, self._schedulers[0])
        self.entrance.use(self._enters())
        close_at_exit(self)
        weakref.finalize(owner, _dropped, self).atexit = False

    def _in_order(self) -> list[Scheduler]:
        """Return all schedulers, each after the schedulers that it calls."""
        found = [node.scheduler for node in self._nodes.values()]
        if self._front is not None:
            found.append(self._front.scheduler)
        return list(dict.fromkeys(found))

    # Entry.

    def _enters(self) -> dict[type[Backend], Backend]:
        """Return a backend of each class in the pipeline that has a function ``enter``, nodes in order."""
        nodes = [*self._nodes.values(), *([] if self._front is None else [self._front])]
        return {cls: one for node in nodes for cls, one in node.enters.items()}

    # State and statistics.

    @property
    def state(self) -> str:
        """The state of the pipeline: ready, degraded, closing or closed."""
        if self._closed or self._forked:
            say(self._unsaid)
            return "closed"
        if self._closing is not None:
            return "closing"
        every = all(i.ready for s in self._schedulers for i in s.instances)
        return "ready" if every else "degraded"

    @property
    def ready(self) -> bool:
        """Whether requests are accepted and each node has an instance that is neither lost nor away."""
        say(self._unsaid)
        served = (any(i.ready for i in s.instances) for s in self._schedulers)
        return self._closing is None and all(served)

    @reentrant(later=lambda engine: engine._statistics())
    def statistics(self) -> dict[str, Any]:
        """Return the answer of ``Pipeline.stats()``."""
        return self._statistics()

    def _statistics(self) -> dict[str, Any]:
        order = self.blueprint.order
        nodes = {name: self._nodes[name].statistics() for name in order}
        found = {"state": self.state, "nodes": nodes}
        found |= self.blueprint.store._statistics(among=(*found, "probes"))
        if self.probes.all:
            found["probes"] = self.probes.statistics()
        return found

    def describe(self) -> dict[str, Any]:
        """Return the answer of ``Pipeline.describe()``."""
        import headrace

        nodes = {
            name: self._nodes[name].describe(self.blueprint.nodes[name].links.next)
            for name in self.blueprint.order
        }
        return {"headrace": headrace.__version__, "nodes": nodes}

    def busy(self) -> bool:
        """Tell whether a backend still runs, or hangs in its ``close``."""
        return (
            self._building
            or self._teardown.busy
            or any(scheduler.busy() for scheduler in self._schedulers)
        )

    def needs_this_thread(self) -> bool:
        """Tell whether the calling thread runs a batch, is inside a probe, or takes a request through the nodes."""
        # Between two nodes a signal handler may interrupt the thread that takes a request through the graph.
        between = self.graph is not None and self.graph.needs_this_thread()
        return between or any(scheduler.held_by_this_thread() for scheduler in self._schedulers)

    # Probes that are attached and detached while the pipeline runs.

    @reentrant()
    def attach(self, probe: GuardedProbe) -> None:
        """Let one more probe hear of every node from now on, unless it was detached in the meantime."""
        with self._lock:
            self.entrance.check_open()
            taken = {one.name for one in self.probes.all}
            names = (probe.name, *(f"{probe.name} {number}" for number in range(2, len(taken) + 2)))
            probe.name = next(name for name in names if name not in taken)
            if not probe.gone:
                self._listen([*self.probes.all, probe])
            service = list(self.probes.in_service)
        for node, instance in service:
            Probes([probe]).notify("instance_changed", node, instance, "ready")

    @reentrant()
    def detach(self, probe: GuardedProbe) -> None:
        """Let a probe hear of nothing any more."""
        probe.gone = True
        with self._lock:
            self._listen([one for one in self.probes.all if one is not probe])

    def _listen(self, guarded: Sequence[GuardedProbe]) -> None:
        self.probes = Probes(guarded)
        self.probes.in_service = {
            (scheduler.name, instance.index): None
            for scheduler in dict.fromkeys(node.scheduler for node in self._nodes.values())
            for instance in scheduler.instances
            if instance.living
        }
        self.blueprint.listen(self.probes)
        for node in self._nodes.values():
            node.listen(self.probes)

    # Reload: one node is exchanged.

    def build_aside(self, change: Change, name: str) -> BuiltNode | None:
        """Build and warm up a node of a changed pipeline beside the one in service.

        Returns:
            The node; None for a second door to another node, which has no instances of its own.

        Raises:
            SetupError: A backend could not be built, or the node cannot be exchanged.
            PluginError: A plugin or a library is missing.
        """
        node = change.blueprint.nodes[name]
        if not {*node.links.reposts} <= {*self.blueprint.nodes[name].links.reposts}:
            what = "a Repost that was not there before: requests that are under way would not look for it"
            raise SetupError(what, node=name, hint="Build the pipeline again.")
        if node.links.alias_of is not None:
            return None
        self._building = True
        try:
            return build_node(node)
        finally:
            self._building = False

    def put_in_place(
        self,
        change: Change,
        name: str,
        new: BuiltNode | None,
        commit: Callable[[], None],
    ) -> Retirement | None:
        """Let a node that was built aside take the place of the one in service.

        Args:
            change: The change from which the node was built.
            name: The name of the node.
            new: The new node; None for a second door.
            commit: Called when nothing can go wrong any more; it raises to give the reload up.

        Returns:
            The retirement of the old instances; None for a second door.

        Raises:
            ClosedError: The pipeline is closed.
        """
        retirement = None
        blueprint = change.blueprint
        with self._lock:
            self.entrance.check_open()
            commit()
            if new is not None:
                new.listen(self.probes)
                retirement = self._exchange(name, new, blueprint)
            change.adopt()
            if self.graph is not None:
                self.graph.link(blueprint.links)
            self.blueprint = blueprint
            self._schedulers = self._in_order()
            self.entrance.use(self._enters())
        return retirement

    def _exchange(self, name: str, new: BuiltNode, blueprint: Blueprint) -> Retirement:
        """Put the instances of a new node into the scheduler in service, and the node into this engine."""
        before, scheduler = self._nodes[name], self._nodes[name].scheduler
        was, will = self.blueprint.nodes[name], blueprint.nodes[name]
        same = (was.batch_policy, was.dispatch_policy) == (will.batch_policy, will.dispatch_policy)
        retired = Signal()
        old = scheduler.exchange(new.scheduler, retired, keeps_policies=same)
        scheduler.need(new.scheduler.needs)
        retirement = Retirement(before, old, retired)
        self._retirements = [one for one in self._retirements if not one.over]
        self._retirements.append(retirement)
        new.scheduler = scheduler
        nodes = {**self._nodes, name: new}
        self._nodes = {key: nodes[key] for key in blueprint.nodes}
        return retirement

    # Closing.

    def close(self, *, drain: bool, timeout: float) -> None:
        """Close the pipeline; see ``Pipeline.close``."""
        # In the child of a fork, and once the interpreter ends, no thread is left that could close anything.
        if not self._forked and not sys.is_finalizing():
            self._close(drain=drain, timeout=timeout)

    @reentrant()
    def _close(self, *, drain: bool, timeout: float) -> None:
        until = time.monotonic() + timeout
        with self._lock:
            if self._closing is None:
                self._closing = ClosedError()
                self.entrance.shut(self._closing)
            closing = self._closing
        for begin_to_close in drained(self.closes.pop):
            begin_to_close()
        for scheduler in reversed(self._schedulers):
            scheduler.refuse(closing, drain=drain)
        if self.needs_this_thread():
            helpers.run(self._finish, until)
        else:
            self._finish(until)

    def _finish(self, until: float) -> None:
        """Wait for the requests that are open, fail those that are left, and close all that was built."""
        self.blueprint.store._end_waits()
        # A node that calls others comes before them: a node stays quiet only once no other node hands it
        # requests.
        quiet = self.graph is None or self.graph.wait_ended(until)
        for scheduler in reversed(self._schedulers):
            quiet = scheduler.wait_quiet(until) and quiet
        # A request that is PENDING may go to a node that had been quiet by then.
        while quiet and not all(scheduler.is_quiet() for scheduler in self._schedulers):
            quiet = all(scheduler.wait_quiet(until) for scheduler in self._schedulers)
        if not quiet:
            late = ClosedError("the pipeline was closed before the request was done")
            # An instance whose batch ends later is closed then.
            retire = partial(helpers.run, self._teardown.run, self._idle, inf)
            for scheduler in self._schedulers:
                scheduler.fail_open(late, retire)
        try:
            self._teardown.run(partial(self._steps, until), until)
        finally:
            self._closed = True
            if self._teardown.busy:
                shared_timer().call_at(time.monotonic() + _GRACE_S, self._end_processes)

    def _end_processes(self) -> None:
        """End the processes of instances that are not closed by now."""
        presences = [one.liveness for scheduler in self._schedulers for one in scheduler.instances]
        for end in [end for liveness in presences for end in liveness.killers]:
            end()

    def _steps(self, until: float) -> list[Closing]:
        """Return the steps that close the pipeline: idle instances and nodes, retired instances, the probes."""
        steps = self._idle()
        for one in reversed(self._retirements):
            what = f"old instances of node {one.scheduler.name}"
            steps.append((what, partial(one.close_ended, until=until)))
        steps.append(("the pipeline", partial(setattr, self, "_closed", True)))
        steps.append(("the probes", lambda: self.probes.close()))
        return steps

    def _idle(self) -> list[Closing]:
        """Return the steps that close the idle instances, and the nodes that have no others, in order."""
        all_idle = True
        found: list[Closing] = []
        if self._front is not None:
            found.append(("the entrypoint", self._front.parts.close))
        for name, node in reversed(self._nodes.items()):
            own = node.scheduler.instances
            for index in reversed(range(len(node.instances))):
                if index < len(own) and own[index].busy:
                    all_idle = False
                else:
                    found.append((f"instance {index} of node {name}", node.instances[index].close))
            found.append((f"the workers of node {name}", node.scheduler.stop_workers))
            if all_idle:
                found.append((f"node {name}", node.parts.close))
        if self._front is not None:
            found.append(("the workers of the entrypoint", self._front.scheduler.stop_workers))
        if all_idle:
            found.append(("what the nodes share", self.blueprint.store.close))
        return found

    def after_fork(self) -> None:
        """Refuse all requests in a child process after a fork, where no thread of the parent exists."""
        self._forked = True
        if self._closing is None:
            self._unsaid = [partial(say_forked, self.blueprint.order)]
        what = "this pipeline belongs to the parent process; build one after the fork"
        self._closing = ClosedError(what)
        if hasattr(self, "entrance"):  # else the fork came in the midst of the build
            self.entrance.shut(self._closing, self._unsaid)
        for scheduler in self._schedulers:
            scheduler.after_fork(self._closing)


def _dropped(engine: Engine) -> None:
    """Close a pipeline to which no reference is left: requests that wait still run; no thread waits for it."""
    if engine.state == "closed":
        return
    try:
        helpers.run(partial(engine.close, drain=True, timeout=30.0))
    except RuntimeError:
        return  # the interpreter ends, and the exit handler closes the pipeline
