"""The batch that a container runs, while its part works on copies of the requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace._scheduling.parts import parts_of
from headrace._scheduling.threads import took_token
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._scheduling.entry import Entry


class RunningBatch:
    """The batch that an instance runs: how long anybody waits for it, and whose requests were taken back.

    A part elsewhere works on copies. So the owner of a request may leave with it as soon as the copy was made,
    when its deadline passes: the container lends the request (`lend`), and asks for it again (`take_back`)
    before it writes the answer. Inside of a larger expression no owner may leave, since what stands around goes
    on with the request; there `lend` does nothing, and `take_back` always succeeds.

    Attributes:
        last_deadline: The last deadline of the batch (``time.monotonic()``, seconds); None where one of its
            requests has none, or where deadlines are not known.
        may_leave: Whether owners may leave with their requests.
    """

    __slots__ = ("_entries", "last_deadline", "may_leave")

    def __init__(self, entries: Sequence[Entry], *, may_leave: bool) -> None:
        known = [one.deadline for one in entries if one.deadline is not None]
        every = bool(known) and len(known) == len(entries)
        self.last_deadline: float | None = max(known) if every else None
        self._entries = {id(one.request): one for one in entries} if may_leave else {}
        self.may_leave = bool(self._entries)

    def is_over(self) -> bool:
        """Tell whether nobody waits for the batch any more: its last deadline has passed."""
        return self.last_deadline is not None and time.monotonic() >= self.last_deadline

    def lend(self, requests: Iterable[Request] | None = None) -> None:
        """Let the owners of requests leave with them, until `take_back` ends that; None for all of the batch."""
        entries = self._entries
        chosen = entries.values() if requests is None else map(entries.get, map(id, requests))
        for entry in chosen:
            if entry is not None and entry.lent is None:
                entry.lent = [None]

    def take_back(self, request: Request) -> bool:
        """End what `lend` allowed for a request; False when its owner has left with the request."""
        entry = self._entries.get(id(request))
        if entry is not None and entry.lent is not None:
            if not took_token(entry.lent):
                return False
            entry.lent = None
        return True

    def parts(self, request: Request) -> Any:
        """Return where the parts of a request's answer go, which has ``put(part)``; None where nobody reads any."""
        return parts_of(request, None)

    def has_left(self, request: Request) -> bool:
        """Tell whether the owner of a request that was lent has left with it."""
        entry = self._entries.get(id(request))
        return entry is not None and entry.lent == []
