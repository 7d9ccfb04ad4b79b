"""The blueprint of a pipeline, plain data with factories; and `start`, which builds the pipeline from it.

The packages that compose (expression, configuration, registry, plan, build) end in a `Blueprint`; those
that run requests (scheduling, graph, engine) begin with `start` and import nothing of the former. So a
pipeline can also be written down in Python alone.
"""

from __future__ import annotations

import logging
from _thread import start_new_thread
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace._graph.route import Links, is_graph
from headrace._scheduling.instance import Instance, Limits
from headrace._scheduling.probes import GuardedProbe, Probes
from headrace._scheduling.scheduler import Scheduler
from headrace._scheduling.threads import Signal
from headrace._shared import Shared
from headrace.errors import Problem, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace._backend import Backend
    from headrace.keys import Request
    from headrace.policies import BatchPolicy, DispatchPolicy

_log = logging.getLogger("headrace.build")

LOOK_S = 0.25
"""How often a thread that waits for building or closing wakes up, so that an interrupt can reach it."""


class CloseStack(Protocol):
    """The parts of a node or an instance, which are closed together."""

    def close(self) -> object:
        """Close all parts, newest first; a second call does nothing."""


class DagDispatcher(Protocol):
    """A backend in the front of the pipeline that hands requests over to the graph.

    Attributes:
        pass_on: Runs one request through the graph and raises its error; None until the graph is made.
    """

    pass_on: Callable[[Request], None] | None


@dataclass
class BuiltNode:
    """One node, built.

    Attributes:
        scheduler: Its queue and instances; for a second door those of the node behind it.
        parts: The parts of the node as a whole.
        instances: The parts of each instance, in the scheduler's order; there may be fewer of them.
    """

    scheduler: Scheduler
    parts: CloseStack = field(default_factory=ExitStack[None])
    instances: Sequence[CloseStack] = ()

    @property
    def enters(self) -> Mapping[type[Backend], Backend]:
        """A backend of each class here that has a function ``enter``; see `headrace.Backend`."""
        return {}

    def listen(self, probes: Probes) -> None:
        """Let these probes, and no others, hear of the node from now on."""
        self.scheduler.listen(probes)

    def statistics(self) -> dict[str, Any]:
        """Return what ``Pipeline.stats()`` says of the node."""
        return self.scheduler.statistics()

    def describe(self, following: Sequence[str]) -> dict[str, Any]:
        """Return what ``Pipeline.describe()`` says of the node."""
        scheduler = self.scheduler
        return {
            "range": [scheduler.node.min, scheduler.node.max],
            "instance_num": len(scheduler.instances),
            "owns_thread": any(i.thread is not None for i in scheduler.instances),
            "next": list(following),
        }


@dataclass(frozen=True)
class NodeBlueprint:
    """One node, before anything of it is built.

    Attributes:
        links: Its name, and how it is linked to the other nodes.
        build: Builds its instances. It is given a function that puts the queue of the node before
            them. When it raises, ``Blueprint.close`` closes all that it has built.
        batch_policy, dispatch_policy: The factories of its policies. Equal factories make equal policies, so
            a reload keeps the policy. With None as the second, one object is both policies.
        limits: Its queue keys.
    """

    links: Links
    build: Callable[[Callable[[Sequence[Instance]], Scheduler]], BuiltNode]
    batch_policy: Callable[[], BatchPolicy]
    dispatch_policy: Callable[[], DispatchPolicy] | None = None
    limits: Limits = field(default_factory=Limits)

    def policies(self) -> tuple[BatchPolicy, DispatchPolicy]:
        """Make its policies."""
        batch: Any = self.batch_policy()
        return batch, batch if self.dispatch_policy is None else self.dispatch_policy()


@dataclass(frozen=True)
class Change:
    """A node that is to be built anew beside the one in service.

    Attributes:
        blueprint: The whole pipeline, as it will be.
        adopt: Called once the new node, or the new keys of a second door, are in service.
        cancel: Lets the thread that builds the node give up.
        close: Closes what was built for the node.
    """

    blueprint: Blueprint
    adopt: Callable[[], None]
    cancel: Callable[[], None]
    close: Callable[[], Sequence[Exception]]


def _fixed(node: str, changes: Mapping[str, Any]) -> Change:
    raise SetupError("this pipeline was not made from a configuration", node=node)


