"""What an expression calls beside plain backends: a node, an instance that others call, a child with a part of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._build.standing import Around, Ended, Standing
from headrace._checked import Answers, Outcomes, fillers, weight_of
from headrace._graph.entries import Elements
from headrace._portable import caused
from headrace._scheduling.entry import HANDED, Entry
from headrace._scheduling.threads import entries_running_here
from headrace.errors import BatchRangeError, ClosedError, ContractError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace._build.standing import Forward
    from headrace._graph.route import Each
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request


class NodeCall(Backend):
    """A node, called from inside an expression: each item is a request of its own there.

    With ``each`` it is one request per element, whose results are gathered.
    """

    def __init__(
        self, scheduler: Scheduler, levels: Sequence[Each] = (), timeout_ms: float | None = None
    ) -> None:
        """Make a call.

        Args:
            scheduler: The node.
            levels: The ``each`` of the node, and of the nodes behind a second door.
            timeout_ms: The limit of a second door, which its node does not know; None for none.
        """
        self.scheduler = scheduler
        self.levels = levels
        self.timeout_ms = timeout_ms
        self._name = f"node.{scheduler.name}"
        self._state = "ready"

    def describe(self) -> dict[str, Any]:
        """Say which node it calls: any number of threads may do so at a time."""
        return {"calls_node": self.scheduler.name}

    def forward(self, batch: list[Request], *, enters: bool = False) -> Outcomes:
        """Hand the items to the node and wait for them; deadline and priority are kept.

        Args:
            batch: The items.
            enters: Whether they enter the pipeline there, so that the bound of the node holds.
        """
        outer = {id(entry.request): entry for entry in entries_running_here()}
        items = [self._item(one, outer.get(id(one)), enters=enters) for one in batch]
        entries = [entry for item in items for entry in item.entries]
        if entries:
            groups = [one.entries for one in items if self.levels and not one.may_fail_alone]
            self.scheduler.call_many(entries, internal=True, groups=groups)
        outcomes = [self._outcome(*one) for one in zip(batch, items, strict=True)]
        if not any(outcomes):
            return None
        try:
            return [None if e is None else passed_on(e) for e in outcomes]
        finally:
            del outcomes  # see `Entry.take_error`

    def _item(self, request: Request, parent: Entry | None, *, enters: bool) -> Elements:
        deadline, priority = (None, 0) if parent is None else (parent.deadline, parent.priority)
        waits = self.scheduler.waits(entered=False) if enters else HANDED
        request.pop("result", None)
        return Elements(self, request, deadline=deadline, priority=priority, waits=waits)

    def _outcome(self, request: Request, item: Elements) -> BaseException | None:
        error = item.gather()
        try:
            if error is not None or "result" in request:
                return error
        finally:
            del error  # see `Entry.take_error`
        name = self.scheduler.name  # it may end so where an `or` follows
        missing = NoResultError(f"node {name!r} gave no 'result'", node=name)
        self.scheduler.count_late(missing)
        return missing


def passed_on(error: BaseException) -> Exception:
    """Give the outcome of an item whose request failed where it was handed over to."""
    if isinstance(error, ClosedError):  # the pipeline of both
        return error._passing()
    if isinstance(error, Exception):
        return error
    return caused(ContractError(f"{type(error).__name__} ended a request"), error)


# Instances that others call, or that are given what they depend on.


class Passage(Standing):
    """One use of a node or instance that others use, too.

    In an instance it is an exit of its own, in the front of the pipeline requests enter the node there.
    It calls the ``forward`` of what it stands for, so that it costs nothing.
    """

    def __init__(self, child: Backend, forward: Forward | None = None) -> None:
        super().__init__(child)
        self.forward = forward or child.forward  # type: ignore[method-assign]
        self.describe = child.describe  # type: ignore[method-assign]


class Bound(Standing):
    """An instance with what it depends on, which is given to it at each call.

    Attributes:
        leaves: Whether it hands its batch to another thread, or to an instance that others call.
    """

    def __init__(self, instance: Backend, dependency: Backend) -> None:
        around: list[Around] = []
        while isinstance(instance, Around):
            around.append(instance)
            instance = instance.child
        super().__init__(instance)
        self._given = dependency
        self._forward: Forward = instance.forward_with_dep  # type: ignore[attr-defined]
        for outer in reversed(around):
            self._forward = partial(outer.run, self._forward)
        self.leaves = any(not isinstance(outer, Ended) for outer in around)

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance with its dependency."""
        return self._forward(batch, self._given)


class NotCallable(Backend):
    """What is left of a word that only builds others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Refuse."""
        raise ContractError(f"{self._name} cannot be called", hint="It only builds others.")


# Children of a container, called with a part of a batch.


def run_some(call: Forward, batch: list[Request], places: Sequence[int], outcomes: Answers) -> None:
    """Call something with some items of a batch; their outcomes go among those of the batch."""
    some = call([batch[i] for i in places])
    if some is not None:
        for i, outcome in zip(places, some, strict=True):
            outcomes[i] = outcome


def select(
    batch: list[Request], places: Iterable[int], takes: Callable[[Request], Any], outcomes: Answers
) -> list[int]:
    """Give where ``takes`` says yes, of the items that have not failed; one whose dict raises fails alone."""
    taken: list[int] = []
    for i in places:
        try:
            if outcomes[i] is None and takes(batch[i]):
                taken.append(i)
        except Exception as odd:  # noqa: BLE001 - a dict of somebody else
            outcomes[i] = odd
    return taken


def no_result(silent: str, what_for: str = "") -> NoResultError:
    """Make the error of an item in which something wrote no ``result``."""
    return NoResultError(f"{silent} wrote no 'result'{what_for}", backend=silent)


@dataclass(frozen=True)
class ChildCall:
    """Calls one child: item by item where its max is 1, filled up or refused below its min."""

    child: Backend
    pad: bool

    def __call__(self, batch: list[Request]) -> Outcomes:
        """Give one outcome per item, None when all went well."""
        child = self.child
        if child.max == 1:
            if len(batch) == 1:
                return child(batch)
            outcomes = [child([request]) for request in batch]
            if not any(outcomes):
                return None
            return [None if outcome is None else outcome[0] for outcome in outcomes]
        weight = weight_of(batch)
        if weight >= child.min:
            return child(batch)
        if not self.pad:
            what = (
                f"only a weight of {weight} is left for {child._label()}, whose min is {child.min}: "
                "the other items of the batch failed or went another way"
            )
            hint, least, most = "Set pad = true to fill such batches up.", child.min, child.max
            return [
                child._located(BatchRangeError(what, weight=weight, min=least, max=most, hint=hint))
                for _ in batch
            ]
        filled = child([*batch, *fillers(batch[-1], child.min - weight)])
        return None if filled is None else filled[: len(batch)]


def child_call(child: Backend, *, pad: bool) -> Backend | ChildCall:
    """Give what calls ``child``: itself where its range needs no care."""
    return ChildCall(child, pad=pad) if child.max == 1 or child.min > 1 else child
