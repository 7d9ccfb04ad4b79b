"""Building the nodes of a plan, in order; all is closed again when something fails."""

from __future__ import annotations

import logging
import threading
from _thread import start_new_thread
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace._build.at import LOOK_S, At, BuildSettings
from headrace._build.batch_end import BatchEnd
from headrace._build.commons import Commons
from headrace._build.door import Door, FrontDoor
from headrace._build.elements import ElementBuilder, reached_by_name
from headrace._build.parts import Parts
from headrace._build.probes import make_probes
from headrace._build.schedulers import front_scheduler, node_scheduler
from headrace._build.word import building_word
from headrace._config.nesting import with_room
from headrace._context import Shared
from headrace._plan.element import roots_of
from headrace._plan.needs import needed_keys
from headrace._plan.word import planned_word
from headrace._process import usable_cpus
from headrace._scheduling.locks import Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend
    from headrace._config.nodekeys import NodeKeys
    from headrace._graph.links import Each
    from headrace._plan.element import NodePlan, PipelinePlan
    from headrace._scheduling.probing import Probes
    from headrace._scheduling.scheduler import Scheduler

__all__ = ["Builder", "Built", "BuiltNode", "build_pipeline"]

_log = logging.getLogger("headrace.build")


@dataclass
class BuiltNode:
    """One node, built.

    Attributes:
        plan: What it was built from.
        scheduler: Its queue and instances; those of the other node for a second door.
        parts: What was built for the node as a whole.
        instances: Per instance, what was built for it; none for a second door.
        shared: The store of its instances.
        by_element: What was built from each element of the first instance, for ``describe()``.
        threads: The share of each instance in the thread budget.
        registers: The names under which it registered instances for the whole pipeline.
        holds: The names of instances of other nodes that it holds.
    """

    plan: NodePlan
    scheduler: Scheduler
    parts: Parts
    instances: list[Parts] = field(default_factory=list)
    shared: Shared = field(default_factory=Shared)
    by_element: dict[int, Backend] = field(default_factory=dict)
    threads: int = 1
    registers: set[str] = field(default_factory=set)
    holds: set[str] = field(default_factory=set)


@dataclass
class Built:
    """A whole pipeline, built.

    Attributes:
        nodes: The nodes, in the order in which they were built.
        commons: What belongs to all of them.
        front: The scheduler of a front that the configuration asks for, or None.
        front_parts: What was built for that front.
        front_holds: The names of instances of nodes that it holds.
    """

    nodes: dict[str, BuiltNode]
    commons: Commons
    front: Scheduler | None = None
    front_parts: Parts = field(default_factory=Parts)
    front_holds: set[str] = field(default_factory=set)

    def put_door(self, plan: PipelinePlan, name: str) -> None:
        """Change the keys of a second door to a node, which other doors may lead to."""
        self.nodes[name].plan = plan.nodes[name]
        for one, timeout_ms in plan.door_timeouts_ms.items():
            door = self.commons.registered[f"node.{one}"]
            if isinstance(door, Door):
                door.timeout_ms = timeout_ms


