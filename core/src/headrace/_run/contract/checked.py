"""The base of every backend, which checks its state, its range and its outcomes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import unwrap
from operator import index
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

from headrace._run.steps.tracebacks import backend_error, caught, without_locals
from headrace._texts import error_text, repr_of
from headrace.errors import (
    BackendError,
    BatchRangeError,
    ClosedError,
    ContractError,
    InputError,
    InstanceLostError,
    MissingDependencyError,
    NoMemoryError,
    RequestError,
    SetupError,
)
from headrace.keys import Request

Answers: TypeAlias = list[Exception | None]
"One exception or None for each item of a batch."

Outcomes: TypeAlias = Answers | None
"""The outcomes of a batch: None when all went well, else one exception or None per item."""


class _Pending(Exception):  # noqa: N818 - an outcome like an error, and none
    def __repr__(self) -> str:
        return "headrace.PENDING"

    def __reduce__(self) -> str:
        return "PENDING"


PENDING: Exception = _Pending("the answer comes later")
"""The outcome of an item that its backend answers later, in the list that ``forward`` returns.

Before that it has a handle, of ``context.request.keep``. The item leaves its batch, and waits
without a thread until ``resume`` or ``finish`` is called for the handle. See
`headrace.InitContext`. The outermost backend of a node may return it, and the last one of an ``S``
that stands there.
"""

Located = TypeVar("Located", bound="RequestError | SetupError | MissingDependencyError")


class Filler(dict[str, Any]):
    """A copy of an item that fills a batch up. No caller has sent it; its outcome is dropped."""


def filler(item: Request) -> Filler:
    """Make a filler of an item."""
    return Filler({key: value for key, value in item.items() if key != "result"})


_OVER = {"closed": "after close", "failed": "after a failed init"}
"""The states in which a backend runs nothing, and when that is."""


_OF_A_LIST = (
    "TypeError: list indices must be integers or slices, not str",
    "AttributeError: 'list' object has no attribute ",
)
"""What Python says where a list is used as a dict."""


class Liveness:
    """Whether an instance can serve. Its device or server may be away, or lost for ever.

    Attributes:
        lost: Whether the instance is lost for ever.
        parts_away: The backends whose device or server is away, and whether the instance gets
            batches all the same. Else waiting requests go to other instances, or wait on, until all
            are back.
        changed: Called, without a lock, when a thread other than that of the batch has changed
            ``lost`` or ``parts_away``.
        killers: Functions to end the work of the instance, called when its batch is left behind.
        entries: Gives the entries of the running batch, none for a request run by its caller. Each
            has its ``request`` and ``deadline``. If the backend works on a copy, ``lend()`` lets
            the caller leave with the request, as ``has_left`` tells, until ``regain()`` (False if
            the caller has left).
        outermost: The backend called by the node. None before the build.
        node: The node that runs it. None before the build.
        keeps: Whether a backend of the instance says ``keeps``.
    """

    def __init__(self) -> None:
        self.lost = False
        self.parts_away: dict[object, bool] = {}
        # Until a node sets these two, `bool()` and `tuple()` do nothing.
        self.changed: Callable[[], object] = bool
        self.killers: list[Callable[[], object]] = []
        self.entries: Callable[[], Sequence[Any]] = tuple
        self.outermost: Any = None
        self.node: Any = None
        self.keeps = False

    def away(self, part: object, *, takes_batches: bool = False) -> None:
        """Note that a part of the instance is away until `back`.

        Args:
            part: The part.
            takes_batches: Whether the instance still gets batches, and refuses them itself.
        """
        self.parts_away[part] = takes_batches
        self.changed()

    def back(self, part: object) -> None:
        """Note that a part of the instance is there again."""
        if self.parts_away.pop(part, None) is not None:
            self.changed()

    @property
    def pauses(self) -> bool:
        """Whether the instance is given no batches, until what is away is back."""
        return False in [*self.parts_away.values()]


class Checked:
    """Base of `headrace.Backend`: the part that authors do not write."""

    min: int
    max: int | None
    rerun: ClassVar[bool]
    keeps: ClassVar[bool]
    takes: ClassVar[int | tuple[int, int | None]]

    _state: str = "new"
    _name: str = ""
    _node: str | None = None
    _index: int | None = None
    _pad: bool = False
    _liveness: Liveness | None = None  # of the instance to which this backend belongs
    _child_label: str | None = None  # of a child that is built elsewhere
    _bounded: bool = True  # batches must be compared with the range
    _takes_one: bool = False  # an item without a weight is within the range
    _is_last: bool = False  # its outcome is that of the node, so it may be PENDING
    _alone = "Set rerun = True in the class, or return a list with an error for each wrong one."

    if TYPE_CHECKING:  # see `headrace.Backend`

        def forward(self, batch: list[Request]) -> Outcomes: ...

    # What the users of a backend call.

    def __call__(self, batch: Sequence[Request]) -> Outcomes:
        """Run `forward` on a batch and give one outcome per item.

        Returns:
            None when all items went well, else one exception or None per item. An item's error is
            never raised. Only an interrupt (Ctrl-C), which is no Exception, passes.
        """
        if not batch:
            return None
        if self._state in _OVER:
            return self._refuse(batch)
        if self._bounded and (len(batch) > 1 or not self._takes_one or "request_size" in batch[0]):
            refused = self._out_of_range(batch)
            if refused is not None:
                return refused
        try:
            # The backend gets a copy of the list, so that no item is lost when it changes the list.
            outcomes = self.forward([*batch])
        except Exception as error:  # any error of a backend is an outcome
            return self._after_failure(batch, caught(error))
        if outcomes is None:
            return None
        try:
            return self._check_outcomes(batch, outcomes)
        finally:
            del outcomes  # its errors keep this frame: a frame that keeps them is a reference cycle

    def _has_emitted(self, request: Request) -> bool:
        """Tell whether a part of the answer was given; the builder sets this."""
        return False

    def _refuse(self, batch: Sequence[Request]) -> Answers:
        message = f"{self._label()} was called {_OVER[self._state]}"
        return [self._locate(ContractError(message)) for _ in batch]

    def _out_of_range(self, batch: Sequence[Request]) -> Outcomes:
        if self.max == 1:
            # A backend with a max of 1 takes one item at a time, whatever its weight.
            weight, fits = len(batch), len(batch) == 1
        else:
            try:
                weight = weight_of(batch)
            except TypeError:
                return [self._locate(_no_weight(request)) for request in batch]
            fits = self.min <= weight and (self.max is None or weight <= self.max)
        if fits:
            return None
        most = "unbounded" if self.max is None else self.max
        message = f"a batch of weight {weight} is outside the range {self.min} to {most}"
        return [
            self._locate(BatchRangeError(message, weight=weight, min=self.min, max=self.max))
            for _ in batch
        ]

    def _after_failure(self, batch: Sequence[Request], error: Exception) -> Answers:
        if not self.rerun or is_one(batch):
            return [self._with_company(self._wrap(error), batch) for _ in batch]
        failed = error
        outcomes: Answers = []
        for request in batch:
            # A lost instance runs nothing any more. Parts of an answer cannot be taken back.
            if issubclass(type(error), InstanceLostError) or self._has_emitted(request):
                outcomes.append(self._wrap(error))
                continue
            try:
                request.pop("result", None)
                alone = batch_alone(self, request)
                answers = [failed] if alone is None else self.forward([*alone])
            except Exception as again:  # of a backend, or of a user's dict
                error = caught(again)
                outcomes.append(self._wrap(error))
            else:
                if answers is not None:
                    answers = self._check_outcomes(alone or [request], answers)
                outcomes.append(None if answers is None else answers[0])
        return outcomes

    def _with_company(self, error: Exception, batch: Sequence[Request]) -> Exception:
        """Say in an error that has no hint that other requests of the batch have failed with it."""
        count = sum(not isinstance(request, Filler) for request in batch)
        alike = (BackendError, NoMemoryError, InputError)
        if not isinstance(error, RequestError) or type(error) not in alike:
            return error
        if count > 1 and error.hint is None:
            error.hint = f"All {count} requests of the batch failed with it. {self._alone}"
        return error

    def _check_outcomes(self, batch: Sequence[Request], outcomes: Any) -> Outcomes:
        """Check that a backend has given a list with one exception or None per item."""
        if not isinstance(outcomes, list):
            value = "PENDING" if outcomes is PENDING else type(outcomes).__name__
        elif len(outcomes) != len(batch):
            value = f"{len(outcomes)} outcomes for {len(batch)} items"
        elif odd := [o for o in outcomes if o is not None and not isinstance(o, Exception)]:
            value = f"a list with {type(odd[0]).__name__}: an item is an exception or None"
        elif all(o is None for o in outcomes):
            return None
        else:
            return [None if o is None else self._outcome_of(o) for o in outcomes]
        message = f"{self._label()} returned {value}"
        hint = (
            'forward writes request["result"], and returns None or a list with one exception or '
            "None per item"
        )
        if outcomes is PENDING:
            hint += "; for an item that is answered later PENDING stands in the list"
        return [self._locate(ContractError(message, hint=hint)) for _ in batch]

    def _outcome_of(self, outcome: Exception) -> Exception:
        """Return the outcome of an item to which a backend gave an exception or PENDING."""
        if outcome is not PENDING:
            return self._wrap(without_locals(outcome))
        if not self._is_last:
            where = "stands where others wait for its result"
            message = f"{self._label()} returned PENDING, and {where}"
            hint = "The outermost backend of a node may, or the last one of an S that stands there."
            return self._locate(ContractError(message, hint=hint))
        passes_on = bool(self.takes) and self._liveness is not None and self._liveness.keeps
        return outcome if self.keeps or passes_on else self._needs_keeps("returned PENDING")

    def _needs_keeps(self, act: str) -> ContractError:
        """Make the error of a backend that keeps a request, and whose class does not say so."""
        message = f"{self._label()} {act}, and its class does not say that it keeps requests"
        hint = (
            "Write keeps = True in the body of the class. Its node then has an entry for each "
            "request."
        )
        return self._locate(ContractError(message, hint=hint))

    def _wrap(self, error: BaseException) -> Exception:
        """Make a new error for one item, even when the class of ``error`` raises as it is read."""
        try:
            return self._as_request_error(error)
        except Exception:  # its class may have a `__getattribute__` that raises
            text = error_text(error)
            return self._locate(backend_error(f"{self._label()} raised {text}", RuntimeError(text)))

    def _as_request_error(self, error: BaseException) -> Exception:
        """Copy an error of Headrace, or wrap any other error in a BackendError."""
        if isinstance(error, RequestError):
            # Where the error has a node, another instance was lost.
            if isinstance(error, InstanceLostError) and error.node is None and self._liveness:
                self._liveness.lost = True
            return self._locate(error.copy())
        if isinstance(error, ClosedError) and error._passes:
            return error._passing()
        wrapped = backend_error(f"{self._label()} raised {error_text(error)}", error)
        wrapped.hint = self._loop_for(error)
        if isinstance(error, AttributeError) and str(error).startswith("'dict' object"):
            wrapped.hint = 'A request is a dict: request["result"] = ...'
        elif isinstance(error, AttributeError) and error.obj is self:
            where = "init(self, options, context) is called once"
            wrapped.hint = f"{where}: set self.{error.name} there."
        return self._locate(wrapped)

    def _loop_for(self, error: BaseException) -> str | None:
        """Say which loop to write, where `forward` may have taken its list for one request."""
        forward = getattr(type(self), "forward", self.forward)  # of a plain object its own
        code = getattr(unwrap(forward), "__code__", None)
        frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
        if code is None or frames[-1:] != [code] or not error_text(error).startswith(_OF_A_LIST):
            return None
        name = (*code.co_varnames[1 : code.co_argcount], "batch")[0]
        return (
            f"forward gets a list of requests, {name!r}. "
            "If that was taken for one request, write a loop:\n"
            f"      for request in {name}:\n"
            '          request["result"] = ...  # made of request["data"]'
        )

    def _locate(self, error: Located) -> Located:
        here = {"node": self._node, "backend": self._label(), "instance": self._index}
        for place, value in here.items():
            if error.node in (None, self._node) and getattr(error, place) is None:
                setattr(error, place, value)
        return error

    def _last_label(self, request: Request) -> str:
        """Name the backend that should have written ``result``: in a sequence the last element."""
        return self._child_label or self._label()

    def _label(self) -> str:
        return self._name or type(self).__name__


def weight_of(batch: Sequence[Request]) -> int:
    """Return the sum of ``request_size`` in a batch. Without it, or with 0, an item weighs 1."""
    total = 0
    for request in batch:
        total += request.get("request_size", 1) or 1
    return total


def has_no_rows(request: Request, size: int) -> bool:
    """Tell whether a request says that it has no rows, and an array of it has none."""
    shapes = (getattr(value, "shape", ()) for value in request.values())
    return size == 0 and any(isinstance(shape, tuple) and 0 in shape for shape in shapes)


def is_one(batch: Sequence[Request]) -> bool:
    """Tell whether a batch has one item only, perhaps with copies that fill it up."""
    return len(batch) == 1 or sum(not isinstance(request, Filler) for request in batch) == 1


def batch_alone(backend: Checked, request: Request) -> list[Request] | None:
    """Give the batch of one item alone, filled up with copies where the node says ``pad``.

    For batches of several items `headrace._run.batches.fitting.indices_to_repeat` says which copies
    do so.

    Returns:
        None where no such batch fits the range of the backend, and for a filler.
    """
    if isinstance(request, Filler):
        return None
    if backend.min == 1:
        return [request]
    weight = request.get("request_size", 1) or 1
    batch = [request, *(filler(request) for _ in range(-(-(backend.min - weight) // weight)))]
    fits = backend._pad and (backend.max is None or len(batch) * weight <= backend.max)
    return batch if len(batch) == 1 or fits else None


def range_problem(least: Any, most: Any) -> str | None:
    """Tell what is wrong with a batch range; None when nothing is."""
    if is_count(least) and (most is None or (is_count(most) and most >= least)):
        return None
    return f"min={least!r}, max={most!r} is no batch range"


def largest_size(sizes: Sequence[int], most: int | None) -> int | None:
    """Return the largest of ``sizes``, which ascend, within ``most``; ``most`` for none."""
    return next((size for size in reversed(sizes) if most is None or size <= most), most)


def is_count(value: Any) -> bool:
    """Tell whether a value is an int of at least 1, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def as_int(value: Any) -> int | None:
    """Return the int for which a value stands, also one of numpy; None for all others and bool."""
    try:
        return None if isinstance(value, bool) else index(value)
    except Exception:  # the value's __index__ may raise anything
        return None


def _no_weight(request: Request) -> RequestError:
    """Make the error of one item in a batch whose weights cannot be summed up."""
    weight = request.get("request_size", 1)
    if is_count(weight):
        return BackendError("another item of the batch has a 'request_size' that is no int")
    return weight_error(weight)


def weight_error(weight: object, limit: str = "of at least 1", **where: Any) -> InputError:
    """Make the error of a request whose weight is no int within a limit."""
    message, expected = "the weight of the request is wrong", f"an int {limit}"
    return InputError(message, key="request_size", expected=expected, got=repr_of(weight), **where)
