"""Whether an instance can serve: it is there, away and coming back, or lost."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Presence(threading.Event):
    """Whether an instance can serve: set once it is lost for ever; it may be away for a while, too.

    Attributes:
        away: The parts of it that are started again just now. Who waits is served by other instances,
            or waits until it is back.
        changed: Called, without a lock, by a thread that has changed any of this while no batch runs.
        ends: Called when a batch is left behind that runs there: each lets it end.
        entries: Gives the entries of the batch that it runs; none for a request that its caller runs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.away: set[object] = set()
        self.changed: Callable[[], object] = bool
        self.ends: list[Callable[[], object]] = []
        self.entries: Callable[[], Sequence[Any]] = tuple
