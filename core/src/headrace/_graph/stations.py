"""A request at one node of a walk, as the scheduler of that node takes it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace._scheduling.entry import Entry
from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace._graph.graph import Station
    from headrace._scheduling.entry import Owner
    from headrace.keys import Request

__all__ = ["entry_at"]


def entry_at(
    station: Station,
    request: Request,
    owner: Owner | None = None,
    *,
    deadline: float | None = None,
    priority: int = 0,
) -> Entry:
    """Make the entry of a request at a node; one that is wrong is done, with its error."""
    if station.timeout_ms is not None:
        own = time.monotonic() + station.timeout_ms / 1000
        deadline = own if deadline is None else min(own, deadline)
    entry = Entry(request, owner, deadline=deadline, priority=priority)
    try:
        entry.weight = station.scheduler.checked(request)
    except InputError as error:
        entry.refuse(error)
    return entry
