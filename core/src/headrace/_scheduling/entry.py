"""The entry: one request at one node, which waits, runs and gets exactly one outcome."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from headrace._checked import as_int, wrong_weight
from headrace._portable import caused, is_abandoned, nearest
from headrace._scheduling.threads import took_token
from headrace.errors import ClosedError, InputError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._scheduling.threads import Signal
    from headrace._scheduling.timer import Alarm
    from headrace.keys import Request


NEW = "new"
ENTERED = "entered"
"""The entry is counted, and on its way into the queue or out of it."""
OUTSIDE = "outside"
"""The entry waits for room in the queue."""
QUEUED = "queued"
PENDED = "pending"
"""A backend keeps the request, and answers it later: see `headrace._scheduling.pending`."""
RUNNING = "running"
DONE = "done"
WAITING = (NEW, ENTERED, OUTSIDE, QUEUED, PENDED)
"""The states in which no backend runs, so that the request may be taken back."""

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

        An owner that hands the request on calls `Entry.give_back` first. This must be short: what is a user's, as the
        callbacks of a future, helper threads run (`headrace._scheduling.threads.helpers`).
        """


class Nobody:
    """The owner of an entry that has none yet, or none any more."""

    def finished(self, entry: Entry) -> None:
        """Do nothing."""


NOBODY = Nobody()


class Quota:
    """Counts the wait of an entry at the node where its request entered; this base class counts nothing.

    Attributes:
        entered: Whether the request has been let in: from then on no bound stops its entries.
    """

    __slots__ = ()
    entered = True

    def began(self, entry: Entry, evict: Callable[[Entry, BaseException], None]) -> None:
        """Take note that the entry waits at another node, where ``evict(entry, error)`` fails it."""

    def ended(self, entry: Entry) -> Callable[[], object] | None:
        """Take note that the entry waits no more; give a function to call without a lock: it lets others in."""
        return None


UNCOUNTED = Quota()
"""The quota of entries that a backend hands to another node: the request runs, so no bound counts them."""


class Entry:
    """A request that waits at a node or runs there.

    Attributes:
        request: The dict.
        owner: Whoever waits for the outcome; `NOBODY` once the owner has been notified.
        weight, arrival, deadline, priority: See `headrace.policies.Waiting`.
        cut: When the entry was put into its batch.
        data: The caller's object under ``data``, put back before the answer; `MISSING` for none.
        state: One of NEW, ENTERED, OUTSIDE, QUEUED, PENDED, RUNNING, DONE; changed under the scheduler's lock.
        error: The outcome once DONE: None for success, and after the error has been taken.
        code: The code under which a failure is counted; for a backend's error set before the lock is taken.
        alarm: The timer that ends the wait of an entry whose owner does not wait itself.
        room: Wakes a thread that waits until the entry is in the queue, or done.
        quota: Counts the wait at the node where the request entered; None where that is this node, whose queue counts.
        lent: One item in a list while a backend runs on a copy of the request, else None. Popping is one step of the
            interpreter: the backend pops the item and writes its answer, or the owner does and takes the request back.
        group: Entries that are cancelled, if they still wait, when one fails, else None; emptied against a cycle.
        scheduler: Where the entry came in, and is counted; None before that.
        entered: What ``enter`` of each backend class returned for the request, by class; None for nothing.
        trait, trait_of: See `headrace.policies.Waiting`, and the policy that has worked it out; set by one with ``picks`` alone.
        held: What is known of it where a backend keeps it as PENDING, or has asked something for it; else None.
    """

    __slots__ = (
        *("request", "owner", "weight", "arrival", "cut", "deadline", "priority", "data", "state"),
        *("error", "code", "alarm", "room", "quota", "lent", "group", "scheduler", "entered"),
        *("held", "trait", "trait_of"),
    )

    cut: float
    error: BaseException | None
    code: str | None
    alarm: Alarm | None
    room: Signal | None
    lent: list[None] | None
    group: list[Entry] | None
    trait: Any
    trait_of: object
    held: Any  # a `headrace._scheduling.pending.Held`, or None

    def __init__(
        self,
        request: Request,
        owner: Owner = NOBODY,
        weight: int = 1,
        deadline: float | None = None,
        priority: int = 0,
        quota: Quota | None = None,
    ) -> None:
        self.request = request
        self.owner = owner
        self.weight = weight
        self.arrival = 0.0
        self.deadline = deadline
        self.priority = priority
        self.data: Any = dict.get(request, "data", MISSING) if isinstance(request, dict) else None
        self.state = NEW
        self.error = self.code = self.alarm = self.room = self.lent = self.group = self.held = None
        self.scheduler: Any = None
        self.entered: dict[type, Any] | None = None
        self.quota = quota

    @property
    def began(self) -> bool:
        """Whether a backend has begun on the request, here or at a node before this one."""
        if self.state == RUNNING or self.held is not None:
            return True
        return self.quota is not None and self.quota.entered

    def refuse(self, error: BaseException) -> None:
        """Give an entry that never entered an error as its outcome."""
        self.state = DONE
        self.error = error
        self.data = _UNTOUCHED

    def give_back(self) -> None:
        """Put the caller's ``data`` back, and remove the result of a failed request; never under a lock.

        An abandoned dict is left to its backend. A request whose dict raises here has failed.
        """
        if self.data is _UNTOUCHED:
            return
        if self.error is not None:
            restore(self.request, self.data, self.error)
            return
        try:
            put_back(self.request, self.data)
        except Exception as refusal:  # noqa: BLE001 - the caller's own dict may raise anything
            self.error = refuses_change(refusal)
            if self.scheduler is not None:
                self.scheduler.count_late(self.error)

    def take_back(self) -> bool:
        """Take the request from a backend that has a copy; False if one runs on the request. Under the lock."""
        if self.state != RUNNING:
            return True
        return self.lent is not None and took_token(self.lent)

    def take_error(self) -> BaseException | None:
        """Give the error to the thread that answers the request; the entry keeps it no more.

        An error refers to its frames, and a frame to its entries: kept, it closes a cycle that waits for the collector.
        """
        error, self.error = self.error, None
        return error

    def raise_error(self) -> None:
        """Raise the error of the request, if it has one, in the thread that answers the request."""
        if self.error is not None:
            raise self.take_error()  # type: ignore[misc]


