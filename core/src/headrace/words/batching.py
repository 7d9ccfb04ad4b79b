"""The words of scheduling: Batching and InstanceDispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._build.standing import NotCallable
from headrace._build.word import Building, Word
from headrace.errors import ContractError

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._build.at import At
    from headrace._plan.element import Element
    from headrace._plan.word import Use
    from headrace.keys import Request

__all__ = ["Batching", "InstanceDispatcher"]


class _Scheduling(Word):
    """Base of the words that end in the queue of a node."""

    @classmethod
    def _check_unused(cls, use: Use, name: str) -> None:
        message = f"{name} ends in no Batching[InstanceDispatcher] and no Batching[X]"
        use.add("scheduling", message)


class Batching(_Scheduling):
    """Gather the requests of all callers into batches for what it depends on.

    ``Batching[InstanceDispatcher]`` gathers for the instances of the node, ``Batching[X]`` for one
    instance. The keys of the node say when a batch is cut: ``max``, ``batching_timeout``,
    ``batch_sizes``, ``batch_policy``.

    Reads:
        What the instances read.
    Writes:
        What the instances write.
    Batch:
        1 or more.

    Raises:
        What the instances raise, and OverloadedError, DeadlineExceededError, BatchRangeError.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Upper"
            node_entrypoint = "Register[Batching[Reflect[backend]]]"
    """

    _gathers = True
    _reaches_out = True

    @classmethod
    def _check(cls, use: Use) -> bool:
        """Check that it stands where a scheduler can, over something to schedule."""
        element = use.element
        if use.scope.lenient or (element.named is not None and not element.children):
            return True
        if not use.scope.entry:
            where = "belongs in init or node_entrypoint, not in what is built per instance"
            use.add("scheduling", f"Batching {where}")
            return False
        instances = f"{use.planning.node}.0" in use.planning.registered
        for child in element.children:
            if child.cls is InstanceDispatcher and not instances:
                message = f"{child.name} finds no instances: InstancesRegister[...] comes before it"
                use.planning.add("scheduling", message, child.call, use.scope)
                return False
        return True

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Put the queue of the node before its instances, or before the one that stands in it."""
        if not element.children or building.node is None:
            return NotCallable(element.name)
        (child,) = element.children
        if child.cls is InstanceDispatcher:
            return building.schedule(building.instances)
        return building.schedule([building.shared_out(child, at)])

    def forward_with_dep(self, batch: list[Request], dependency: Backend) -> None:
        """Refuse: what the planner leaves of it is the scheduler of the node."""
        raise ContractError("Batching was called outside of a node")


class InstanceDispatcher(_Scheduling):
    """Choose the instance of the node that takes a batch; stands in ``Batching[...]`` only.

    The key ``dispatch_policy`` of the node says how.

    Reads:
        What the instances read.
    Writes:
        What the instances write.
    Batch:
        From the least min to the greatest max of the instances.

    Raises:
        What the instances raise.
    Source:
        own
    Example:
        ``{"data": "abc"}`` gives ``"ABC"``::

            backend = "Upper"
            instance_num = 2
            node_entrypoint = "List[InstancesRegister[Reflect[backend]],Register[Batching[InstanceDispatcher]]]"
    """

    @classmethod
    def _check(cls, use: Use) -> bool:
        """Check that it stands in ``Batching[...]``."""
        parent = use.scope.parent
        if use.scope.named or (parent is not None and issubclass(parent, Batching)):
            return True
        use.add("scheduling", "InstanceDispatcher stands in Batching[InstanceDispatcher] only")
        return False

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Build nothing: it says which instances the queue is for."""
        return NotCallable(element.name)