class Builder:
    """Builds the nodes of one pipeline.

    Args:
        plan: The checked plan.
        shortcut: Whether a caller that finds a node idle may skip its queue.
        registered: The instances that are registered already, by name, for what is not in service
            yet; it is added to. None for those of ``commons``.
        commons: What belongs to all nodes.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        *,
        shortcut: bool = True,
        registered: dict[str, Backend] | None = None,
        commons: Commons | None = None,
    ) -> None:
        self.plan = plan
        self.shortcut = shortcut
        self.cancelled = threading.Event()
        self.nodes: dict[str, BuiltNode] = {}
        self.commons = commons or Commons()
        self.registered = registered if registered is not None else self.commons.registered
        self.threads = max(1, (plan.threads or usable_cpus()) // plan.total_instances)
        self._all = Parts()
        self._probes: Probes | None = None
        self._builds = threading.Lock()
        self._reached = reached_by_name(plan)

    def build(self) -> Built:
        """Build all; `close` is to follow when something fails."""
        built = Built(self.nodes, self.commons)
        with self._builds:
            if self.plan.probes:
                self._probes = self.commons.probes = make_probes(self.plan.probes)
            for root in (root for node in self.plan.nodes.values() for root in roots_of(node)):
                for element in root.walk():
                    building_word(element.cls)._expect(element, self.commons)
            for name, node in self.plan.nodes.items():
                self.nodes[name] = self._door(node) if node.door_to else self.node(node)
            if self.plan.entrypoint is not None and not self._walks_anyway():
                built.front_parts = self._all.nested()
                builder = self._elements(None, Shared())
                front = builder.element(self.plan.entrypoint, At.begin(built.front_parts))
                built.front_holds = builder.looked_up
                built.front = (
                    front.door.scheduler
                    if isinstance(front, FrontDoor) and front.door.is_plain
                    else front_scheduler(front, self._entries(), shortcut=self.shortcut)
                )
        return built

    def close(self) -> None:
        """Close all that was built, once nothing is built any more."""
        self.cancelled.set()  # first: what is being built may take minutes
        with self._builds:
            self._all.close()
            if self._probes is not None:
                self._probes.close()

    def _walks_anyway(self) -> bool:
        """Tell whether the front is what a graph does without one, with the bounds of its nodes."""
        front = self.plan.entrypoint
        walks = front is not None and planned_word(front.cls)._walks
        return walks and self.plan.is_graph

    def _entries(self) -> list[NodeKeys]:
        """Give the keys of the nodes that no other one leads to by ``next``."""
        following = {name for links in self.plan.links.values() for name in links.next}
        return [node.keys for name, node in self.plan.nodes.items() if name not in following]

    def _elements(self, node: NodePlan | None, shared: Shared) -> ElementBuilder:
        return ElementBuilder(
            self.plan,
            node,
            self.registered,
            shared,
            self.commons,
            self._reached,
            BuildSettings(self.threads, self.cancelled.is_set, self.shortcut),
        )

    def node(self, node: NodePlan) -> BuiltNode:
        """Build one node and register it."""
        parts, shared = self._all.nested(), Shared()
        parts.add(shared)
        builder = self._elements(node, shared)
        at = At.begin(parts)
        if node.init is not None:
            builder.element(node.init, replace(at, end=BatchEnd()))
        entry = at.end.around(builder.element(node.entry, at), node.entry)
        door = self.registered.setdefault(f"node.{node.name}", entry)
        if isinstance(door, Door):
            scheduler = door.scheduler
        else:
            scheduler = node_scheduler(
                node, [door], shortcut=self.shortcut, probes=self.commons.probes
            )
        if node.instance is not None and isinstance(door, Door):
            needs = needed_keys(node.backend, builder.by_element)
            if needs != ("data",):
                scheduler.need(needs)
        self.registered[f"node.{node.name}"] = Door(scheduler, self._levels(node))
        builder.registered = self.commons.registered  # for what a backend builds later
        return BuiltNode(
            node,
            scheduler,
            parts,
            builder.instance_parts,
            shared,
            builder.by_element,
            self.threads,
            {f"node.{node.name}", *builder.registers},
            builder.looked_up - builder.registers,
        )

    def _levels(self, node: NodePlan) -> tuple[Each, ...]:
        links = self.plan.links.get(node.name)
        return links.levels if links is not None else ()

    def _door(self, node: NodePlan) -> BuiltNode:
        """Make a second door to a node: the same queue, batches and instances."""
        target = self.nodes[node.door_to or ""]
        self.registered[f"node.{node.name}"] = Door(
            target.scheduler, self._levels(node), self.plan.door_timeouts_ms[node.name]
        )
        return BuiltNode(
            node,
            target.scheduler,
            self._all.nested(),
            [],
            target.shared,
            target.by_element,
            self.threads,
        )


def build_pipeline(
    plan: PipelinePlan, *, shortcut: bool = True, use: Callable[[Built], None] | None = None
) -> Built:
    """Build a whole pipeline; what was built is closed again when something fails.

    After Ctrl-C a thread closes it, which no interrupt hits: a second one only ends the wait for that.

    Args:
        plan: The checked plan.
        shortcut: Whether a caller that finds a node idle may skip its queue.
        use: Called with what was built, as the last that may fail.

    Raises:
        SetupError: A backend could not be built.
        PluginError: A plugin or a library is missing.
    """
    builder = Builder(plan, shortcut=shortcut)
    closed = Signal()

    def close() -> None:
        try:
            builder.close()
        except BaseException as error:  # noqa: BLE001 - what failed the build is raised
            _log.warning("closing what was built failed", exc_info=error)
        finally:
            closed.wake()

    try:
        built = with_room(builder.build)
        if use is not None:
            use(built)
    except Exception:
        try:
            builder.close()
        except BaseException:  # Ctrl-C meanwhile
            start_new_thread(close, ())
            raise
        raise
    except BaseException:
        try:
            start_new_thread(close, ())  # one step: an interrupt comes before it or after it
        except RuntimeError:  # no more threads, or the interpreter ends
            close()
        while not closed.sleep(LOOK_S):
            pass
        raise
    return built
