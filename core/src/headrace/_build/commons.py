"""What belongs to all nodes of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace._containers.queues import Queues

if TYPE_CHECKING:
    from headrace._containers.graph import DagDispatcher
    from headrace._scheduling.probing import Probes

__all__ = ["Commons"]


@dataclass
class Commons:
    """What belongs to all nodes of a pipeline.

    Attributes:
        queues: Its queues, by name.
        probes: Its probes, None when none is switched on.
        dispatchers: The backends that wait to be told how to walk the graph.
    """

    queues: Queues = field(default_factory=Queues)
    probes: Probes | None = None
    dispatchers: list[DagDispatcher] = field(default_factory=list)
