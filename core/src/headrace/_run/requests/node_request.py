"""The entries of a request at a node: one, or with ``each`` one per element."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from headrace._run.contract.checked import as_int
from headrace._run.requests.entry import DONE, NEW, Entry
from headrace._run.requests.parts import of_call, of_element
from headrace._run.requests.refusals import withdrawn
from headrace._run.requests.room import Ticket
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

    from headrace._run.contract.settings import Links
    from headrace._run.node import Node
    from headrace.keys import Request

FREES_CALLER = (DeadlineExceededError, ClosedError, OverloadedError)
"""The errors that end a request at one node while a backend may run on it at another one."""


class NodeRequest:
    """The entries that run for one request at a node, and how their outcomes become one.

    With ``each`` there is an entry per element of a list, otherwise one for the request itself.

    Attributes:
        entries: One per element, on a shallow copy of the request, or the one of the request
            itself. An entry that cannot run is done, and counted. Where the list is empty, or is no
            list, there are no entries.
    """

    def __init__(
        self,
        node: Node,
        links: Links | None,
        request: Request,
        outer: Entry,
        ticket: Ticket,
        parts: bool | str = True,
    ) -> None:
        """Make the entries.

        Args:
            node: The node.
            links: Its links, where it runs once per element of a list. None where it runs once.
            request: The request of the node.
            outer: Whose deadline and priority they have, and what rides beside it. The node's own
                limit comes later.
            ticket: Counts them while they wait.
            parts: What becomes of parts that are given. See ``context.request.call``.
        """
        self._each, self._node, self._request = links, node, request
        self._deadline = outer.deadline
        self._no_list: InputError | None = None
        self._together: list[Entry] = []
        self.entries: list[Entry] = []
        entered = of_call(outer.entered, parts)
        try:
            requests = [request] if links is None else _copies(links, request)
        except InputError as error:
            node.count_refused(request, error)
            self._no_list = error.with_traceback(None)
            return
        for index, element in enumerate(requests):
            entry = Entry(element, None, 1, outer.deadline, outer.priority, ticket)
            try:
                entry.weight = node.check_again(element)
            except InputError as error:
                entry.refuse(error.with_traceback(None))  # see `Entrance._refuse`
            entry.entered = entered
            if links is not None and entered is not None:
                entry.entered = of_element(entered, index)  # its parts bear the index
            self.entries.append(entry)
        if links is not None and links.each_errors is None:
            self._together += self.entries
            for entry in self.entries:
                entry.group = self._together

    def ends_with(self, entry: Entry) -> bool:
        """Tell whether one outcome ends the request here, though others may have none yet."""
        error = entry.error
        alone = self._each is not None and self._each.each_errors is not None
        if error is None or (alone and not isinstance(error, OverloadedError)):
            return False
        # A cancelled element does not end it: the failed one for which it was cancelled does so.
        return not isinstance(error, CancelledError)

    def gather(self) -> BaseException | None:
        """Put the results of all elements into the request; give the error that fails it, if any.

        With ``each_errors = "none"`` an element may fail alone. The deadline of the request, a
        close and a full queue end the request as a whole, and count as no failure of an element.
        The entries have all run by now, and forget their errors.
        """
        links = self._each
        if links is None or self._no_list is not None:
            no_list, self._no_list = self._no_list, None
            return no_list or self.entries[0].take_error()
        errors = self.forget()
        failed = [e for e in errors if e is not None and code_of(e) != "cancelled"]
        if failed and links.each_errors is None:
            return failed[0]  # the other elements may have been cancelled after this error
        late = self._deadline is not None and time.monotonic() >= self._deadline
        results = []
        for entry, error in zip(self.entries, errors, strict=True):
            if error is None and "result" not in entry.request:
                message = f"an element gave no 'result' in node {links.name!r}"
                error = NoResultError(message, node=links.name)
                if links.each_errors is None:
                    self._node.count_late(self._request, error)
            if error is not None and (links.each_errors is None or _ends_all(error, late=late)):
                return error
            results.append(None if error is not None else entry.request["result"])
        self._request["result"] = results
        return None

    def answer(self) -> BaseException | None:
        """Do what `gather` does for a call of the node: there has to be a ``result``.

        The node itself lets an entry end without one where a node with ``or`` follows it in the
        graph.
        """
        error = self.gather()
        try:
            if error is not None or "result" in self._request:
                return error
        finally:
            del error  # see `Entry.take_error`
        name = self._node.name
        missing = NoResultError(f"node {name!r} gave no 'result'", node=name)
        self._node.count_late(self._request, missing)
        return missing

    def forget(self) -> list[BaseException | None]:
        """Let the entries, which have all run, keep nothing; give the errors."""
        self._together.clear()
        return [entry.take_error() for entry in self.entries]


def _copies(links: Links, request: Request) -> list[Request]:
    source, target = links._each_keys
    values: Any = request.get(source)
    if not isinstance(values, list):
        message = f"node {links.name!r} runs once per element of {source!r}"
        got = type(values).__name__ if source in request else "nothing"
        raise InputError(message, key=source, expected="a list", got=got, node=links.name)
    copies = []
    for value in values:
        copy = dict(request)
        copy.pop("result", None)
        if (as_int(copy.get("request_size")) or 0) > 0:  # else the element is refused for it
            del copy["request_size"]  # the weight of the whole request: each element weighs 1
        copy[target] = value
        copies.append(copy)
    return copies


def _ends_all(error: BaseException, *, late: bool) -> bool:
    """Tell whether the error of an element ends the whole request."""
    if isinstance(error, DeadlineExceededError):
        return late
    return isinstance(error, (ClosedError, OverloadedError)) or not isinstance(error, Exception)


def waiting_for(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries that wait for an instance or for room for others; in any thread."""
    return [inner for e in entries if e.node is not None for inner in e.node.waiting_for(e)]


class Sent:
    """A request that another node runs on behalf of one that runs here. No thread waits for it.

    Attributes:
        entries: Its entries there that have not ended.
    """

    def __init__(
        self,
        node: Node,
        links: Links | None,
        request: Request,
        outer: Entry,
        then: Callable[[BaseException | None], object],
        parts: bool | str = True,
    ) -> None:
        """Make the entries, with deadline and priority of ``outer``; ``then`` gets the outcome."""
        request.pop("result", None)
        self._at_node = NodeRequest(node, links, request, outer, Ticket(None), parts)
        self._node, self._then = node, then
        self.entries = [element for element in self._at_node.entries if element.state == NEW]
        for entry in self.entries:
            entry.then, entry.internal = self._end_entry, True
        self._left = len(self.entries)

    def start(self) -> None:
        """Let the entries into the queue; in a step."""
        if self.entries:
            self._node.start(self.entries)
            self._node.enter(self.entries)
        else:
            self._then(self._at_node.answer())

    def _end_entry(self, entry: Entry) -> None:
        entry.give_back()
        self._left -= 1
        if not self._left:
            self._then(self._at_node.answer())

    @property
    def waits(self) -> bool:
        """Whether no backend runs on it."""
        return all(entry.waits for entry in self.entries if entry.state != DONE)

    def give_up(self) -> bool:
        """Withdraw the entries that wait and abandon those that run; tell whether any runs."""
        left = [entry for entry in self.entries if entry.then is not None]
        for entry in left:
            entry.then = None
        return any([entry.node.fail(entry, withdrawn) for entry in left])  # each is asked
