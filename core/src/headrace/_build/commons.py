"""What belongs to all nodes of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace._containers.queues import Queues

if TYPE_CHECKING:
    from headrace._containers.graph import DagDispatcher

__all__ = ["Commons"]


@dataclass
class Commons:
    """What belongs to all nodes of a pipeline.

    Attributes:
        queues: Its queues, by name.
        dispatchers: The backends that wait to be told how to walk the graph.
        reached: The registered instances that some expression calls by name, past any queue.
    """

    queues: Queues = field(default_factory=Queues)
    dispatchers: list[DagDispatcher] = field(default_factory=list)
    reached: set[str] = field(default_factory=set)
