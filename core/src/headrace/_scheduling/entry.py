"""One request at one node: what waits, runs and gets exactly one outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._scheduling.elsewhere import Handed, Waits
    from headrace._scheduling.signal import Signal
    from headrace._scheduling.timer import Alarm
    from headrace.keys import Request

__all__ = [
    "DONE",
    "ENTERED",
    "MISSING",
    "NEW",
    "NOBODY",
    "OUTSIDE",
    "QUEUED",
    "RUNNING",
    "Entry",
    "Owner",
    "checked_weight",
]

NEW = "new"
ENTERED = "entered"
"""It is counted, and on its way into the queue."""
OUTSIDE = "outside"
"""It waits for room in the queue."""
QUEUED = "queued"
RUNNING = "running"
DONE = "done"

MISSING = object()
"""Stands for the ``data`` of a request that has none."""


class Owner(Protocol):
    """Whoever waits for the outcome of an entry."""

    def finished(self, entry: Entry) -> None:
        """Take note of the outcome, without any lock held; a second time changes nothing.

        It must be short: code of the user belongs in `headrace._scheduling.callbacks.run_aside`.
        """


class Entry:
    """A request that waits at a node or runs there.

    Attributes:
        request: The dict.
        data: The caller's object under ``data``, put back before the answer; `MISSING` for none.
        owner: Whoever waits for the outcome; `NOBODY` once it has been told.
        weight, arrival, deadline, priority: See `headrace.policies.Waiting`.
        state: One of NEW, ENTERED, OUTSIDE, QUEUED, RUNNING, DONE; changed under the scheduler's lock.
        error: The outcome once DONE: None for success, and once it has been taken.
        room: Wakes a thread that waits until the entry is let into the queue, or is done.
        waits: Counts the wait against the node at which the request entered; None for a request that
            enters here, which the line itself counts.
        alarm: The timer that ends the wait of an entry whose owner does not wait itself.
    """

    __slots__ = (
        "alarm",
        "arrival",
        "data",
        "deadline",
        "error",
        "owner",
        "priority",
        "request",
        "room",
        "state",
        "waits",
        "weight",
    )

    def __init__(
        self,
        request: Request,
        owner: Owner | None,
        *,
        weight: int = 1,
        arrival: float = 0.0,
        deadline: float | None = None,
        priority: int = 0,
    ) -> None:
        self.request = request
        self.data: Any = request.get("data", MISSING) if isinstance(request, dict) else None
        self.owner: Owner = owner or NOBODY
        self.weight = weight
        self.arrival = arrival
        self.deadline = deadline
        self.priority = priority
        self.state = NEW
        self.error: BaseException | None = None
        self.alarm: Alarm | None = None
        self.room: Signal | None = None
        self.waits: Waits | Handed | None = None

    def refuse(self, error: BaseException) -> None:
        """Give an entry that never entered its outcome."""
        self.state = DONE
        self.error = error

    def put_back(self) -> None:
        """Let the request have the caller's object under ``data`` again, or nothing."""
        if self.data is MISSING:
            self.request.pop("data", None)
        else:
            self.request["data"] = self.data

    def take_error(self) -> BaseException | None:
        """Give the error to whoever answers the request; the entry forgets it.

        An error keeps the frames that it came through, and these keep their entries: what kept the
        error in turn would be garbage, with all its requests, until the collector comes by.
        """
        error, self.error = self.error, None
        return error


class Nobody:
    """The owner of an entry that has none yet."""

    def finished(self, entry: Entry) -> None:
        """Do nothing."""


NOBODY = Nobody()


def checked_weight(request: Any, node: str, needs: Sequence[str]) -> int:
    """Check a request on entry and give its weight.

    Args:
        request: What was sent.
        node: The node.
        needs: The keys it must have.

    Raises:
        InputError: It is no dict, lacks a key, or its ``request_size`` is no int of at least 1.
    """
    if not isinstance(request, dict):
        raise InputError(
            "a request is a dict",
            expected=f"a dict with the key {needs[0]!r}" if needs else "a dict",
            got=type(request).__name__,
            node=node,
        )
    for key in needs:
        if key not in request:
            raise InputError(f"the request has no {key!r}", key=key, node=node)
    weight: Any = request.get("request_size", 1)
    if type(weight) is not int or weight < 1:
        raise InputError(
            "the weight of the request is wrong",
            key="request_size",
            expected="an int of at least 1",
            got=repr(weight),
            node=node,
        )
    return weight
