"""What a pipeline starts from, plain data with factories; and how it is started from them.

What composes (expression, configuration, registry, plan, build) ends in a `Blueprint`; what runs
(scheduling, graph, engine) begins with `start` and imports nothing of the other. So a pipeline can be
written down in Python alone.
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
from headrace._scheduling.locks import Signal
from headrace._scheduling.probes import Guarded, Probes
from headrace._scheduling.probing import listen
from headrace._scheduling.scheduler import Scheduler
from headrace.errors import Problem, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.keys import Request
    from headrace.policies import BatchPolicy, DispatchPolicy

_log = logging.getLogger("headrace.build")

LOOK_S = 0.25
"""How often a thread that waits while something is built, or closed again, looks for an interrupt."""


class Parts(Protocol):
    """What was built for a node or an instance, closed together."""

    def close(self) -> object:
        """Close all, newest first; a second call does nothing."""


class NamedQueue(Protocol):
    """A queue between nodes, outside of the graph: see `headrace.words.queues`."""

    def close(self) -> None:
        """Let nobody wait any more."""

    def statistics(self) -> dict[str, int]:
        """Give what ``stats()`` shows of it."""


class Dispatcher(Protocol):
    """A backend in front of the nodes that hands requests over to the graph.

    Attributes:
        pass_on: Runs one request through the graph and raises its error; set once there is a graph.
    """

    pass_on: Callable[[Request], None] | None


@dataclass
class BuiltNode:
    """One node, built.

    Attributes:
        scheduler: Its queue and instances; those of the other node for a second door.
        parts: What was built for the node as a whole.
        instances: Per instance what was built for it, in the order of the scheduler's; may be fewer.
    """

    scheduler: Scheduler
    parts: Parts = field(default_factory=ExitStack[None])
    instances: Sequence[Parts] = ()

    def listen(self, probes: Probes) -> None:
        """Let these probes hear of it from now on, and no others."""
        listen(self.scheduler, probes)

    def statistics(self) -> dict[str, Any]:
        """Give what ``Pipeline.stats()`` says of it."""
        return self.scheduler.statistics()

    def describe(self, following: Sequence[str]) -> dict[str, Any]:
        """Give what ``Pipeline.describe()`` says of it."""
        scheduler = self.scheduler
        return {
            "range": [scheduler.min, scheduler.max],
            "instance_num": len(scheduler.instances),
            "owns_thread": any(i.thread is not None for i in scheduler.instances),
            "next": list(following),
        }


@dataclass(frozen=True)
class NodeBlueprint:
    """One node, before anything of it is built.

    Attributes:
        links: Its name, and how it is linked to the others.
        build: Builds its instances. It is given a function that puts the queue of the node before
            them; one that raises leaves nothing behind that ``Blueprint.close`` does not close.
        batch_policy, dispatch_policy: Make its policies; those of equal factories are the same. None
            for the second: one object is both.
        limits: Its queue keys.
    """

    links: Links
    build: Callable[[Callable[[Sequence[Instance]], Scheduler]], BuiltNode]
    batch_policy: Callable[[], BatchPolicy]
    dispatch_policy: Callable[[], DispatchPolicy] | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class Change:
    """A node that is to be built anew beside the one in service.

    Attributes:
        blueprint: The whole pipeline, as it will be.
        adopt: Called once the new node is in service, or its keys are where it is a second door.
        cancel: Lets whatever builds it give up.
        close: Closes what was built for it.
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
        nodes: The nodes by name, each after those that it calls.
        order: Their names in file order.
        front: What stands before all nodes, None for nothing.
        probes: Make the probes, by the names that ``stats()`` gives them.
        listen: Called with them, before the nodes are built.
        queues: The queues that have a name; more may come while nodes are built.
        dispatchers: Once all is built, the backends that hand requests over to the graph.
        close: Closes what was built, and gives what that raised; what is still being built is given
            up first.
        config: The configuration that it was made from.
        change: Gives the pipeline with other keys of one node.
        warnings: What is allowed but hardly meant.
    """

    nodes: Mapping[str, NodeBlueprint]
    order: Sequence[str]
    front: NodeBlueprint | None = None
    probes: Mapping[str, Callable[[], object]] = field(default_factory=dict)
    listen: Callable[[Any], None] = lambda _: None
    queues: Mapping[str, NamedQueue] = field(default_factory=dict)
    dispatchers: Sequence[Dispatcher] = ()
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
        """Whether a request may go through more than one call of one node."""
        return is_graph(self.links)


# Starting.


@dataclass
class Started:
    """A whole pipeline, built.

    Attributes:
        nodes: The nodes, in the order in which they were built.
        front: What stands before them, None for nothing.
        probes: Its probes.
    """

    nodes: dict[str, BuiltNode]
    front: BuiltNode | None = None
    probes: Probes = field(default_factory=Probes)


def start(blueprint: Blueprint, use: Callable[[Started], None] = lambda _: None) -> Started:
    """Build a whole pipeline; what was built is closed again when something fails.

    A thread closes it, which no interrupt hits: a second Ctrl-C only ends the wait for that.

    Args:
        blueprint: What to build.
        use: Called with what was built, as the last that may fail.

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
        except BaseException as error:  # noqa: BLE001 - what failed the build is raised
            _log.warning("closing what was built failed", exc_info=error)
        finally:
            closed.wake()

    try:
        _build(blueprint, started)
        use(started)
    except BaseException:
        try:
            start_new_thread(close, ())  # one step: an interrupt comes before it or after it
        except RuntimeError:  # no more threads, or the interpreter ends
            close()
        while not closed.sleep(LOOK_S):
            pass
        raise
    return started


def _build(blueprint: Blueprint, started: Started) -> None:
    made: list[Guarded] = []
    try:
        for name, factory in blueprint.probes.items():
            made.append(Guarded(name, factory()))
    finally:
        started.probes = probes = Probes(made)  # which are closed when one cannot be made
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
    batch: Any = node.batch_policy()
    dispatch: Any = batch if node.dispatch_policy is None else node.dispatch_policy()
    return Scheduler(name, instances, batch, dispatch, node.limits)


def _check_coverage(instances: Sequence[Instance], node: str) -> None:
    """Refuse instances whose ranges leave a hole between them."""
    if not instances:
        raise SetupError("the node has no instances", node=node)
    spans = sorted((i.min, i.max if i.max is not None else 2**63) for i in instances)
    reached = spans[0][1]
    for low, high in spans[1:]:
        if low > reached + 1:
            hole = str(reached + 1) if low == reached + 2 else f"{reached + 1} to {low - 1}"
            raise SetupError(
                f"no instance takes a weight of {hole}",
                node=node,
                hint="Let the ranges of the instances touch.",
            )
        reached = max(reached, high)
