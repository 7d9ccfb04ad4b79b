"""The entry: one request at one node, which waits, runs and has one outcome. In steps alone."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from headrace._run.contract.checked import as_int, has_no_rows, weight_error
from headrace._run.steps.threads import took_token
from headrace._run.steps.tracebacks import is_abandoned, set_abandoned, with_cause
from headrace._texts import nearest
from headrace.errors import ClosedError, InputError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._run.batches.runners import Waiter
    from headrace._run.graph.graph_request import GraphRequest
    from headrace._run.node import Node
    from headrace._run.steps.threads import Alarm
    from headrace.keys import Request

NEW = "new"
OUTSIDE = "outside"
"""The entry waits for room in the queue."""
QUEUED = "queued"
PENDED = "pending"
"""A backend keeps the request, and answers it later: see `headrace._run.requests.pending`."""
RUNNING = "running"
DONE = "done"
WAITING = (NEW, OUTSIDE, QUEUED, PENDED)
"""The states in which no backend runs, so that the request may be cancelled."""

DATA_ALONE = ("data",)
"""The keys that a request needs at most nodes."""

MISSING = object()
"""Stands for the ``data`` of a request that has none."""

UNTOUCHED = object()
"""Stands for the ``data`` of a request that never entered: its dict is left as it came."""


class Entry:
    """A request that waits at a node or runs there.

    All of it is in one object, since each request needs one: a second one would cost more than it.

    Attributes:
        request: The dict.
        then: Called once with the entry when it has its outcome, in a step. None once that has
            happened.
        lock: What its caller sleeps on, who waits for this request alone. None for none.
        waiter: The caller that waits for it together with others. None for none.
        awaited: The thread that waits for it otherwise, by its lock, its future or its stream. 0
            for none.
        internal: Whether it comes from another node, and may enter while newcomers are refused.
        weight, arrival, deadline, priority: See `headrace.policies.Waiting`.
        cut: When the entry was put into its batch.
        data: The caller's object under ``data``, put back before the answer. `MISSING` for none.
        state: One of NEW, OUTSIDE, QUEUED, PENDED, RUNNING, DONE.
        error: The outcome once DONE: None for success, and after the error has been taken.
        code: The code under which a failure is counted.
        alarm: The timer that ends the wait of an entry whose caller does not wait itself.
        ticket: Counts the wait at the node where the request entered.
        lent: One item in a list while a backend runs on a copy of the request, else None. Who pops
            it has the request.
        group: Entries that are cancelled, if they still wait, when one fails, else None.
        node: Where the entry came in, and is counted. None before that.
        entered: What ``enter`` of each backend class returned for the request, by class. None for
            nothing.
        trait, trait_of: See `headrace.policies.Waiting`, and the policy that has worked it out.
        held: What is known of it where a backend has a handle of it, by which it may be answered
            later. None where none has.
        room: Called once it is in the queue, or done. None where nobody waits for that.
        on_way: Where its dict is kept from being sent again: see `Entrance`. None where it is not.
    """

    # Most requests need no more than these. The others lie in the dict of those that have them.
    __slots__ = (
        "__dict__",
        "arrival",
        "awaited",
        "cut",
        "data",
        "deadline",
        "error",
        "held",
        "internal",
        "lock",
        "node",
        "priority",
        "request",
        "state",
        "then",
        "ticket",
        "weight",
    )

    waiter: Waiter | None = None
    code: str | None = None
    alarm: Alarm | None = None
    lent: list[None] | None = None
    group: list[Entry] | None = None
    room: Callable[[], object] | None = None
    on_way: dict[int, object] | None = None
    entered: dict[type, Any] | None = None
    trait: Any = None
    trait_of: Any = None

    def __init__(
        self,
        request: Request,
        then: Callable[[Entry], object] | None = None,
        weight: int = 1,
        deadline: float | None = None,
        priority: int = 0,
        ticket: Any = None,
    ) -> None:
        self.request = request
        self.data: Any = dict.get(request, "data", MISSING) if isinstance(request, dict) else None
        self.then = then
        self.weight = weight
        self.deadline = deadline
        self.priority = priority
        self.ticket = ticket
        self.state = NEW
        self.arrival = self.cut = 0.0
        self.awaited = 0
        self.internal = False
        self.lock: Any = None
        self.held: Any = None
        self.error: BaseException | None = None
        self.node: Node | GraphRequest = None  # type: ignore[assignment]  # few ask before

    @property
    def began(self) -> bool:
        """Whether a backend has begun on the request, here or at a node before this one."""
        if self.state == RUNNING or self.held is not None:
            return True
        return self.ticket is not None and self.ticket.home is not self.node and self.ticket.entered

    @property
    def waits(self) -> bool:
        """Whether no backend runs on the request, here or where it was sent."""
        if self.held is not None and self.held.away is not None:
            return bool(self.held.away.waits)
        return self.state in WAITING

    def refuse(self, error: BaseException) -> None:
        """Give an entry that never entered an error as its outcome."""
        self.error, self.data, self.state = error, UNTOUCHED, DONE
        self.leave()

    def leave(self) -> None:
        """Let the dict be sent again, even one that was abandoned."""
        key = id(self.request)  # first: between the swap and `pop` no Ctrl-C comes
        on_way, self.on_way = self.on_way, None
        if on_way is not None:
            on_way.pop(key, None)

    def give_back(self) -> None:
        """Put the caller's ``data`` back, and remove the result of a failed request; in no step.

        An abandoned dict is left to its backend. A request whose dict raises here has failed.
        """
        if self.data is UNTOUCHED:
            return
        try:
            if self.error is not None:
                restore(self.request, self.data, self.error)
            elif self.data is MISSING:
                self.request.pop("data", None)
            else:
                self.request["data"] = self.data
        except Exception as refusal:  # the caller's own dict may raise anything
            self.error = refuses_change(refusal)
            if self.node is not None:
                self.node.count_late(self.request, self.error)
        key = id(self.request)  # as in `leave`
        on_way, self.on_way = self.on_way, None
        if on_way is not None:
            on_way.pop(key, None)

    def take_back(self) -> bool:
        """Take the request from a backend that has a copy; False if one runs on it. In a step."""
        sent = None if self.held is None else self.held.away
        if sent is not None:
            left = [member for member in sent.entries if member.state != DONE]
            return all([member.take_back() for member in left])  # each is asked
        return self.state != RUNNING or (self.lent is not None and took_token(self.lent))

    def lend(self) -> None:
        """Let the caller leave with the request until `regain`: the backend has a copy."""
        if self.lent is None:
            self.lent = [None]

    def regain(self) -> bool:
        """End what `lend` has allowed; False when the caller has left with the request."""
        if self.lent is not None and not took_token(self.lent):
            return False
        self.lent = None
        return True

    @property
    def has_left(self) -> bool:
        """Whether the caller of a request that was lent has left with it."""
        return self.lent == []

    def take_error(self) -> BaseException | None:
        """Give the error to the thread that answers the request. The entry keeps it no more.

        An error refers to its frames, and a frame to its entries: kept, it closes a cycle that
            waits for the collector.
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
    """Put ``data`` back after ``raised`` and remove the result, unless a backend runs on it."""
    with suppress(Exception):  # the caller's own dict may raise anything
        abandoned = is_abandoned(raised)
        set_abandoned(raised, abandoned)
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
    message = f"the request cannot be answered: its dict raised {type(error).__name__}"
    expected = "a dict that lets 'data' and 'result' be written and removed"
    return with_cause(InputError(message, key="data", expected=expected), error)


