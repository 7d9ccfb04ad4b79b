"""What belongs to all nodes of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace._scheduling.named_queues import Queues

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._engine.blueprint import Dispatcher

__all__ = ["Commons"]


@dataclass
class Commons:
    """What belongs to all nodes of a pipeline.

    Attributes:
        queues: Its queues, by name.
        dispatchers: The backends that wait for the graph, to run requests through it.
        registered: The registered instances that are in service, by name. It is one and the same
            dict for ever: whoever can still build something looks into it, so a dict of its own
            would keep instances alive that a reload has retired.
    """

    queues: Queues = field(default_factory=Queues)
    dispatchers: list[Dispatcher] = field(default_factory=list)
    registered: dict[str, Backend] = field(default_factory=dict)
