"""A node, called from inside an expression or from the front of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._build.standing import Standing
from headrace._graph.entries import Elements
from headrace._portable import caused
from headrace._scheduling.entry import HANDED
from headrace._scheduling.threads import entries_running_here
from headrace.errors import ClosedError, ContractError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._checked import Outcomes
    from headrace._graph.route import Each
    from headrace._scheduling.entry import Entry
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

    @property
    def is_plain(self) -> bool:
        """Whether calling it is nothing else than calling its scheduler."""
        return self.timeout_ms is None and not self.levels

    def describe(self) -> dict[str, Any]:
        """Say which node it calls: any number of threads may do so at a time."""
        return {"calls_node": self.scheduler.name}

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node and wait for them; deadline and priority are kept."""
        return self.run(batch, enters=False)

    def run(self, batch: list[Request], *, enters: bool) -> Outcomes:
        """Do what `forward` does; the bound of the node holds if the items enter there."""
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


class FrontCall(Standing):
    """A node, called from the front of the pipeline: requests enter there, so its bound holds."""

    child: NodeCall

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node."""
        return self.child.run(batch, enters=True)


def passed_on(error: BaseException) -> Exception:
    """Give the outcome of an item whose request failed where it was handed over to."""
    if isinstance(error, ClosedError):  # the pipeline of both
        return error._passing()
    if isinstance(error, Exception):
        return error
    return caused(ContractError(f"{type(error).__name__} ended a request"), error)
