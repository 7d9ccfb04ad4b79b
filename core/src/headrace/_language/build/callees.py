"""What an expression calls beside plain backends: nodes, shared instances, children with part of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._language.build.wrappers import Wrapper
from headrace._language.contract.backend import Backend
from headrace._run.checked import PENDING, Answers, Filler, Outcomes, filler, weight_of
from headrace._run.tracebacks import none_if_all_ok, with_cause
from headrace._run.batch import batches_run, entry_here, indices_to_repeat
from headrace._run.box import ask, post
from headrace._run.entry import NEW, Entry
from headrace._run.keeping import Keeping
from headrace._run.node_request import NodeRequest, Sent
from headrace._run.room import Ticket
from headrace._run.runners import wait_for
from headrace.errors import BatchRangeError, ClosedError, ContractError, NoResultError
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._language.build.wrappers import Forward
    from headrace._run.checked import Liveness
    from headrace._run.node import Node
    from headrace._run.blueprint import Links

    Then = Callable[[Request, BaseException | None], object]


class NodeCall(Backend):
    """A call of a node from inside an expression: each item becomes a request of its own at that node.

    Where the node has ``each``, every element of the item's list becomes a request, and the results are
    gathered.
    """

    def __init__(self, scheduler: Node, each: Links | None = None) -> None:
        self.scheduler, self.each = scheduler, each
        self._name = f"node.{scheduler.name}"
        self._state = "ready"

    def describe(self) -> dict[str, Any]:
        """Say which node is called."""
        return {"calls_node": self.scheduler.name}

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node and wait for them. Deadline and priority are kept."""
        found = entry_here()
        items = []
        for request in batch:
            request.pop("result", None)
            items.append(NodeRequest(self, request, found(request), Ticket(None)))
        entries = [entry for item in items for entry in item.entries]
        if entries:
            wait_for(self.scheduler, [one for one in entries if one.state == NEW], internal=True)
        outcomes = [item.answer() for item in items]
        if none_if_all_ok(outcomes) is None:
            return None
        try:
            return [None if e is None else outcome_of(e) for e in outcomes]
        finally:
            del outcomes  # see `Entry.take_error`


class Alias(Backend):
    """What stands for a node whose whole backend is ``Forward[node.x]``: x answers each item, and no thread waits."""

    keeps = True
    _is_last = True

    def __init__(self, node: NodeCall, liveness: Liveness) -> None:
        self._called, self._liveness = node, liveness
        liveness.keeps = True
        self._name, self.describe = node._name, node.describe  # type: ignore[method-assign]
        self._state = "ready"
        self._keeping = Keeping(self)

    @property
    def needs(self) -> tuple[str, ...]:
        """The keys without which no request may enter; ``each`` makes its target itself."""
        each = self._called.each
        return tuple(
            k for k in self._called.scheduler.needs if each is None or k != each._each_keys[1]
        )

    def forward(self, batch: list[Request]) -> Outcomes:
        """Send the items on."""
        for request in batch:
            self._keeping.send(request, self._called)
        return [PENDING for _ in batch]


def begin_calls(
    keeping: Keeping,
    request: Request,
    node: str,
    batch: Sequence[Request],
    then: Then,
    parts: bool | str = True,
) -> Callable[[], object]:
    """Let a node run new requests on behalf of one that runs here: ``context.request.call``; see `headrace.InitContext`."""
    called: NodeCall = keeping.call_node(node, "context.request.call")
    if type(parts) not in (bool, str):
        raise TypeError(f"context.request.call: parts is True, False or a text, got {parts!r}")
    outer, box = entry_here()(request), called.scheduler.box

    def end(made: Request, error: BaseException | None) -> None:
        box.later(then, made, None if error is None else outcome_of(error))

    sent = [Sent(called, made, outer, partial(end, made), parts) for made in batch]

    def start() -> None:
        for one in sent:
            one.start()

    def give_up() -> None:
        for one in sent:
            one.give_up()

    post(box, start)
    return partial(ask, box, give_up)


def outcome_of(error: BaseException) -> Exception:
    """Make an item's outcome of the error that a node, a queue or the graph has raised for it."""
    if isinstance(error, ClosedError):  # it tells of this pipeline, so it is passed on unwrapped
        return error._passing()
    if isinstance(error, Exception):
        return error
    return with_cause(ContractError(f"{type(error).__name__} ended a request"), error)


# Nodes and instances that several expressions call.


class SharedUse(Wrapper):
    """One use of a node or instance that other expressions use as well.

    Each use is an exit of its own (see `BatchEnd`). Its ``forward`` is that of the child itself, so a call costs
    nothing more.
    """

    keeps = _is_last = True  # as `Around`

    def __init__(self, child: Backend) -> None:
        super().__init__(child)
        self.forward = child.forward  # type: ignore[method-assign]
        self.describe = child.describe  # type: ignore[method-assign]


