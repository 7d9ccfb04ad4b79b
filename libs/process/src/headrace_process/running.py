"""The batch that an instance runs elsewhere: its last deadline, and the requests that their callers took back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.keys import Request

__all__ = ["RunningBatch"]


class RunningBatch:
    """The batch that an instance runs.

    A part elsewhere works on copies. So a caller whose deadline passes may leave with its request as soon as there is a
    copy: the container releases the request (`lend`), and takes it again (`take_back`) before it writes the answer.
    Inside of a larger expression no caller may leave, since the backends around go on with the request. There `lend`
    does nothing, and `take_back` always succeeds.

    Args:
        entries: The result of `headrace.isolation.Liveness.entries`.
        may_leave: Whether the container is the outermost backend of its instance.

    Attributes:
        last_deadline: The last deadline of the batch (``time.monotonic()``, seconds). None where one of its
            requests has none, or where deadlines are not known.
        may_leave: Whether callers may leave with their requests.
    """

    __slots__ = ("_all", "_entries", "last_deadline", "may_leave")

    def __init__(self, entries: Sequence[Any], *, may_leave: bool) -> None:
        deadlines = [entry.deadline for entry in entries]
        known = bool(deadlines) and None not in deadlines
        self.last_deadline: float | None = max(deadlines) if known else None
        self._all = {id(entry.request): entry for entry in entries}
        self._entries = self._all if may_leave else {}
        self.may_leave = bool(self._entries)

    def is_over(self) -> bool:
        """Tell whether no caller waits for the batch any more: its last deadline has passed."""
        return self.last_deadline is not None and time.monotonic() >= self.last_deadline

    def lend(self, requests: Iterable[Request] | None = None) -> None:
        """Let the callers leave with their requests, until `take_back` ends that. None for all of the batch."""
        for entry in self._entries.values() if requests is None else map(self._of, requests):
            if entry is not None:
                entry.lend()

    def take_back(self, request: Request) -> bool:
        """End what `lend` allowed for a request. False when its caller has left with it."""
        entry = self._of(request)
        return entry is None or entry.regain()

    def has_left(self, request: Request) -> bool:
        """Tell whether the caller has left with its request."""
        entry = self._of(request)
        return entry is not None and entry.has_left

    def limits_of(self, request: Request) -> tuple[float | None, int]:
        """Return deadline (``time.monotonic()``, seconds, None for never) and priority of a request."""
        entry = self._all.get(id(request))
        return (None, 0) if entry is None else (entry.deadline, entry.priority)

    def _of(self, request: Request) -> Any:
        return self._entries.get(id(request))