def put_back(request: Request, data: Any) -> None:
    """Put the caller's object back under ``data``, or remove the key for `MISSING`."""
    if data is MISSING:
        request.pop("data", None)
    else:
        request["data"] = data


def restore(request: Request, data: Any, raised: BaseException) -> None:
    """Put ``data`` back after ``raised``, and remove the result; not while a backend runs on the dict."""
    with suppress(Exception):  # the caller's own dict may raise anything
        abandoned = is_abandoned(raised)
        raised.abandoned = abandoned  # type: ignore[attr-defined]
        if not abandoned:
            put_back(request, data)
            request.pop("result", None)


def raise_failure(request: Request, error: BaseException | None) -> None:
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
        return error._passing(passes=False)
    return error.copy() if isinstance(error, RequestError) else error


def refuses_change(error: BaseException) -> InputError:
    """Make the error of a request whose own dict raised when its answer was written."""
    what = f"the request cannot be answered: its dict raised {type(error).__name__}"
    wanted = "a dict that lets 'data' and 'result' be written and removed"
    return caused(InputError(what, key="data", expected=wanted), error)


def checked_weight(request: Any, node: str, needs: Sequence[str]) -> int:
    """Check a request sent to ``node``, which must have the keys in ``needs``, and give its weight.

    Raises:
        InputError: The request is no dict, lacks a key, or has a ``request_size`` below 1 or not an int.
    """
    if not isinstance(request, dict):
        wanted, got = "a dict", type(request).__name__
        wanted += f" with the key {needs[0]!r}" if needs else ""
        what = "a request is a dict, several a list"
        write = f'Write pipe({{"{needs[0]}": x}}).' if needs else "Write pipe({})."
        raise InputError(what, expected=wanted, got=got, node=node, hint=write)
    for key in needs:
        if key not in request:
            there = [known for known in islice(request, 100) if type(known) is str]
            near = nearest(key, there)
            if near is not None:
                there = [near, *(known for known in there if known != near)]
            hint = f"It has {', '.join(map(repr, there[:8]))}." if there else None
            if near is not None:
                hint = f"{hint} Did you mean {key!r}?"
            raise InputError(f"the request has no {key!r}", key=key, node=node, hint=hint)
    written: Any = request.get("request_size", 1)
    weight = written if type(written) is int else as_int(written)
    if weight is None or not 1 <= weight < 2**63:
        limit = "below 2**63" if weight and weight > 0 else "of at least 1"
        raise wrong_weight(written, limit, node=node)
    if weight is not written:  # a sum of numpy integers could overflow their type
        request["request_size"] = weight
    return weight
