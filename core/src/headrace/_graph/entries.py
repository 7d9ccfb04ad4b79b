"""A request at a node, as its scheduler takes it: one entry, or with ``each`` one per element."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace._scheduling.entry import DATA_ALONE, NOBODY, Entry
from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    InputError,
    NoResultError,
    OverloadedError,
    code_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._graph.route import Each
    from headrace._graph.traversal import Failure
    from headrace._scheduling.entry import Owner, Quota
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request


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
    deadline: float | None = None,
    priority: int = 0,
    waits: Quota | None = None,
) -> Entry:
    """Make the entry of a request at a node; one that is wrong is done, with its error."""
    if node.timeout_ms is not None:
        own = time.monotonic() + node.timeout_ms / 1000
        deadline = own if deadline is None else min(own, deadline)
    entry = Entry(request, owner, 1, deadline, priority, waits)
    scheduler = node.scheduler
    if "request_size" in request or "data" not in request or scheduler.needs is not DATA_ALONE:
        try:
            entry.weight = scheduler.checked(request)
        except InputError as error:
            entry.refuse(error)
    return entry


def count(failure: Failure, request: Request) -> None:
    """Count the failure of a request between two nodes at the one that answers for it."""
    scheduler = failure.step.scheduler
    if failure.has_run:
        scheduler.count_late(failure.error)
    else:
        scheduler.count_refused(request, failure.error)


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
        entries: One per element, on a shallow copy, or that of the request itself. One that cannot run is
            done, and counted; there are none where the outermost list is empty, or is no list.
        may_fail_alone: Whether the error of an element may be less than that of the request.
    """

    def __init__(self, node: Called, request: Request, owner: Owner = NOBODY, **terms: Any) -> None:
        """Make the entries.

        Args:
            node: The node.
            request: The request of the node.
            owner: That of all entries.
            terms: See `entry_at`. The ``deadline`` is that of the request, not the limit of the node.
        """
        self.entries: list[Entry] = []
        self.may_fail_alone = any(each.keep_errors for each in node.levels)
        self._scheduler = node.scheduler
        self._deadline: float | None = terms.get("deadline")
        self._top: _Group | None = None
        self._no_list: InputError | None = None
        if not node.levels:
            self._add(entry_at(node, request, owner, **terms))
            return
        try:
            self._top = self._group(
                node.levels, request, lambda one: entry_at(node, one, owner, **terms)
            )
        except InputError as error:
            node.scheduler.count_refused(request, error)
            self._no_list = error

    def _group(
        self, levels: Sequence[Each], request: Request, make: Callable[[Request], Entry]
    ) -> _Group:
        each, *below = levels
        copies = _copies(each, request)
        parts: list[int | _Group] = []
        for copy in copies:
            if not below:
                parts.append(self._add(make(copy)))
                continue
            try:
                parts.append(self._group(below, copy, make))
            except InputError as error:
                entry = make(copy)
                if entry.error is None:
                    entry.refuse(error)
                    self._scheduler.count_refused(copy, error)
                parts.append(self._add(entry))
        return _Group(each, request, copies, parts)

    def _add(self, entry: Entry) -> int:
        self.entries.append(entry)
        return len(self.entries) - 1

    def gather(self) -> BaseException | None:
        """Put the results of all elements into the request; give the error that fails it, if any.

        With ``each_errors = "none"`` an element may fail alone. What ends the request as a whole, its
        own deadline, a close or a full queue, is not the failure of an element. The entries, which have
        run, forget their errors.
        """
        if self._top is None:
            error, self._no_list = self._no_list, None
            return error or self.entries[0].take_error()
        errors = [entry.take_error() for entry in self.entries]
        failed = [e for e in errors if e is not None and code_of(e) != "cancelled"]
        if failed and not self.may_fail_alone:
            return failed[0]  # the others may have been cancelled for it
        late = self._deadline is not None and time.monotonic() >= self._deadline
        failure = _gather(self._top, errors, late=late)
        if failure is not None and not any(failure is one for one in errors):
            self._scheduler.count_late(failure)
        return failure


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