@dataclass(frozen=True)
class Blueprint:
    """A whole pipeline, before anything of it is built. It is built once.

    Attributes:
        nodes: The nodes by name, each after the nodes that it calls.
        order: The names of the nodes in file order.
        front: The front of the pipeline, which stands before all nodes; None for none.
        walks: Whether the configuration asks for a walk through the graph, even if that is one node.
        probes: The factories of the probes, by the names that ``stats()`` gives the probes.
        listen: Called with the probes, before the nodes are built.
        store: What backends share by ``context.pipeline``; building a node may add to it.
        dispatchers: The backends that hand requests over to the graph; complete once all nodes are built.
        close: Gives up what is still being built, closes what was built, and gives the errors of that.
        config: The configuration of the pipeline.
        change: Prepares the pipeline with other keys of one node.
        warnings: What the configuration allows and hardly means.
    """

    nodes: Mapping[str, NodeBlueprint]
    order: Sequence[str]
    front: NodeBlueprint | None = None
    walks: bool = False
    probes: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    listen: Callable[[Any], None] = lambda _: None
    store: Shared = field(default_factory=Shared)
    dispatchers: Sequence[DagDispatcher] = ()
    close: Callable[[], Sequence[Exception]] = lambda: ()
    config: Any = None
    change: Callable[[str, Mapping[str, Any]], Change] = _fixed
    warnings: Sequence[Problem] = ()

    @property
    def links(self) -> dict[str, Links]:
        """How each node is linked to the others, in file order."""
        return {name: self.nodes[name].links for name in self.order}

    @property
    def is_graph(self) -> bool:
        """Whether requests walk through a graph, and not through one call of one node."""
        return self.walks or is_graph(self.links)


# Building a pipeline from its blueprint.


@dataclass
class Started:
    """A whole pipeline, built.

    Attributes:
        nodes: The nodes, in the order in which they were built.
        front: The front of the pipeline, None for none.
        probes: The probes of the pipeline.
    """

    nodes: dict[str, BuiltNode]
    front: BuiltNode | None = None
    probes: Probes = field(default_factory=Probes)


def start(blueprint: Blueprint, use: Callable[[Started], None] = lambda _: None) -> Started:
    """Build a whole pipeline; when that fails, close again what was built.

    Another thread closes it, which Ctrl-C cannot hit: a second Ctrl-C only ends the wait for that thread.

    Args:
        blueprint: The pipeline to build.
        use: Called with the built pipeline; when it raises, the pipeline is closed as well.

    Raises:
        SetupError: A backend could not be built.
        PluginError: A plugin or a library is missing.
    """
    started = Started({})
    closed = Signal()

    def close() -> None:
        try:
            blueprint.close()
            started.probes.close()
        except BaseException as error:  # noqa: BLE001 - `start` raises the error of the build instead
            _log.warning("closing what was built failed", exc_info=error)
        finally:
            closed.wake()

    try:
        _build(blueprint, started)
        use(started)
    except BaseException:
        try:
            # This is one step of the interpreter: an interrupt comes before it or after it, and cannot leave
            # a thread half started as it can inside `Thread.start`.
            start_new_thread(close, ())
        except RuntimeError:  # no more threads, or the interpreter ends
            close()
        while not closed.sleep(LOOK_S):
            pass
        raise
    return started


def _build(blueprint: Blueprint, started: Started) -> None:
    made: list[GuardedProbe] = []
    try:
        for name, factory in blueprint.probes.items():
            made.append(GuardedProbe(name, factory()))
    finally:
        started.probes = probes = Probes(made)  # when one cannot be made, `start` closes the others
    blueprint.listen(probes)
    for name, node in blueprint.nodes.items():
        started.nodes[name] = build_node(node)
    if probes.all:
        for built in started.nodes.values():
            built.listen(probes)
        for scheduler in dict.fromkeys(node.scheduler for node in started.nodes.values()):
            for instance in scheduler.instances:
                probes.instance_changed(scheduler.name, instance.index, "ready")
    if blueprint.front is not None:
        started.front = build_node(blueprint.front)


def build_node(node: NodeBlueprint) -> BuiltNode:
    """Build one node.

    Raises:
        SetupError: A backend could not be built, or the ranges that ``init`` has set leave a hole.
        PluginError: A plugin or a library is missing.
    """
    return node.build(partial(_scheduler, node))


def _scheduler(node: NodeBlueprint, instances: Sequence[Instance]) -> Scheduler:
    """Put the queue of a node before its instances."""
    name = node.links.name
    _check_coverage(instances, name)
    return Scheduler(name, instances, *node.policies(), node.limits)


def _check_coverage(instances: Sequence[Instance], node: str) -> None:
    """Refuse instances whose ranges leave a hole between them."""
    if not instances:
        raise SetupError("the node has no instances", node=node)
    spans = sorted((i.min, i.max if i.max is not None else 2**63) for i in instances)
    reached = spans[0][1]
    for low, high in spans[1:]:
        if low > reached + 1:
            hole = str(reached + 1) if low == reached + 2 else f"{reached + 1} to {low - 1}"
            hint = "Let the ranges of the instances touch."
            raise SetupError(f"no instance takes a weight of {hole}", node=node, hint=hint)
        reached = max(reached, high)
