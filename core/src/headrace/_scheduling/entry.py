"""One request at one node: what waits, runs and gets exactly one outcome."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from headrace._checked import wrong_weight
from headrace._portable import as_int, caused, error_text
from headrace._scheduling.locks import claimed
from headrace.errors import ClosedError, InputError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.locks import Signal
    from headrace._scheduling.process_threads import Alarm
    from headrace.keys import Request


NEW = "new"
ENTERED = "entered"
"""It is counted, and on its way into the queue."""
OUTSIDE = "outside"
"""It waits for room in the queue."""
QUEUED = "queued"
RUNNING = "running"
DONE = "done"
WAITING = (NEW, ENTERED, OUTSIDE, QUEUED)
"""The states in which no backend has begun, so that the request may be taken back."""

DATA_ALONE = ("data",)
"""The keys that a request needs at most nodes."""

MISSING = object()
"""Stands for the ``data`` of a request that has none."""

_UNTOUCHED = object()
"""Stands for the ``data`` of a request that never entered: its dict is left as it came."""


class Owner(Protocol):
    """Whoever waits for the outcome of an entry."""

    def finished(self, entry: Entry) -> None:
        """Take note of the outcome, without any lock held; a second time changes nothing.

        Whoever hands the request on gives the dict back first, see `Entry.give_back`. It must be
        short: code of the user is run by `headrace._scheduling.process_threads.callbacks`.
        """


class Nobody:
    """The owner of an entry that has none yet, or none any more."""

    def finished(self, entry: Entry) -> None:
        """Do nothing."""


NOBODY = Nobody()


class Quota:
    """Counts the wait of an entry against the bound of the node at which its request entered: this one nowhere.

    Attributes:
        entered: Whether the request has been let in; no bound stops what belongs to it from then on.
    """

    __slots__ = ()
    entered = True

    def began(self, entry: Entry, evict: Callable[[Entry, BaseException], None]) -> None:
        """Take note that the entry waits at another node, where ``evict(entry, error)`` fails it."""

    def ended(self, entry: Entry) -> Callable[[], object] | None:
        """Take note that it waits no more; give what is to be called without any lock, for others move up."""
        return None


HANDED = Quota()
"""That of what a backend hands to another node: its request runs, so no bound counts it."""


class Entry:
    """A request that waits at a node or runs there.

    Attributes:
        request: The dict.
        owner: Whoever waits for the outcome; `NOBODY` once it has been notified.
        weight, arrival, deadline, priority: See `headrace.policies.Waiting`.
        cut: When it was put into its batch.
        data: The caller's object under ``data``, put back before the answer; `MISSING` for none.
        state: One of NEW, ENTERED, OUTSIDE, QUEUED, RUNNING, DONE; changed under the scheduler's lock.
        error: The outcome once DONE: None for success, and once it has been taken.
        code: As what its failure is counted; set before the lock is taken, for an error of others.
        alarm: The timer that ends the wait of an entry whose owner does not wait itself.
        room: Wakes a thread that waits until the entry is let into the queue, or is done.
        waits: Counts the wait against the node at which the request entered; None for a request that
            enters here, which the queue itself counts.
        lent: Holds one item while a backend runs on a copy of the request; None for one that runs on
            the request itself. Whoever pops the item, the backend to write its answer or the owner to go
            away, has the request: popping is one step of the interpreter.
    """

    __slots__ = (
        *("request", "owner", "weight", "arrival", "cut", "deadline", "priority", "data", "state"),
        *("error", "code", "alarm", "room", "waits", "lent"),
    )

    arrival: float
    cut: float
    error: BaseException | None
    code: str | None
    alarm: Alarm | None
    room: Signal | None
    lent: list[None] | None

    def __init__(
        self,
        request: Request,
        owner: Owner = NOBODY,
        weight: int = 1,
        deadline: float | None = None,
        priority: int = 0,
        waits: Quota | None = None,
    ) -> None:
        self.request = request
        self.owner = owner
        self.weight = weight
        self.arrival = 0.0
        self.deadline = deadline
        self.priority = priority
        self.data: Any = dict.get(request, "data", MISSING) if isinstance(request, dict) else None
        self.state = NEW
        self.error = self.code = self.alarm = self.room = self.lent = None
        self.waits = waits

    def refuse(self, error: BaseException) -> None:
        """Give an entry that never entered its outcome."""
        self.state = DONE
        self.error = error
        self.data = _UNTOUCHED

    def give_back(self) -> None:
        """Give the caller its object back, and no result of a failure; never under a lock.

        Not while a backend runs on it. A dict that refuses it has failed, whatever it was before.
        """
        error, data = self.error, self.data
        if data is _UNTOUCHED:
            return
        try:
            if error is None and data is not MISSING:
                self.request["data"] = data
                return
            if error is not None and getattr(error, "abandoned", False) is True:
                return
            put_back(self.request, self.data)
            if error is not None:
                self.request.pop("result", None)
        except Exception as refusal:  # noqa: BLE001 - anybody's dict, anybody's error
            self.error = error or refuses_change(refusal)

    def take_back(self) -> bool:
        """Take the request away from a backend that has a copy; False when one runs on it. Under the lock."""
        if self.state != RUNNING:
            return True
        return self.lent is not None and claimed(self.lent)

    def take_error(self) -> BaseException | None:
        """Give the error to whoever answers the request; the entry forgets it.

        An error keeps the frames that it came through, and these keep their entries: what kept the
        error in turn would be garbage, with all its requests, until the collector comes by.
        """
        error, self.error = self.error, None
        return error


def put_back(request: Request, data: Any) -> None:
    """Let a request have the caller's object under ``data`` again, or nothing for `MISSING`."""
    if data is MISSING:
        request.pop("data", None)
    else:
        request["data"] = data


