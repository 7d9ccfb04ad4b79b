"""StateFul: the state of a model for each session, between its requests."""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from functools import partial
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field, model_validator
from typing_extensions import NotRequired, TypedDict

import headrace
from headrace import PENDING
from headrace.errors import ContractError, InputError, OverloadedError
from headrace.keys import CONTEXT
from headrace.words import Bracket, Place, run_child, select
from headrace_flow.order import InOrder, arrival

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from headrace.keys import Request

__all__ = ["StateFul"]

START, END = "sequence_start", "sequence_end"
"""Keys of a request that begin a session anew, and drop its state after it."""

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
"""The values of these keys, as text in lower case: the query of a URL has nothing else."""


class _Name(NamedTuple):
    """The identity of a session. It includes the client: the id of one client is never a session of another.

    Attributes:
        client: The client that ``context`` names. None where it names none.
        session: The session as a key of a dict, where True is not 1.
    """

    client: Hashable
    session: Hashable


def _context(request: Request) -> Mapping[str, Any]:
    context = request.get(CONTEXT)
    return context if isinstance(context, Mapping) else {}


def _apart(session: Any) -> Hashable:
    """Return a session as a key of a dict. By itself a dict takes True for 1, and each NaN for a new key.

    Raises:
        ValueError: It is, or holds, a NaN.
    """
    if isinstance(session, (tuple, frozenset)):
        parts = map(_apart, session)
        return frozenset(parts) if isinstance(session, frozenset) else (tuple, *parts)
    if session != session:  # true of a NaN alone
        raise ValueError("NaN")
    return isinstance(session, Number) and not isinstance(session, bool), session


def _flag(request: Request, name: str) -> bool:
    """Return whether a request begins, or ends, its session.

    Raises:
        InputError: The key holds something else.
    """
    value = request.get(name)
    flag = False if value is None else _FLAGS.get(str(value).lower())
    if flag is None:
        raise InputError(key=name, expected="true, false, 1 or 0", got=repr(value)[:40])
    return flag


class _Session:
    """What is kept of one session.

    Attributes:
        state: What its next request gets, by key. None before its first request has gone well.
        used: When a request of it last came or ended, in seconds on the clock.
    """

    __slots__ = ("state", "used")

    def __init__(self, used: float) -> None:
        self.state: dict[str, Any] | None = None
        self.used = used


