"""Building a pipeline from its blueprint, and closing again what was built when that fails."""

from __future__ import annotations

import logging
from _thread import start_new_thread
from functools import partial
from typing import TYPE_CHECKING

from headrace._run.node import Node
from headrace._run.records.probes import GuardedProbe
from headrace._run.steps.box import Box
from headrace._run.steps.threads import Signal
from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.batches.instance import Instance
    from headrace._run.blueprint import Blueprint, BuiltNode, NodeBlueprint

_log = logging.getLogger("headrace.build")

LOOK_S = 0.25
"""How often a thread that waits for building or closing wakes up, so that interrupts reach it."""


def start(
    blueprint: Blueprint,
    box: Box | None = None,
    use: Callable[[dict[str, BuiltNode]], None] = lambda _: None,
) -> dict[str, BuiltNode]:
    """Build a whole pipeline. When that fails, close again what was built.

    Another thread closes it, which Ctrl-C cannot hit: a second one only ends the wait for it.

    Args:
        blueprint: The pipeline to build.
        box: Its box.
        use: Called with what is returned. When it raises, the pipeline is closed as well.

    Returns:
        The nodes, in the order in which they were built.

    Raises:
        SetupError: A backend could not be built, or the ranges that ``init`` has set leave a hole.
        PluginError: A plugin or a library is missing.
    """
    built: dict[str, BuiltNode] = {}
    closed = Signal()

    def close() -> None:
        try:
            blueprint.close()
            for node in reversed(built.values()):
                node.close()
            blueprint.heard.close()
        except BaseException as error:  # `start` raises the error of the build
            _log.warning("closing what was built failed", exc_info=error)
        finally:
            closed.wake()

    try:
        _build(blueprint, built, box or Box())
        use(built)
    except BaseException:
        try:
            # This is one step of the interpreter: an interrupt comes before it or after it, and
            # cannot leave a thread half started as it can inside `Thread.start`.
            start_new_thread(close, ())
        except RuntimeError:  # no more threads, or the interpreter ends
            close()
        while not closed.sleep(LOOK_S):
            pass
        raise
    return built


def _build(blueprint: Blueprint, built: dict[str, BuiltNode], box: Box) -> None:
    probes = blueprint.heard
    for name, factory in blueprint.probes.items():  # if one cannot be made, the others are closed
        probes.set([*probes.all, GuardedProbe(name, factory())])
    for name, node in blueprint.nodes.items():
        built[name] = node.build(partial(_node, node, box))
    for running in dict.fromkeys(item.node for item in built.values()):
        running.listen(probes)
        for instance in running.instances:
            probes.instance_changed(running.name, instance.index, "ready")


def _node(node: NodeBlueprint, box: Box, instances: Sequence[Instance]) -> Node:
    """Put the queue of a node before its instances."""
    name = node.links.name
    _check_coverage(instances, name)
    batch, dispatch = node.policies()
    return Node(box, name, instances, batch, dispatch, node.limits, box.threads.clock)


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
