"""Parts of an answer that come before its end, by ``context.request.emit`` in any thread.

The `PartSink` of a request rides beside it, in `Entry.entered`, from node to node. A request
without any has no one who reads. The function decides what becomes of a part for which it has no
room: it waits, if the thread may, or raises, which ends the request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from headrace._run.requests.current import batches_run, running_here
from headrace._run.requests.entry import DONE
from headrace._run.steps.box import is_inside, post
from headrace._run.steps.threads import own_threads, runs_loop
from headrace._run.steps.tracebacks import set_abandoned
from headrace.keys import Request

if TYPE_CHECKING:
    from headrace._run.node import Node
    from headrace._run.requests.entry import Entry


class Parts(Protocol):
    """Where parts of an answer go.

    Attributes:
        begun: Whether a part has come.
    """

    begun: bool

    @property
    def closed(self) -> bool:
        """Whether further parts are dropped."""

    def add(self, part: Any, waits: bool) -> bool:
        """Give a part to who reads; False where it comes too late."""


class PartSink:
    """Where the parts of one request go.

    Args:
        entry: The request.
        take: Called with each part, and whether the calling thread may wait.

    Attributes:
        take: The function. None once it has raised, or the request has its outcome.
        begun: Whether a part has come: then the request is run by no other backend in place of this
            one.
    """

    def __init__(self, entry: Entry, take: Callable[[Any, bool], object]) -> None:
        self._entry: Entry | None = entry
        self.take: Callable[[Any, bool], object] | None = take
        self.begun = False
        entry.entered = {**(entry.entered or {}), PartSink: self}

    @property
    def root(self) -> PartSink:
        """What has the function."""
        return self

    @property
    def closed(self) -> bool:
        """Whether further parts are dropped, since the request has ended."""
        entry = self._entry
        return entry is None or entry.state == DONE

    def add(self, part: Any, waits: bool) -> bool:
        """Give a part to who reads; False where it comes too late."""
        take, entry = self.take, self._entry  # in this order, see `end`
        if take is None or entry is None or entry.state == DONE:
            return False
        self.begun = True
        try:
            take(part, waits)
        except Exception as error:  # of the caller's function: the request ends with it
            # Before the step, which may be another thread's: no later part is given.
            self.take = None
            post(entry.node.box, entry.node.fail, entry, partial(_failure, error))
        return True

    def end(self) -> None:
        """Let go of the request, which has its outcome, and of who reads."""
        self._entry = None
        self.take = None


def _failure(error: BaseException, _: object, *, running: bool) -> BaseException:
    set_abandoned(error, running)
    return error


class ElementSink:
    """The parts of one element of a list, which come as ``(index, part)``.

    In lists of lists they come as ``(index, (index, part))``.

    Those of a call may bear a text in place of the index.
    """

    def __init__(self, of: PartSink | ElementSink, index: int | str) -> None:
        self._of, self._index = of, index
        self.root: PartSink = of.root
        self.begun = False

    @property
    def closed(self) -> bool:
        """Whether nobody reads any more."""
        return self.root.closed

    def add(self, part: Any, waits: bool) -> bool:
        """Add a part of the element."""
        self.begun = True
        return self._of.add((self._index, part), waits)


elsewhere: dict[int, Parts] = {}
"""Of `headrace.isolation.elsewhere`."""


def of_element(entered: dict[type, Any], index: int | str) -> dict[type, Any]:
    """Return what rides beside one element of a list, from what rides beside the list."""
    parts = entered.get(PartSink)
    return entered if parts is None else {**entered, PartSink: ElementSink(parts, index)}


def of_call(entered: dict[type, Any] | None, parts: bool | str) -> dict[type, Any] | None:
    """Return what rides beside a request that runs for another one, whose own is ``entered``.

    See ``context.request.call``.
    """
    if parts is True or entered is None:
        return entered
    if parts is False:
        return {key: value for key, value in entered.items() if key is not PartSink}
    return of_element(entered, parts)


def read_from(entry: Entry | None) -> PartSink | ElementSink | None:
    """Return the parts of an entry; None where nobody reads any."""
    return None if entry is None or entry.entered is None else entry.entered.get(PartSink)


def parts_go_to(request: Request) -> Callable[[Any], object] | None:
    """Return a function that takes the parts of a request whose backend is elsewhere.

    It waits for who reads. None where nobody does.
    """
    parts = read_from(running_here(request))
    return None if parts is None else partial(parts.add, waits=True)


def may_wait(node: Node | None) -> bool:
    """Tell whether the calling thread may wait for who reads.

    Nobody else needs the thread then, and it does not read itself.
    """
    me = get_ident()
    if me in own_threads:
        return True
    if me in batches_run or is_inside():
        return False
    if node is not None and (
        me in node.box.telling or any(instance.ident == me for instance in node.instances)
    ):
        return False
    return not runs_loop()
