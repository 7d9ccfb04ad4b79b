"""The words of scheduling: Batching and InstanceDispatcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._backend import Backend
from headrace.errors import ContractError

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Batching", "InstanceDispatcher"]


class Batching(Backend):
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
    """

    def forward_with_dep(self, batch: list[Request], dependency: Backend) -> None:
        """Refuse: what the planner leaves of it is the scheduler of the node."""
        raise ContractError("Batching was called outside of a node")


class InstanceDispatcher(Backend):
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
    """
