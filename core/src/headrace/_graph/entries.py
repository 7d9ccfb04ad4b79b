"""A visit as the scheduler of its node takes it: an entry, or one per element of a list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace._graph.each import Elements
from headrace._scheduling.entry import NOBODY, Entry
from headrace.errors import HeadraceError, InputError

if TYPE_CHECKING:
    from headrace._graph.route import Step
    from headrace._graph.traversal import Failure
    from headrace._scheduling.entry import Owner
    from headrace.keys import Request

__all__ = ["count", "elements_of", "entry_at"]


def entry_at(
    step: Step,
    request: Request,
    owner: Owner = NOBODY,
    *,
    deadline: float | None = None,
    priority: int = 0,
) -> Entry:
    """Make the entry of a request at a node; one that is wrong is done, with its error."""
    if step.timeout_ms is not None:
        own = time.monotonic() + step.timeout_ms / 1000
        deadline = own if deadline is None else min(own, deadline)
    entry = Entry(request, owner, deadline=deadline, priority=priority)
    try:
        entry.weight = step.scheduler.checked(request)
    except InputError as error:
        entry.refuse(error)
    return entry


def elements_of(step: Step, request: Request) -> Elements:
    """Give what a node with ``each`` runs for.

    Raises:
        InputError: The request has no list there; it is counted.
    """
    try:
        return Elements(step.links.levels, request)
    except HeadraceError as error:
        step.scheduler.count_refused(request, error)
        raise


def count(failure: Failure, request: Request) -> None:
    """Count the failure of a request between two nodes at the one that answers for it."""
    scheduler = failure.step.scheduler
    if failure.has_run:
        scheduler.count_late(failure.error)
    else:
        scheduler.count_refused(request, failure.error)