class Sessions:
    """The sessions of one node, for all its instances. Least recently used first.

    Idle sessions are dropped as other requests come, and when you read the `statistics`.

    Attributes:
        order: Says whose turn it is.
        key, idle_s, states: The options of `StateFul`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.order = InOrder(self.name_of)
        self.key, self.idle_s, self.states = "session", 60.0, 10_000
        self._clock = clock
        self._lock = threading.Lock()
        self._found: OrderedDict[_Name, _Session] = OrderedDict()
        self._kept: Counter[Hashable] = Counter()  # by client
        self._expired = self._refused = 0

    def name_of(self, request: Request) -> _Name:
        """Return to which session a request belongs."""
        return _Name(_context(request).get("client"), _apart(request[self.key]))

    def admit(self, request: Request, session: _Name) -> None:
        """Let a request of a session in.

        Raises:
            OverloadedError: The session is new, and its client has as many as it may have.
        """
        of_client = "" if session.client is None else " of this client"
        most = self.states
        if of_client:
            most = max(1, most // (_context(request).get("clients") or 1))
        with self._lock:
            now = self._drop_idle()
            state = self._found.get(session)
            if state is not None:
                state.used = now
                self._found.move_to_end(session)
                return
            if self._kept[session.client] >= most:
                self._refused += 1
                text = f"{self._kept[session.client]} sessions{of_client} are kept"
                hint = "End sessions by `sequence_end`, or raise `states`, or lower `idle_s`."
                raise OverloadedError(
                    f"{text}, so session {request[self.key]!r} cannot begin", hint=hint
                )
            self._begin(session, now)

    def _begin(self, session: _Name, now: float) -> _Session:
        entry = self._found[session] = _Session(now)
        self._kept[session.client] += 1
        return entry

    def _forget(self, session: _Name) -> None:
        del self._found[session]
        self._kept[session.client] -= 1
        if not self._kept[session.client]:
            del self._kept[session.client]

    def state(self, session: _Name) -> dict[str, Any] | None:
        """Return the state that a request gets whose turn it is; None where there is none."""
        with self._lock:
            entry = self._found.get(session)
            return None if entry is None else entry.state

    def ended(self, session: _Name, change: Callable[[Any], dict[str, Any] | None]) -> None:
        """Store what a request has left, which has ended, and let the next one of the session run.

        Args:
            session: The session.
            change: Is given the state before it, and returns the state after it. None for none.
        """
        with self._lock:
            now = self._clock()
            state = self._found.get(session) or self._begin(session, now)
            state.state, state.used = change(state.state), now
            self._found.move_to_end(session)
        self.order.leave(session)
        with self._lock:
            is_kept = self._found.get(session) is state
            if is_kept and state.state is None and not self.order.busy(session):
                self._forget(session)

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
                self._forget(session)
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

    __slots__ = ("after", "ends", "handle", "request", "session")

    def __init__(self, session: _Name, request: Request, handle: Any) -> None:
        self.session, self.request, self.handle = session, request, handle
        self.ends = _flag(request, END)
        self.after: dict[str, Any] | None = None  # what it leaves; None where it has failed


class StateFul(headrace.Backend):
    """Keep the state of each session between its requests: ``StateFul(session)[X]``, outermost in a node.

    The option ``key`` names the request's key for its session. The table ``keep`` maps outputs of X to inputs of the
    session's next request: ``keep = { stateN = "state" }``. If ``result`` is a dict, an output is taken out of it, else
    from the keys of the request. The state is the very object written by X, wherever its memory is. Nothing is copied.

    Requests of one session run one after the other, in the order of their arrival at the node. A request holds no thread
    while it waits for its turn. Requests of different sessions share batches. A session begins with its first request,
    or anew with a true ``sequence_start``. Then its inputs under ``keep`` are zeros if X declares dtype and shape, else
    they are absent, and values brought by the request are dropped. It ends with a true ``sequence_end``, even if the
    request fails, or after ``idle_s`` without a request. With ``start = "required"``, the default over Triton's
    protocol, only ``sequence_start`` begins a session.

    If ``context`` has a ``client``, the session belongs to this client alone. A client may have as many sessions as
    ``states`` divided by ``clients`` of ``context``, at least 1. headrace-serve writes both: the name of the client's
    key, and the number of keys.

    A failed request leaves the state as it was. So does a request whose caller has gone when its batch ends.
    With ``on_error = "drop"`` they drop it. ``pipe.stats()["sessions"]`` counts, by node. States end with their pipeline.

    Reads:
        {key}: The session: text, a number, or any other hashable value, but None and NaN.
    Writes:
        result: The output of X, without the outputs under ``keep``.
    Batch:
        The range of X. ``pad = true`` fills a batch up to the min of X when requests wait for their turn.

    Raises:
        InputError: The session is missing, is None or NaN, or cannot be hashed. It has not begun, with
            ``start = "required"``, or ``sequence_start`` or ``sequence_end`` is neither true, false, 1 nor 0.
        OverloadedError: The session is new, and ``states`` sessions are kept.
        ContractError: X gave none of the outputs named by ``keep``.
    Source:
        own. The keys are the parameters of sequences in Triton's protocol.

    Example:
        ``RunningTotal`` adds ``data`` to its input ``before``, and writes the sum as its outputs ``total`` and ``answer``.
        The first ``{"data": 2, "session": "a"}`` gives ``{"answer": 2}``::

            backend = "StateFul(session)[RunningTotal]"
            keep = { total = "before" }
    """

    class Options(headrace.Options):
        """Options of StateFul.

        Attributes:
            key: The key of a request that names its session.
            keep: Outputs of X, each with the key under which the session's next request has it.
            idle_s: How long a session without requests is kept, in seconds.
            states: How many sessions are kept at most; clients with keys have equal shares.
            initial: The state of a new session: zeros for the inputs that X declares, or nothing.
            start: The effect of a request without ``sequence_start`` on a new session: it begins it, or is refused.
                Default: ``begin``, over Triton's protocol ``required``.
            on_error: Whether a request that fails leaves the state as it was, or drops it.
        """

        positional = ("key",)
        key: str = Field("session", min_length=1)
        keep: dict[str, str]
        idle_s: float = Field(60.0, gt=0)
        states: int = Field(10_000, ge=1)
        initial: Literal["zeros", "none"] = "zeros"
        start: Literal["begin", "required"] | None = None
        on_error: Literal["keep", "drop"] = "keep"

        @model_validator(mode="after")
        def _distinct(self) -> StateFul.Options:
            inputs = [*self.keep.values()]
            taken = {self.key, START, END, CONTEXT, "result"} & {*inputs}
            if taken:
                raise ValueError(
                    f"keep: {min(taken)!r} has a meaning already, so no state can be there"
                )
            if len({*inputs}) < len(inputs):
                raise ValueError("keep: two outputs go to one key")
            return self

    takes = 1
    keeps = True
    uses_pipeline = True
    place = Place(stands="outermost")
    stateful = True
    reads: tuple[str, ...] | type = ("{key}",)
    bracket = Bracket(gives=("{keep}",))

    enter = staticmethod(arrival)

    @staticmethod
    def clock() -> float:
        """Return the time in seconds by which idle sessions go; a subclass in a test has a clock of its own."""
        return time.monotonic()

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Find the sessions of the node, and the inputs that the child declares."""
        self.options, self.context = options, context
        (self._child,) = context.children
        self.reads = _reads(options.key, (START, END, CONTEXT, *options.keep.values()))
        self._sessions = context.store.pipeline.get_or_create(
            ("sessions", context.node_name), partial(Sessions, self.clock)
        )
        self._sessions.key = options.key
        self._sessions.idle_s, self._sessions.states = options.idle_s, options.states
        self._described = dict(self._child.describe())
        self._zeros: dict[int | None, dict[str, Any]] = {}
        self._ran: list[_Ran] = []
        self._inside = False
        context.batch.at_end(self._batch_ended)

    def _initial(self, rows: int | None) -> dict[str, Any]:
        """Return the state with which a session begins, as far as the child declares what it is.

        Args:
            rows: The rows that the request brings (``request_size``). None for a sample without batch axis.
        """
        if self.options.initial == "none":
            return {}
        zeroed = self._zeros.get(rows)
        if zeroed is None:
            declared = self._described.get("inputs")
            if not isinstance(declared, dict):
                declared = self.context.store.scope.get("inputs") or {}
            by_key = {about.get("key", name): about for name, about in declared.items()}
            keys = [key for key in self.options.keep.values() if key in by_key]
            tensors = {key: zeros(by_key[key], rows) for key in keys}
            zeroed = {key: tensor for key, tensor in tensors.items() if tensor is not None}
            if rows in (None, 1):  # the sizes that clients may send have no bound
                self._zeros[rows] = zeroed
        return zeroed

    def describe(self) -> dict[str, Any]:
        """Return the key of sessions, what is kept, and the other inputs and outputs of X, if it declares them."""
        keep = self.options.keep
        description: dict[str, Any] = {"sequence_key": self.options.key, "keep": dict(keep)}
        description["initial"] = sorted(self._initial(None))
        for side, names in (("inputs", {*keep.values()}), ("outputs", {*keep})):
            declared = self._described.get(side)
            if isinstance(declared, dict):
                description[side] = {
                    name: about
                    for name, about in declared.items()
                    if (about.get("key", name) if side == "inputs" else name) not in names
                }
        return description

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Run the child on the first request of each session; the others are PENDING until it is their turn."""
        self._end()  # where no end of a batch is told, as in a test of the backend alone
        outcomes: list[Exception | None] = [None] * len(batch)
        places = select(batch, range(len(batch)), self._admit, outcomes, fillers=False)
        mine: dict[int, _Ran] = {}
        self._inside = True
        try:
            turns = self._sessions.order.take([batch[place] for place in places], self.context)
            for place, turn in zip(places, turns, strict=True):
                if turn:
                    request = batch[place]
                    handle = self.context.request.keep(request)
                    ran = _Ran(self._sessions.name_of(request), request, handle)
                    self._ran.append(ran)
                    outcomes[place] = self._give(ran)
                    if outcomes[place] is None:
                        mine[place] = ran
                else:
                    outcomes[place] = PENDING
            run_child(self._child, batch, [*mine], outcomes, pad=self.context.batch.pad)
            for place, ran in mine.items():
                if outcomes[place] is None:
                    outcomes[place] = self._keep(ran)
        finally:
            self._inside = False
            for place in mine:
                for key in self.options.keep.values():
                    batch[place].pop(key, None)
        return outcomes

    def _admit(self, request: Request) -> bool:
        key, needed = self.options.key, "text, a number, or another hashable value"
        session = request.get(key)
        if session is None:
            got = "None" if key in request else "nothing"
            raise InputError("the request has no session", key=key, expected=needed, got=got)
        try:
            hash(session)
            name = self._sessions.name_of(request)
            hash(name)
        except (TypeError, ValueError) as error:
            got = str(error) if isinstance(error, ValueError) else type(session).__name__
            raise InputError(key=key, expected=needed, got=got) from None
        for flag in (START, END):
            _flag(request, flag)
        self._sessions.admit(request, name)
        return True

    def _give(self, ran: _Ran) -> Exception | None:
        """Give a request the state of its session; return an error where nobody has begun it, and it does not either."""
        request, starts = ran.request, _flag(ran.request, START)
        state = None if starts else self._sessions.state(ran.session)
        for key in self.options.keep.values():
            request.pop(key, None)
        if state is None:
            start = self.options.start or _context(request).get(START)
            if start == "required" and not starts:
                session = request[self.options.key]
                text = f"the request for sequence {session!r} must specify the START flag on the first request of the sequence"
                hint = "It has not begun, or has ended: begin it by a request whose `sequence_start` is true."
                return InputError(text, key=START, hint=hint)
            state = self._initial(request.get("request_size"))
        request.update(state)
        return None

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
                names = ", ".join(map(repr, result)) if isinstance(result, dict) else "no dict"
                hint = f"`keep` names outputs of {self._child._label()}, whose result has {names}."
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
        if ran.after is None or self.context.request.unwanted(ran.handle):
            return (lambda before: before) if self.options.on_error == "keep" else lambda _: None
        return lambda _: ran.after


def _reads(key: str, optional: Iterable[str]) -> type:
    """Return the keys that a request has, apart from those of the child; only one has to be there."""
    kinds: dict[str, Any] = {**dict.fromkeys(optional, NotRequired[Any]), key: Any}
    return TypedDict("Reads", kinds)  # type: ignore[operator, no-any-return]


def zeros(declared: Mapping[str, Any], rows: int | None) -> Any:
    """Return zeros for an input. None where its shape is not fixed, or numpy does not know its dtype.

    Args:
        declared: ``dtype``, ``shape`` with None for an axis of any length, and where it has a batch axis that is not the
            first, ``batch_axis``. ``batched`` false where it has none.
        rows: The length of the batch axis. None for one sample, which has no such axis.
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
