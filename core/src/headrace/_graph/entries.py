"""A request at a node, as its scheduler takes it: one entry, or with ``each`` one per element."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace._scheduling.entry import NOBODY, Entry
from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    HeadraceError,
    InputError,
    NoResultError,
    OverloadedError,
    code_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace._graph.links import Each
    from headrace._graph.traversal import Failure
    from headrace._scheduling.entry import Owner
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Elements", "count", "elements_of", "entry_at", "needed_with_each"]


class Called(Protocol):
    """A node, as its caller has it.

    Attributes:
        scheduler: Its queue and instances.
        timeout_ms: The limit of a second door, which its node does not know; None for none.
    """

    scheduler: Scheduler
    timeout_ms: float | None

    @property
    def levels(self) -> Sequence[Each]:
        """Its own ``each``, and those of the nodes behind a second door."""


def entry_at(
    node: Called,
    request: Request,
    owner: Owner = NOBODY,
    *,
    deadline: float | None = None,
    priority: int = 0,
) -> Entry:
    """Make the entry of a request at a node; one that is wrong is done, with its error."""
    if node.timeout_ms is not None:
        own = time.monotonic() + node.timeout_ms / 1000
        deadline = own if deadline is None else min(own, deadline)
    entry = Entry(request, owner, deadline=deadline, priority=priority)
    try:
        entry.weight = node.scheduler.checked(request)
    except InputError as error:
        entry.refuse(error)
    return entry


def elements_of(node: Called, request: Request) -> Elements:
    """Give what a node runs for one request.

    Raises:
        InputError: The request has no list there; it is counted.
    """
    try:
        return Elements(node.levels, request)
    except HeadraceError as error:
        node.scheduler.count_refused(request, error)
        raise


def count(failure: Failure, request: Request) -> None:
    """Count the failure of a request between two nodes at the one that answers for it."""
    scheduler = failure.step.scheduler
    if failure.has_run:
        scheduler.count_late(failure.error)
    else:
        scheduler.count_refused(request, failure.error)


def needed_with_each(needs: Iterable[str], levels: Sequence[Each]) -> tuple[str, ...]:
    """Give the keys of a request whose elements need ``needs``; ``each`` looks for its list itself."""
    made = {each.target for each in levels}
    return tuple(key for key in needs if key not in made)


class _Group(NamedTuple):
    """The elements of one list.

    Attributes:
        each: What names the list.
        request: What is to have the results.
        copies: Per element its dict.
        parts: Per element its place among the requests that run, or the group of its own elements.
    """

    each: Each
    request: Request
    copies: list[Request]
    parts: list[int | _Group]


class Elements:
    """The requests that run for one request of a node, and how they end as one.

    With ``each`` these are the elements of a list; else it is that request itself. A second door to a
    node with ``each`` may have an ``each`` of its own: lists in lists.

    Attributes:
        requests: One shallow copy per element, or the request itself.
        refused: Per place among them the error of one that cannot run: it is no list of elements.
        may_fail_alone: Whether the error of an element may be less than that of the request.
    """

    def __init__(self, levels: Sequence[Each], request: Request) -> None:
        """Make the requests.

        Args:
            levels: The ``each`` of the node, the outermost first; empty for none.
            request: The request of the node.

        Raises:
            InputError: The key of the outermost is missing, or holds no list.
        """
        self.requests: list[Request] = [] if levels else [request]
        self.refused: dict[int, InputError] = {}
        self.may_fail_alone = any(each.keep_errors for each in levels)
        self._top = self._group(levels, request) if levels else None

    def _group(self, levels: Sequence[Each], request: Request) -> _Group:
        each, *below = levels
        copies = _copies(each, request)
        parts: list[int | _Group] = []
        for copy in copies:
            if below:
                try:
                    parts.append(self._group(below, copy))
                    continue
                except InputError as error:
                    self.refused[len(self.requests)] = error
            parts.append(len(self.requests))
            self.requests.append(copy)
        return _Group(each, request, copies, parts)

    def entries(self, make: Callable[[Request], Entry], scheduler: Scheduler) -> list[Entry]:
        """Make an entry per request; one that cannot run is done, with its error, and counted."""
        made = []
        for place, request in enumerate(self.requests):
            entry = make(request)
            error = self.refused.get(place)
            if error is not None and entry.error is None:
                entry.refuse(error)
                scheduler.count_refused(request, error)
            made.append(entry)
        return made

    def gather(
        self, errors: Sequence[BaseException | None], deadline: float | None = None
    ) -> BaseException | None:
        """Put the results of all elements into the request; give the error that fails it, if any.

        With ``each_errors = "none"`` an element may fail alone. What ends the request as a whole, its
        own deadline, a close or a full queue, is not the failure of an element.

        Args:
            errors: Per element that ran its error or None.
            deadline: That of the request, on the clock of ``time.monotonic()``; not the limit of the
                node.
        """
        failed = [e for e in errors if e is not None and code_of(e) != "cancelled"]
        if failed and not self.may_fail_alone:
            return failed[0]  # the others may have been cancelled for it
        late = deadline is not None and time.monotonic() >= deadline
        return _gather(self._top, errors, late=late) if self._top is not None else None


def _copies(each: Each, request: Request) -> list[Request]:
    values: Any = request.get(each.source)
    if not isinstance(values, (list, tuple)):
        raise InputError(
            f"node {each.node!r} runs once per element of {each.source!r}",
            key=each.source,
            expected="a list",
            got=type(values).__name__ if each.source in request else "nothing",
            node=each.node,
        )
    copies = []
    for value in values:
        copy = dict(request)
        copy.pop("result", None)
        copy[each.target] = value
        copies.append(copy)
    return copies


def _gather(
    group: _Group, errors: Sequence[BaseException | None], *, late: bool
) -> BaseException | None:
    results = []
    for copy, part in zip(group.copies, group.parts, strict=True):
        error = errors[part] if isinstance(part, int) else _gather(part, errors, late=late)
        if error is None and "result" not in copy:
            node = group.each.node
            error = NoResultError(f"an element gave no 'result' in node {node!r}", node=node)
        if error is not None and (not group.each.keep_errors or _ends_all(error, late=late)):
            return error
        results.append(None if error is not None else copy["result"])
    group.request["result"] = results
    return None


def _ends_all(error: BaseException, *, late: bool) -> bool:
    """Tell whether an error is that of the whole request, of which an element only tells."""
    if isinstance(error, DeadlineExceededError):
        return late
    return isinstance(error, (ClosedError, OverloadedError)) or not isinstance(error, Exception)
