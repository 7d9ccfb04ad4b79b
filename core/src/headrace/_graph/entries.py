"""A request at a node, as its scheduler takes it: one entry, or with ``each`` one per element."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace._scheduling.entry import NOBODY, Entry
from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    InputError,
    NoResultError,
    OverloadedError,
    code_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._graph.route import Each
    from headrace._graph.traversal import Failure
    from headrace._scheduling.entry import Owner, Quota
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request


_DATA = ("data",)
"""What a request must have where the backends of a node say nothing else."""


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
    if "request_size" in request or "data" not in request or scheduler.needs != _DATA:
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
        requests: One shallow copy per element, or the request itself.
        may_fail_alone: Whether the error of an element may be less than that of the request.
    """

    def __init__(self, node: Called, request: Request) -> None:
        """Make the requests.

        Args:
            node: The node.
            request: The request of the node.

        Raises:
            InputError: The key of the outermost list is missing, or holds none; it is counted.
        """
        levels = node.levels
        self.requests: list[Request] = [] if levels else [request]
        self.may_fail_alone = any(each.keep_errors for each in levels)
        self._node = node
        # By its place among the requests: why an element that should hold a list is refused.
        self._refused: dict[int, InputError] = {}
        try:
            self._top = self._group(levels, request) if levels else None
        except InputError as error:
            self._node.scheduler.count_refused(request, error)
            raise

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
                    self._refused[len(self.requests)] = error
            parts.append(len(self.requests))
            self.requests.append(copy)
        return _Group(each, request, copies, parts)

    def entries(
        self,
        owner: Owner = NOBODY,
        deadline: float | None = None,
        priority: int = 0,
        waits: Quota | None = None,
    ) -> list[Entry]:
        """Make an entry per request, see `entry_at`; one that cannot run is done, and counted."""
        made = []
        for place, request in enumerate(self.requests):
            entry = entry_at(self._node, request, owner, deadline, priority, waits)
            error = self._refused.get(place)
            if error is not None and entry.error is None:
                entry.refuse(error)
                self._node.scheduler.count_refused(request, error)
            made.append(entry)
        return made

    def gather(
        self, entries: Sequence[Entry], deadline: float | None = None
    ) -> BaseException | None:
        """Put the results of all elements into the request; give the error that fails it, if any.

        With ``each_errors = "none"`` an element may fail alone. What ends the request as a whole, its
        own deadline, a close or a full queue, is not the failure of an element.

        Args:
            entries: What has run; they forget their errors.
            deadline: That of the request, on the clock of ``time.monotonic()``; not the limit of the
                node.
        """
        errors = [entry.take_error() for entry in entries]
        failed = [e for e in errors if e is not None and code_of(e) != "cancelled"]
        if failed and not self.may_fail_alone:
            return failed[0]  # the others may have been cancelled for it
        late = deadline is not None and time.monotonic() >= deadline
        error = _gather(self._top, errors, late=late) if self._top is not None else None
        if error is not None and not any(error is one for one in errors):
            self._node.scheduler.count_late(error)
        return error


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
