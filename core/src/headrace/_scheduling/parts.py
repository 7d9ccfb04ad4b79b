"""Parts of an answer that come before its end: from ``context.emit`` in any thread to the one who reads the stream.

The `Parts` of a request ride beside it, in `Entry.entered`, from node to node; a request without any has no one who reads.
Nothing blocks who emits: where `PARTS_MAX` parts wait, the request ends with a LimitError.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace._scheduling.batch import entered_here
from headrace.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

    Node: TypeAlias = Any
    """Of `headrace._scheduling.node`, which imports this module."""

PARTS_MAX = 1024
"""How many parts of one request may wait for who reads them."""


class Parts:
    """The parts of one request that have come and were not read.

    Attributes:
        waiting: The parts, oldest first.
        begun: Whether a part has come: then the request is run by no other backend in place of this one.
        closed: Whether further parts are dropped: the request has ended, or nobody reads any more.
    """

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.begun = self.closed = False

    def wake(self) -> None:
        """Wake who reads; called after every part, in the thread that emits."""

    def fail(self, error: BaseException) -> None:
        """End the request with an error."""

    def put(self, part: Any) -> None:
        """Add a part; where too many wait, end the request."""
        if self.closed:
            return
        self.begun = True
        if len(self.waiting) < PARTS_MAX:
            self.waiting.append(part)
            self.wake()
            return
        self.closed = True
        what = f"the caller reads too slowly: {PARTS_MAX} parts of the answer wait"
        hint = "Read the stream faster, or send fewer parts."
        self.fail(LimitError(what, limit=PARTS_MAX, hint=hint))


class ElementParts:
    """The parts of one element of a list, which come as ``(index, part)``; of lists in lists as ``(index, (index, part))``."""

    def __init__(self, of: Parts | ElementParts, index: int) -> None:
        self._of, self._index = of, index
        self.begun = False

    def put(self, part: Any) -> None:
        """Add a part of the element."""
        self.begun = True
        self._of.put((self._index, part))


class SentParts:
    """The parts of a request in a process that runs it for another one: ``send(number, part)`` sends them there."""

    def __init__(self, send: Callable[[int, Any], object], number: int) -> None:
        self._send, self._number = send, number
        self.begun = False

    def put(self, part: Any) -> None:
        """Send a part."""
        self.begun = True
        self._send(self._number, part)


elsewhere: dict[int, SentParts] = {}
"""In a process that runs a batch for another one, where the parts of its requests go, by the identity of the request."""


def of_element(entered: dict[type, Any] | None, path: tuple[int, ...]) -> dict[type, Any] | None:
    """Return what rides beside one element of a list, whose place in it, and in lists in it, is ``path``."""
    parts = None if entered is None else entered.get(Parts)
    if entered is None or parts is None:
        return entered
    for index in path:
        parts = ElementParts(parts, index)
    return {**entered, Parts: parts}


def parts_of(request: Request, node: Node | None) -> Any:
    """Return where the parts of a request go that runs in this thread, or that a backend of a node keeps; None for nowhere."""
    found = elsewhere.get(id(request)) or entered_here(Parts, request)
    if found is None and node is not None:
        entry = node.pending.known.get(id(request))
        if entry is not None and entry.request is request and entry.entered is not None:
            return entry.entered.get(Parts)
    return found