def check_weight(request: Any, node: str, needs: Sequence[str]) -> int:
    """Check a request sent to ``node``, which must have the keys in ``needs``, and give its weight.

    Raises:
        InputError: The request is no dict, lacks a key, or has a ``request_size`` that is no int of
            at least 1, nor 0 without rows.
    """
    if not isinstance(request, dict):
        expected, got = "a dict", type(request).__name__
        expected += f" with the key {needs[0]!r}" if needs else ""
        message = "a request is a dict, several a list"
        write = f'Write pipe({{"{needs[0]}": x}}).' if needs else "Write pipe({})."
        raise InputError(message, expected=expected, got=got, node=node, hint=write)
    for key in needs:
        if key not in request:
            there = [known for known in islice(request, 100) if type(known) is str]
            similar = nearest(key, there)
            if similar is not None:
                there = [similar, *(known for known in there if known != similar)]
            hint = f"It has {', '.join(map(repr, there[:8]))}." if there else None
            if similar is not None:
                hint = f"{hint} Did you mean {key!r}?"
            raise InputError(f"the request has no {key!r}", key=key, node=node, hint=hint)
    if "request_size" not in request:
        return 1
    written: Any = request.get("request_size", 1)
    weight = written if type(written) is int else as_int(written)
    if weight is None or not (1 <= weight < 2**63 or has_no_rows(request, weight)):
        limit = "below 2**63" if weight and weight > 0 else "of at least 1"
        raise weight_error(written, limit, node=node)
    if weight is not written:  # a sum of numpy integers could overflow their type
        request["request_size"] = weight
    return weight or 1
