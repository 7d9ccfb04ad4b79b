"""From a blueprint to schedulers with instances; all is closed again when something fails."""

from __future__ import annotations

import logging
from _thread import start_new_thread
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._scheduling.locks import Signal
from headrace._scheduling.probes import Probes
from headrace._scheduling.probing import ProbedScheduler
from headrace._scheduling.scheduler import Scheduler
from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._engine.blueprint import Blueprint, BuiltNode, NodeBlueprint
    from headrace._scheduling.instance import Instance

__all__ = ["Started", "build_node", "start"]

_log = logging.getLogger("headrace.build")

_LOOK_S = 0.25
"""How often a thread that waits while all is closed again looks for an interrupt."""


@dataclass
class Started:
    """A whole pipeline, built.

    Attributes:
        nodes: The nodes, in the order in which they were built.
        front: What stands before them, None for nothing.
        probes: Its probes, None when none is switched on.
    """

    nodes: dict[str, BuiltNode]
    front: BuiltNode | None = None
    probes: Probes | None = None


def start(blueprint: Blueprint, use: Callable[[Started], None] = lambda _: None) -> Started:
    """Build a whole pipeline; what was built is closed again when something fails.

    After Ctrl-C a thread closes it, which no interrupt hits: a second one only ends the wait for that.

    Args:
        blueprint: What to build.
        use: Called with what was built, as the last that may fail.

    Raises:
        SetupError: A backend could not be built.
        PluginError: A plugin or a library is missing.
    """
    started = Started({})
    closed = Signal()

    def close_all() -> None:
        blueprint.close()
        if started.probes is not None:
            started.probes.close()

    def close() -> None:
        try:
            close_all()
        except BaseException as error:  # noqa: BLE001 - what failed the build is raised
            _log.warning("closing what was built failed", exc_info=error)
        finally:
            closed.wake()

    try:
        _build(blueprint, started)
        use(started)
    except Exception:
        try:
            close_all()
        except BaseException:  # Ctrl-C meanwhile
            start_new_thread(close, ())
            raise
        raise
    except BaseException:
        try:
            start_new_thread(close, ())  # one step: an interrupt comes before it or after it
        except RuntimeError:  # no more threads, or the interpreter ends
            close()
        while not closed.sleep(_LOOK_S):
            pass
        raise
    return started


def _build(blueprint: Blueprint, started: Started) -> None:
    if blueprint.probes:
        started.probes = _made(blueprint.probes.items())
        blueprint.listen(started.probes)
    for name, node in blueprint.nodes.items():
        started.nodes[name] = build_node(node, started.probes)
    if started.probes is not None:
        for scheduler in dict.fromkeys(node.scheduler for node in started.nodes.values()):
            for instance in scheduler.instances:
                started.probes.instance_changed(scheduler.name, instance.index, "ready")
    if blueprint.front is not None:
        started.front = build_node(blueprint.front, started.probes)


def _made(factories: Any) -> Probes:
    """Make every probe; those that were made are closed again when one cannot be."""
    made: dict[str, Any] = {}
    try:
        for name, factory in factories:
            made[name] = factory()
    except BaseException:
        Probes(made).close()
        raise
    return Probes(made)


def build_node(node: NodeBlueprint, probes: Probes | None) -> BuiltNode:
    """Build one node.

    Raises:
        SetupError: A backend could not be built, or the ranges that ``init`` has set leave a hole.
        PluginError: A plugin or a library is missing.
    """
    return node.build(partial(_scheduler, node, probes if node.probed else None))


def _scheduler(
    node: NodeBlueprint, probes: Probes | None, instances: Sequence[Instance]
) -> Scheduler:
    """Put the queue of a node before its instances."""
    name = node.links.name
    _check_coverage(instances, name)
    batch: Any = node.batch_policy()
    dispatch: Any = batch if node.dispatch_policy is None else node.dispatch_policy()
    if probes is not None:
        return ProbedScheduler(name, instances, batch, dispatch, node.limits, probes=probes)
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