def restore(request: Request, data: Any, raised: BaseException) -> None:
    """Give a caller its object back, and no result; not while a backend runs on it."""
    with suppress(Exception):  # anybody's dict, anybody's error
        abandoned = getattr(raised, "abandoned", False) is True
        raised.abandoned = abandoned  # type: ignore[attr-defined]
        if not abandoned:
            put_back(request, data)
            request.pop("result", None)


def fail(request: Request, error: BaseException | None) -> None:
    """Raise the error of a request, if it has one."""
    if error is None:
        return
    with suppress(Exception):
        request.pop("result", None)
    try:
        raise error
    finally:
        del error  # see `Entry.take_error`


def own_error(error: BaseException) -> BaseException:
    """Give an error object for one request alone."""
    if isinstance(error, ClosedError):
        return ClosedError(error.args[0], abandoned=error.abandoned)
    return error.copy() if isinstance(error, RequestError) else error


def refuses_change(error: Exception) -> InputError:
    """Make the error of a request whose own dict raised when it was to be answered."""
    what = f"the request cannot be answered: its dict raised {type(error).__name__}"
    wanted = "a dict that lets 'data' and 'result' be written and removed"
    return caused(InputError(what, key="data", expected=wanted), error)


def unreadable(error: Exception) -> InputError:
    """Make the error of a request whose dict, or what is in it, raises when it is looked at."""
    return caused(InputError(f"the request cannot be read: {error_text(error)}"), error)


def checked_weight(request: Any, node: str, needs: Sequence[str]) -> int:
    """Check what was sent to ``node``, which must have the keys in ``needs``, and give its weight.

    Raises:
        InputError: It is no dict, lacks a key, or its ``request_size`` is no int of at least 1.
    """
    if not isinstance(request, dict):
        wanted, got = "a dict", type(request).__name__
        wanted += f" with the key {needs[0]!r}" if needs else ""
        raise InputError("a request is a dict", expected=wanted, got=got, node=node)
    for key in needs:
        if key not in request:
            raise InputError(f"the request has no {key!r}", key=key, node=node)
    written: Any = request.get("request_size", 1)
    weight = written if type(written) is int else as_int(written)
    if weight is None or not 1 <= weight < 2**63:
        too_large = weight is not None and weight >= 1
        raise wrong_weight(written, "below 2**63" if too_large else "of at least 1", node=node)
    if weight is not written:  # who adds up those of numpy gets what does not fit into their type
        request["request_size"] = weight
    return weight
