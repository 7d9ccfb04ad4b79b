"""A node, called from inside an expression or from the front of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._backend import Backend
from headrace._build.standing import Standing
from headrace._graph.entries import Elements, entry_at
from headrace._scheduling.queue import HANDED
from headrace._scheduling.threads import entries_running_here
from headrace.errors import ClosedError, ContractError, InputError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._checked import Outcomes
    from headrace._graph.route import Each
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request


class _Item(NamedTuple):
    """One item of a batch, as requests of the node.

    Attributes:
        entries: One entry, or with ``each`` one per element; none where there is no list.
        elements: What the entries are the elements of, None without ``each``.
        deadline: That of the request which the item is, on the clock of ``time.monotonic()``.
        error: Why there is nothing to run.
    """

    entries: list[Entry]
    elements: Elements | None = None
    deadline: float | None = None
    error: InputError | None = None


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
            listed = [one for one in items if one.elements and not one.elements.may_fail_alone]
            groups = [item.entries for item in listed]
            self.scheduler.call_many(entries, internal=True, groups=groups)
        outcomes = [self._outcome(item) for item in items]
        if not any(outcomes):
            return None
        try:
            return [None if e is None else _shown(e) for e in outcomes]
        finally:
            del outcomes  # see `Entry.take_error`

    def _item(self, request: Request, parent: Entry | None, *, enters: bool) -> _Item:
        deadline, priority = (None, 0) if parent is None else (parent.deadline, parent.priority)
        waits = self.scheduler.waits(entered=False) if enters else HANDED
        request.pop("result", None)
        if not self.levels:
            entry = entry_at(self, request, deadline=deadline, priority=priority, waits=waits)
            return _Item([entry])
        try:
            elements = Elements(self, request)
        except InputError as error:
            return _Item([], error=error)
        entries = elements.entries(deadline=deadline, priority=priority, waits=waits)
        return _Item(entries, elements, deadline)

    def _outcome(self, item: _Item) -> BaseException | None:
        if item.error is not None:
            return item.error
        if item.elements is not None:
            return item.elements.gather(item.entries, item.deadline)
        (entry,) = item.entries
        if entry.error is None and "result" not in entry.request:  # allowed where an `or` follows
            name = self.scheduler.name
            error = NoResultError(f"node {name!r} gave no 'result'", node=name)
            self.scheduler.count_late(error)
            return error
        return entry.take_error()


class FrontCall(Standing):
    """A node, called from the front of the pipeline: requests enter there, so its bound holds."""

    child: NodeCall

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node."""
        return self.child.run(batch, enters=True)


def _shown(error: BaseException) -> Exception:
    """Give the outcome of an item whose request failed at its node."""
    if isinstance(error, ClosedError):  # the pipeline of both
        return error._passing()
    if isinstance(error, Exception):
        return error
    shown = ContractError(f"{type(error).__name__} ended a request")
    shown.__cause__ = error
    return shown