# What containers use to call a child with a part of a batch; public in `headrace.words`.


def call_apart(child: Backend, batch: list[Request], *, pad: bool) -> Outcomes:
    """Call a child in a thread of a container's own, on items that the container has made."""
    batches_run[get_ident()] = ([Entry(item) for item in batch],)
    try:
        return call_child(child, batch, pad=pad)
    finally:
        del batches_run[get_ident()]


def run_child(
    child: Backend,
    batch: list[Request],
    places: Sequence[int],
    outcomes: Answers,
    *,
    pad: bool,
    apart: bool = False,
) -> None:
    """Run a child on the items at some places of a batch, and write their outcomes into ``outcomes``.

    A child with a max of 1 is called item by item. A part of the batch below the child's min is filled up with
    ``pad``, otherwise each of its items fails with a BatchRangeError. No item's error is raised.

    Args:
        child: One of ``context.children``.
        batch: The requests.
        places: The places of the items in ``batch``, without failed ones. No places are no call.
        outcomes: One exception or None per item of ``batch``. Only those at ``places`` are written.
        pad: Whether copies may fill the part up, as ``context.batch.pad`` says.
        apart: Whether this is a thread of the container's own, and the items are its own dicts, without a caller.
            Parts of an answer are dropped.
    """
    call = call_apart if apart else call_child
    some = call(child, [batch[i] for i in places], pad=pad) if places else None
    if some is not None:
        for i, outcome in zip(places, some, strict=True):
            outcomes[i] = outcome


def select(
    batch: list[Request],
    places: Iterable[int],
    takes: Callable[[Request], Any],
    outcomes: Answers,
    *,
    fillers: bool = True,
) -> list[int]:
    """Return the places of the items accepted by ``takes``, without failed ones.

    An exception of ``takes`` is the outcome of its item alone.

    Args:
        batch: The requests.
        places: The places to look at, in this order.
        takes: Called with each request there, without failed ones.
        outcomes: One exception or None per item of ``batch``.
        fillers: False leaves out the copies of ``pad``. Use it in a container that does more than compute a ``result``, such
            as send the item somewhere.
    """
    taken: list[int] = []
    for i in places:
        if not fillers and isinstance(batch[i], Filler):
            continue
        try:
            if outcomes[i] is None and takes(batch[i]):
                taken.append(i)
        except Exception as odd:  # noqa: BLE001 - the dict is the user's, and may raise anything
            outcomes[i] = outcome_of(odd)
    return taken


def no_result(silent: str, what_for: str = "") -> NoResultError:
    """Make the error of an item into which the backend ``silent`` wrote no ``result``."""
    return NoResultError(f"{silent} wrote no 'result'{what_for}", backend=silent)


def call_child(child: Backend, batch: list[Request], *, pad: bool) -> Outcomes:
    """Call a child with a part of a batch, which need not fit its range; see `run_child`."""
    if child.max == 1:
        if len(batch) == 1:
            return child(batch)
        found = [child([request]) for request in batch]
        return none_if_all_ok([None if one is None else one[0] for one in found])
    if child.min == 1 or weight_of(batch) >= child.min:
        return child(batch)
    filled = fill_up(batch, child) if pad else None
    if filled is None:
        return [too_few(batch, child, pad=pad) for _ in batch]
    outcomes = child(filled)
    return None if outcomes is None else outcomes[: len(batch)]


def fill_up(batch: Sequence[Request], child: Backend) -> list[Request] | None:
    """Return a batch with copies of its items at the end, within the range of a child.

    For a container that calls a child itself. `run_child` does so on its own. The copies have no ``result``. Drop
    their outputs.

    Args:
        batch: The items, of less weight than the child's min.
        child: The child.

    Returns:
        None where no copies bring the batch into the range.
    """
    found = indices_to_repeat([one.get("request_size", 1) or 1 for one in batch], child)
    return None if found is None else [*batch, *(filler(batch[place]) for place in found)]


def too_few(batch: Sequence[Request], child: Backend, *, pad: bool) -> BatchRangeError:
    """Make the error of an item of a batch below the min of ``child``; with ``pad`` copies do not help either."""
    name, weight, least, most = child._label(), weight_of(batch), child.min, child.max
    why = "the other items of the batch failed or went another way"
    also = f"; copies of what is left give no weight of {least} to {most}" if pad else ""
    what = f"only a weight of {weight} is left for {name}, whose min is {least}: {why}{also}"
    hint = "Widen its range, or send smaller weights." if pad else "Set pad = true to fill it up."
    return child._locate(BatchRangeError(what, weight=weight, min=least, max=most, hint=hint))


def child_call(child: Backend, *, pad: bool) -> Forward:
    """Return what calls ``child``: the child itself where any part of a batch fits its range."""
    fits = child.max != 1 and child.min == 1
    return child.__call__ if fits else partial(call_child, child, pad=pad)
