"""The batches that run in the calling thread, and the entries of their requests.

Here means in the calling thread, or in one that waits for its call.
"""

from __future__ import annotations

from math import inf
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._run.requests.entry import Entry
from headrace._run.steps.threads import threads_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.keys import Request


batches_run: dict[int, tuple[Sequence[Entry], ...]] = {}
"""Per thread the batches from queues that it runs, the innermost first."""

_WITHOUT_LIMITS = Entry({})


def _entries_here() -> list[Entry]:
    threads = threads_of(get_ident())
    return [entry for ident in threads for batch in batches_run.get(ident, ()) for entry in batch]


def running_here(request: Request) -> Entry | None:
    """Return the entry of a request in a batch that runs here; None for any other dict."""
    return next((entry for entry in _entries_here() if entry.request is request), None)


def enter_result_of(cls: type, request: Request) -> Any:
    """Return what ``cls.enter`` returned for a request in a batch that runs here; else None."""
    entry = running_here(request)
    return None if entry is None or entry.entered is None else entry.entered.get(cls)


def deadline_here(request: Request) -> float | None:
    """Return ``context.request.deadline(request)``."""
    (entry,) = entries_of([request])
    return entry.deadline


def entries_of(requests: Iterable[Request]) -> list[Entry]:
    """Return the entry of each request in a batch that runs here, for its deadline and priority.

    An item that a container has made gets an entry of its own: it has the greatest priority of the
    entries of these batches, and their latest deadline, or none when one of them has none.
    """
    entries = _entries_here()
    entry = _WITHOUT_LIMITS
    if entries:  # else a caller runs its own request
        latest = max([inf if entry.deadline is None else entry.deadline for entry in entries])
        entry = Entry({}, deadline=latest if latest < inf else None)
        entry.priority = max([entry.priority for entry in entries])
    known = {id(entry.request): entry for entry in entries}
    return [known.get(id(request), entry) for request in requests]
