"""One node built anew beside the one that is in service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace._build.builder import Builder
from headrace._build.door import Door, Guarded, NotCallable
from headrace._config.nesting import with_room
from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend
    from headrace._build.builder import Built, BuiltNode
    from headrace._plan import PipelinePlan

__all__ = ["Aside", "build_aside"]


@dataclass
class Aside:
    """A node that was built and is not in service yet.

    Attributes:
        node: The node; its scheduler has the new instances, and nobody calls it.
        registered: The registered instances of the whole pipeline, once it is in service.
        close: Closes all that was built.
    """

    node: BuiltNode
    registered: dict[str, Backend]
    close: Callable[[], None]

    def put_into(self, built: Built, plan: PipelinePlan) -> BuiltNode:
        """Take the place of the node in a built pipeline, whose scheduler stays; give the old one.

        Its scheduler must have taken over what is new.
        """
        name = self.node.plan.name
        old = built.nodes[name]
        unused, self.node.scheduler = self.node.scheduler, old.scheduler
        for door in self.registered.values():
            if isinstance(door, Door) and door.scheduler is unused:
                door.scheduler = old.scheduler
        built.registered = self.registered
        built.nodes = {key: self.node if key == name else built.nodes[key] for key in plan.nodes}
        for node in built.nodes.values():
            if node.plan.door_to == name:
                node.by_element, node.shared = self.node.by_element, self.node.shared
        return old


def build_aside(
    plan: PipelinePlan,
    name: str,
    built: Built,
    *,
    shortcut: bool,
    give_up: Callable[[Callable[[], None]], None],
) -> Aside:
    """Build one node again, warm; what was built is closed when something fails.

    Args:
        plan: The plan of the whole pipeline, with what is new.
        name: The node.
        built: The pipeline, which is not changed.
        shortcut: Whether a caller that finds the node idle may skip its queue.
        give_up: Is given a function which lets ``context.cancelled()`` be true.

    Raises:
        SetupError: A backend could not be built, or the node cannot be exchanged.
        PluginError: A plugin or a library is missing.
    """
    old = built.nodes[name]
    _check_unheld(built, name)
    registered = {key: one for key, one in built.registered.items() if key not in old.registers}
    queues = built.commons.queues
    before = queues.names()
    builder = Builder(plan, shortcut=shortcut, registered=registered, commons=built.commons)
    give_up(builder.cancelled.set)
    try:
        node = with_room(lambda: builder.node(plan.nodes[name]))
        _check_guards(node, registered)
    except BaseException:
        builder.close()
        queues.forget(queues.names() - before)
        raise
    return Aside(node, registered, builder.close)


def _check_unheld(built: Built, name: str) -> None:
    """Refuse to exchange instances that other nodes hold and call past the queue.

    Raises:
        SetupError: Another node, or the front of the pipeline, holds an instance of this one.
    """
    own = built.nodes[name]
    holders = {key: node.holds for key, node in built.nodes.items() if key != name}
    holders["entrypoint"] = built.front_holds
    for holder, held in holders.items():
        for one in sorted(held & own.registers):
            door = built.registered[one]
            if not (isinstance(door, Door) and door.scheduler is own.scheduler):
                raise SetupError(
                    f"{holder} holds the instance {one!r} itself, so it cannot be exchanged",
                    node=name,
                    hint=f"Let it call Forward[node.{name}], or build the pipeline again.",
                )


def _check_guards(node: BuiltNode, registered: dict[str, Backend]) -> None:
    """Refuse instances of other nodes that were built to be called through their queue only."""
    for one in sorted(node.holds):
        if not isinstance(registered[one], (Door, Guarded, NotCallable)):
            raise SetupError(
                f"{one!r} was built for its own node alone, and cannot be called from here as well",
                node=node.plan.name,
                hint="Build the pipeline again.",
            )
