"""The entries of a request at a node: one, or with ``each`` one per element."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace._checked import as_int
from headrace._scheduling.entry import NOBODY, Entry
from headrace._scheduling.parts import of_element
from headrace.errors import (
    ClosedError,
    DeadlineExceededError,
    InputError,
    NoResultError,
    OverloadedError,
    code_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace._graph.route import Each
    from headrace._graph.traversal import Failure
    from headrace._scheduling.entry import Owner, Quota
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request


FREES_CALLER = (DeadlineExceededError, ClosedError, OverloadedError)
"""The errors that end a request at one node while a backend may run on it at another one."""


class Called(Protocol):
    """What a caller of a node has to know of it.

    Attributes:
        scheduler: Its queue and instances.
        timeout_ms: The ``timeout_ms`` of a second door, which the node behind it does not know; or None.
    """

    scheduler: Scheduler
    timeout_ms: float | None

    @property
    def levels(self) -> Sequence[Each]:
        """The ``each`` of the node; for a second door also those of the nodes behind it."""


def entry_at(
    node: Called,
    request: Request,
    owner: Owner = NOBODY,
    deadline: float | None = None,
    priority: int = 0,
    quota: Quota | None = None,
) -> Entry:
    """Make the entry of a request at a node; the entry of a wrong request is done, with its error."""
    timeout_ms = node.timeout_ms  # a reload may change it at any moment
    if timeout_ms is not None:
        own = time.monotonic() + timeout_ms / 1000
        deadline = own if deadline is None else min(own, deadline)
    entry = Entry(request, owner, 1, deadline, priority, quota)
    try:
        entry.weight = node.scheduler.checked_again(request)
    except InputError as error:
        entry.refuse(error.with_traceback(None))  # see `Entrance._refuse`
    return entry


def count(failure: Failure, request: Request) -> None:
    """Count the failure of a request between two nodes in the statistics of the node that answers for it."""
    scheduler = failure.step.scheduler
    if failure.has_run:
        scheduler.count_late(failure.error)
    else:
        scheduler.count_refused(request, failure.error)


class _Group(NamedTuple):
    """The elements of one list.

    Attributes:
        each: The ``each`` that names the list.
        request: The dict that will get the list of results.
        copies: The dict of each element, a shallow copy of ``request``.
        parts: Per element the index of its entry, or, where it is a list itself, the group of its elements.
    """

    each: Each
    request: Request
    copies: list[Request]
    parts: list[int | _Group]


class Elements:
    """The entries that run for one request at a node, and how their outcomes become one.

    With ``each`` there is an entry per element of a list; otherwise one for the request itself. A second door
    to a node with ``each`` may have an ``each`` of its own: lists in lists.

    Attributes:
        entries: One per element, on a shallow copy of the request; or the one of the request itself. An
            entry that cannot run is done, and counted. Where the outermost list is empty, or is no list,
            there are no entries.
        may_fail_alone: Whether an element may fail without failing the request.
    """

    def __init__(
        self,
        node: Called,
        request: Request,
        owner: Owner = NOBODY,
        given: Entry | None = None,
        **terms: Any,
    ) -> None:
        """Make the entries.

        Args:
            node: The node.
            request: The request of the node.
            owner: The owner of all entries.
            given: The entry of the request itself, where it is there; only for a node without ``each``.
            terms: See `entry_at`. The ``deadline`` is the request's; the node's own limit is added here.
        """
        self.entries: list[Entry] = []
        self.may_fail_alone = any(each.keep_errors for each in node.levels)
        self._scheduler = node.scheduler
        self._deadline: float | None = terms.get("deadline")
        self._top: _Group | None = None
        self._no_list: InputError | None = None
        self._together: list[Entry] = []
        if not node.levels:
            self._add(given or entry_at(node, request, **terms))
            self.entries[0].owner = owner
            return
        try:
            self._top = self._group(
                node.levels, request, lambda copy: entry_at(node, copy, owner, **terms)
            )
        except InputError as error:
            node.scheduler.count_refused(request, error)
            self._no_list = error.with_traceback(None)
        if not self.may_fail_alone:
            self._together += self.entries
            for entry in self.entries:
                entry.group = self._together

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

    def enter_with(self, entered: dict[type, Any] | None) -> None:
        """Let ride beside the entries what rides beside the request; parts of an element bear its index."""
        for entry in self.entries:
            entry.entered = entered
        if self._top is not None and entered is not None:
            for number, path in _paths(self._top):
                self.entries[number].entered = of_element(entered, path)

    def gather(self) -> BaseException | None:
        """Put the results of all elements into the request; give the error that fails the request, if any.

        With ``each_errors = "none"`` an element may fail alone. The deadline of the request, a close and a
        full queue end the request as a whole, and count as no failure of an element. The entries have all
        run by now, and forget their errors.
        """
        if self._top is None:
            error, self._no_list = self._no_list, None
            return error or self.entries[0].take_error()
        errors = self.forget()
        failed = [e for e in errors if e is not None and code_of(e) != "cancelled"]
        if failed and not self.may_fail_alone:
            return failed[0]  # the other elements may have been cancelled after this error
        late = self._deadline is not None and time.monotonic() >= self._deadline
        failure = _gather(self._top, errors, late=late)
        if failure is not None and not any(failure is one for one in errors):
            self._scheduler.count_late(failure)
        return failure

    def forget(self) -> list[BaseException | None]:
        """Let the entries, which have all run, keep neither their errors nor each other; give the errors."""
        self._together.clear()
        return [entry.take_error() for entry in self.entries]


def _paths(group: _Group) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Return the index of each entry of a group, with its places in the list and in lists in it, the innermost last."""
    for place, part in enumerate(group.parts):
        below = [(part, ())] if isinstance(part, int) else _paths(part)
        for number, path in below:
            yield number, (place, *path)


def _copies(each: Each, request: Request) -> list[Request]:
    values: Any = request.get(each.source)
    if not isinstance(values, list):
        what = f"node {each.node!r} runs once per element of {each.source!r}"
        got = type(values).__name__ if each.source in request else "nothing"
        raise InputError(what, key=each.source, expected="a list", got=got, node=each.node)
    copies = []
    for value in values:
        copy = dict(request)
        copy.pop("result", None)
        if (as_int(copy.get("request_size")) or 0) > 0:  # else the element is refused for it
            del copy["request_size"]  # the weight of the whole request: each element weighs 1
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
    """Tell whether the error of an element ends the whole request."""
    if isinstance(error, DeadlineExceededError):
        return late
    return isinstance(error, (ClosedError, OverloadedError)) or not isinstance(error, Exception)
