"""StateFul: what a model remembers of each session, between its requests."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace import PENDING
from headrace.errors import ContractError, InputError, OverloadedError
from headrace.words import run_child, select
from headrace_flow.order import InOrder, arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from headrace.keys import Request

__all__ = ["StateFul"]

START, END = "sequence_start", "sequence_end"
"""Keys of a request that begin a session anew, and drop its state after it."""


class _Session:
    """What is kept of one session.

    Attributes:
        state: What its next request gets, by key; None before its first request has gone well.
        used: When a request of it last came or ended, in seconds on the clock.
    """

    __slots__ = ("state", "used")

    def __init__(self, used: float) -> None:
        self.state: dict[str, Any] | None = None
        self.used = used


class Sessions:
    """The sessions of one node, for all its instances, before and after a reload; least recently used first.

    Idle ones are dropped as other requests come, and as somebody asks for the `statistics`.

    Attributes:
        order: Says whose turn it is.
        idle_s, states: The options of `StateFul`, as the last instance was built with.
    """

    def __init__(self, key: str, clock: Callable[[], float]) -> None:
        self.order = InOrder(itemgetter(key))
        self.idle_s, self.states = 60.0, 10_000
        self._clock = clock
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, _Session] = OrderedDict()
        self._expired = self._refused = 0

    def admit(self, session: Hashable) -> None:
        """Let a request of a session in.

        Raises:
            OverloadedError: The session is new, and there are as many as there may be.
        """
        with self._lock:
            now = self._drop_idle()
            found = self._found.get(session)
            if found is not None:
                found.used = now
                self._found.move_to_end(session)
                return
            if len(self._found) >= self.states:
                self._refused += 1
                what = f"{len(self._found)} sessions are kept, so session {session!r} cannot begin"
                hint = "End sessions by `sequence_end`, or raise `states`, or lower `idle_s`."
                raise OverloadedError(what, hint=hint)
            self._found[session] = _Session(now)

    def state(self, session: Hashable) -> dict[str, Any] | None:
        """Return the state that a request gets whose turn it is; None where there is none."""
        with self._lock:
            found = self._found.get(session)
            return None if found is None else found.state

    def ended(self, session: Hashable, change: Callable[[Any], dict[str, Any] | None]) -> None:
        """Store what a request has left, which has ended, and let the next one of the session run.

        Args:
            session: The session.
            change: Is given the state before it, and returns the state after it; None for none.
        """
        with self._lock:
            now = self._clock()
            found = self._found.setdefault(session, _Session(now))
            found.state, found.used = change(found.state), now
            self._found.move_to_end(session)
        self.order.leave(session)
        with self._lock:
            if found.state is None and not self.order.busy(session):
                self._found.pop(session, None)

    def _drop_idle(self) -> float:
        """Drop sessions that were idle for too long, under the lock; return the time."""
        now = self._clock()
        while self._found:
            session, oldest = next(iter(self._found.items()))
            if now - oldest.used < self.idle_s:
                break
            if self.order.busy(session):
                oldest.used = now
                self._found.move_to_end(session)
            else:
                del self._found[session]
                self._expired += 1
        return now

    def statistics(self) -> dict[str, int]:
        """Return how many sessions are kept and busy, how many requests wait, how many expired or were refused."""
        with self._lock:
            self._drop_idle()
            counts = {"kept": len(self._found), "expired": self._expired, "refused": self._refused}
        return {**counts, **self.order.statistics()}


class _Ran:
    """A request that runs, from its turn to the end of its batch."""

    __slots__ = ("after", "ends", "request", "session")

    def __init__(self, session: Hashable, request: Request) -> None:
        self.session, self.request = session, request
        self.ends = False
        self.after: dict[str, Any] | None = None  # what it leaves; None where it has failed


class StateFul(headrace.Backend):
    """Keep the state of each session between its requests: ``StateFul(session)[X]``, outermost in a node.

    The option ``key`` names the key of a request that says to which session it belongs, and the table ``keep`` which
    outputs of X are inputs of the session's next request: ``keep = { stateN = "state" }``. An output is looked for in
    ``result``, where that is a dict, which then has it no more, and else among the keys of the request. The state is
    the very object that X has written, wherever its memory is; nothing is copied.

    Requests of one session run one after the other, in the order in which they reach the node, at most one at a time;
    one that waits for its turn holds no thread. Those of different sessions share batches. A session begins with its
    first request, or anew with one whose ``sequence_start`` is true: then its inputs under ``keep`` are zeros, where
    X declares dtype and shape, else they are absent. What a request itself brings there is dropped. It ends with a
    request whose ``sequence_end`` is true, also one that fails, or when nothing has come for ``idle_s``.

    A request that fails, or for which nobody waits any more when its batch has ended, leaves the state as it was, or
    with ``on_error = "drop"`` drops it. ``pipe.stats()["sessions"]`` counts, by node. States outlive a reload.

    Reads:
        {key}: Which session: text, a number, or anything else that can be hashed.
    Writes:
        result: What X writes, without the outputs under ``keep``.
    Batch:
        That of X. Where a batch of X has a least size, ``pad = true`` fills up what requests that wait leave.

    Raises:
        InputError: The session is not there, or cannot be hashed.
        OverloadedError: The session is new, and ``states`` sessions are kept.
        ContractError: X gave no output that ``keep`` names.
    Source:
        own; the keys are the parameters of sequences in Triton's protocol.

    Example:
        ``RunningTotal`` adds ``data`` to its input ``before``, and writes the sum as its outputs ``total`` and ``answer``.
        The first ``{"data": 2, "session": "a"}`` gives ``{"answer": 2}``::

            backend = "StateFul(session)[RunningTotal]"
            keep = { total = "before" }
    """

    class Options(headrace.Options):
        """Options of StateFul."""

        positional = ("key",)
        key: str = Field(
            "session", min_length=1, description="The key of a request that names its session."
        )
        keep: dict[str, str] = Field(
            description="Outputs of X, each with the key under which the session's next request has it."
        )
        idle_s: float = Field(
            60.0, gt=0, description="How long a session without requests is kept, in seconds."
        )
        states: int = Field(10_000, ge=1, description="How many sessions are kept at most.")
        initial: Literal["zeros", "none"] = Field(
            "zeros",
            description="What a session begins with: zeros of the inputs that X declares, or nothing.",
        )
        on_error: Literal["keep", "drop"] = Field(
            "keep",
            description="Whether a request that fails leaves the state as it was, or drops it.",
        )

        @model_validator(mode="after")
        def _distinct(self) -> StateFul.Options:
            inputs = [*self.keep.values()]
            taken = {self.key, START, END, "result"} & {*inputs}
            if taken:
                raise ValueError(
                    f"keep: {min(taken)!r} has a meaning already, so no state can be there"
                )
            if len({*inputs}) < len(inputs):
                raise ValueError("keep: two outputs go to one key")
            return self

    takes = 1
    uses_pipeline = True
    outermost = True
    reads: tuple[str, ...] | type = ("{key}",)
    gives = ("{keep}",)

    enter = staticmethod(arrival)

    @staticmethod
    def clock() -> float:
        """Return the time in seconds by which idle sessions go; a subclass in a test has a clock of its own."""
        return time.monotonic()

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Find the sessions of the node, and the inputs that the child declares."""
        self.options, self.context = options, context
        (self._child,) = context.children
        self.reads = _reads(options.key, (START, END, *options.keep.values()))
        self._sessions = context.pipeline.get_or_create(
            ("sessions", context.node_name), partial(Sessions, options.key, self.clock)
        )
        self._sessions.idle_s, self._sessions.states = options.idle_s, options.states
        self._described = dict(self._child.describe())
        self._zeros: dict[int | None, dict[str, Any]] = {}
        self._ran: list[_Ran] = []
        self._inside = False
        context.at_batch_end(self._batch_ended)

    def _initial(self, rows: int | None) -> dict[str, Any]:
        """Return the state with which a session begins, as far as the child declares what it is.

        Args:
            rows: The rows that the request brings (``request_size``); None for a sample without batch axis.
        """
        if self.options.initial == "none":
            return {}
        found = self._zeros.get(rows)
        if found is None:
            declared = self._described.get("inputs")
            if not isinstance(declared, dict):
                declared = self.context.scope.get("inputs") or {}
            by_key = {about.get("key", name): about for name, about in declared.items()}
            keys = [key for key in self.options.keep.values() if key in by_key]
            made = {key: zeros(by_key[key], rows) for key in keys}
            found = {key: one for key, one in made.items() if one is not None}
            if rows in (None, 1):  # the sizes that clients may send have no bound
                self._zeros[rows] = found
        return found

    def describe(self) -> dict[str, Any]:
        """Return the key of sessions, what is kept, and the other inputs and outputs of X, if it declares them."""
        keep = self.options.keep
        found: dict[str, Any] = {"sequence_key": self.options.key, "keep": dict(keep)}
        found["initial"] = sorted(self._initial(None))
        for side, kept in (("inputs", {*keep.values()}), ("outputs", {*keep})):
            declared = self._described.get(side)
            if isinstance(declared, dict):
                found[side] = {
                    name: about
                    for name, about in declared.items()
                    if (about.get("key", name) if side == "inputs" else name) not in kept
                }
        return found

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run the child on the first request of each session; the others are PENDING until it is their turn."""
        self._end()  # where no end of a batch is told, as in a test of the backend alone
        outcomes: list[Exception | None] = [None] * len(batch)
        places = select(batch, range(len(batch)), self._admit, outcomes, fillers=False)
        mine, self._inside = [], True
        try:
            turns = self._sessions.order.take([batch[place] for place in places], self.context)
            for place, turn in zip(places, turns, strict=True):
                if turn:
                    mine.append(place)
                    self._ran.append(_Ran(batch[place][self.options.key], batch[place]))
                else:
                    outcomes[place] = PENDING
            for ran in self._ran:
                self._give(ran)
            run_child(self._child, batch, mine, outcomes, pad=self.context.pad)
            for ran, place in zip(self._ran, mine, strict=True):
                if outcomes[place] is None:
                    outcomes[place] = self._keep(ran)
        finally:
            self._inside = False
            for place in mine:
                for key in self.options.keep.values():
                    batch[place].pop(key, None)
        return outcomes

    def _admit(self, request: Request) -> bool:
        key, wanted = self.options.key, "text, a number, or what else can be hashed"
        if key not in request:
            raise InputError("the request has no session", key=key, expected=wanted, got="nothing")
        session = request[key]
        try:
            hash(session)
        except TypeError:
            got = type(session).__name__
            raise InputError(key=key, expected=wanted, got=got) from None
        self._sessions.admit(session)
        return True

    def _give(self, ran: _Ran) -> None:
        """Give a request the state of its session."""
        request = ran.request
        ran.ends = bool(request.get(END))
        state = None if request.get(START) else self._sessions.state(ran.session)
        for key in self.options.keep.values():
            request.pop(key, None)
        if state is None:
            state = self._initial(request.get("request_size"))
        request.update(state)

    def _keep(self, ran: _Ran) -> Exception | None:
        """Take what is kept out of what the child has written; return an error where it is not there."""
        request, after = ran.request, {}
        result = request.get("result")
        apart = dict(result) if isinstance(result, dict) else {}
        for output, key in self.options.keep.items():
            if output in apart:
                after[key] = apart.pop(output)
            elif output in request:
                after[key] = request[output]
            else:
                given = ", ".join(map(repr, result)) if isinstance(result, dict) else "no dict"
                hint = f"`keep` names outputs of {self._child._label()}, whose result has {given}."
                return ContractError(f"the child gave no {output!r} to keep", hint=hint)
        if isinstance(result, dict) and len(apart) < len(result):
            request["result"] = apart
        for output in self.options.keep:
            if output != "result":
                request.pop(output, None)
        if "result" in request:  # else the node fails the request
            ran.after = after
        return None

    def _batch_ended(self) -> None:
        # It is told after the child's own functions, so that what a device computes is finished. It is also
        # told within a batch, where the child hands requests over; then the batch goes on.
        if not self._inside:
            self._end()

    def _end(self) -> None:
        """Store the states of a batch that has ended, and give the turns to the next."""
        ended, self._ran = self._ran, []
        for ran in ended:
            self._sessions.ended(ran.session, self._change(ran))

    def _change(self, ran: _Ran) -> Callable[[Any], dict[str, Any] | None]:
        """Return what a request makes of the state of its session."""
        if ran.ends:
            return lambda _: None
        if ran.after is None or self.context.unwanted(ran.request):
            return (lambda before: before) if self.options.on_error == "keep" else lambda _: None
        return lambda _: ran.after


def _reads(key: str, optional: Iterable[str]) -> type:
    """Return the keys that a request has, apart from those of the child; only one has to be there."""
    kinds: dict[str, Any] = {**dict.fromkeys(optional, NotRequired[Any]), key: Any}
    return TypedDict("Reads", kinds)  # type: ignore[operator, no-any-return]


def zeros(declared: Mapping[str, Any], rows: int | None) -> Any:
    """Return zeros for an input; None where its shape is not fixed, or numpy does not know its dtype.

    Args:
        declared: ``dtype``, ``shape`` with None for an axis of any length, and where it has a batch axis that is not the
            first, ``batch_axis``; ``batched`` false where it has none.
        rows: The length of the batch axis; None for one sample, which has no such axis.
    """
    import numpy as np

    shape = list(declared.get("shape") or ())
    if declared.get("batched", True) and shape:
        axis = declared.get("batch_axis", 0)
        shape[axis : axis + 1] = [] if rows is None else [rows]
    try:
        return np.zeros([*map(int, shape)], str(declared["dtype"]).removeprefix("torch."))
    except (KeyError, TypeError, ValueError):
        return None
