"""Entering a node: refused, let into the line, or left outside until there is room."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

from headrace._scheduling.batch import served_here, waited_for
from headrace._scheduling.elsewhere import Waits
from headrace._scheduling.entry import ENTERED, OUTSIDE, QUEUED, checked_weight
from headrace._scheduling.node import own
from headrace.errors import (
    BatchRangeError,
    ContractError,
    DeadlineExceededError,
    InputError,
    OverloadedError,
    code_of,
)

if TYPE_CHECKING:
    from collections import OrderedDict
    from collections.abc import Callable, Sequence

    from headrace._scheduling.dispatch import Dispatcher
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node

__all__ = ["Entrance", "deadline_error", "enter", "held_here", "inside", "refuse", "unfit"]


def enter(
    node: Node,
    entries: Sequence[Entry],
    make_room: Callable[[], None],
    *,
    internal: bool = False,
    waits: bool = False,
) -> None:
    """Let new entries in one by one; what is refused fails alone. Under the lock.

    Args:
        node: The node.
        entries: New entries.
        make_room: Gives what is due to free instances; asked before anything is refused.
        internal: They come from a backend of this pipeline, which closing does not refuse.
        waits: The calling thread will wait for them.
    """
    refused = None
    if node.refusing is not None or node.lost or (waits and not node.rests):
        refused = _refusal(node, internal=internal, waits=waits)
    for entry in entries:
        node.entered += 1
        entry.state = ENTERED
        error = refused
        if error is None and (
            entry.deadline is not None or (node.max is not None and entry.weight > node.max)
        ):
            error = unfit(node, entry)
        if error is not None:
            node.settle(entry, own(error))
            continue
        # Bounds hold where a request enters the pipeline, not between its nodes.
        if not (node.outside or node.full) or (entry.waits is not None and entry.waits.entered):
            node.push(entry)
            continue
        make_room()
        if node.outside or node.full:
            _enter_full(node, entry)
        else:
            node.push(entry)


def held_here(node: Node) -> bool:
    """Tell whether the calling thread, or one that waits for it, runs a batch of the node."""
    me = get_ident()
    runners = [i.ident for i in node.every if i.holder is not None]
    return me in runners or (waited_for(me) and not served_here(me).isdisjoint(runners))


def deadline_error(node: Node, *, running: bool) -> DeadlineExceededError:
    """Make the error of a request whose time is over."""
    where = "while a backend ran on it" if running else "while it waited"
    return DeadlineExceededError(
        f"the time of the request was over {where}", node=node.name, abandoned=running
    )


def _refusal(node: Node, *, internal: bool, waits: bool) -> BaseException | None:
    if node.refusing is not None and (node.dead or not internal):
        return node.refusing
    if node.lost:
        return node.no_instance()
    if waits and not node.rests and held_here(node):
        return inside(node.name)
    return None


def refuse(node: Node, entries: Sequence[Entry]) -> None:
    """Fail those of the entries that wait, and would do so for ever. Under the lock."""
    node.settle_waiting(inside(node.name), [e for e in entries if e.state in (QUEUED, OUTSIDE)])


def inside(node: str) -> ContractError:
    """Make the error of a call that would wait for what waits for it."""
    return ContractError(
        "a backend called its own pipeline, which waits for the instance that it holds",
        node=node,
        hint="Call another pipeline, or compose the backends in one expression.",
    )


def unfit(node: Node, entry: Entry) -> BaseException | None:
    """Give the error of an entry that came too late, or that no instance can ever take."""
    if entry.deadline is not None and entry.deadline <= entry.arrival:
        return deadline_error(node, running=False)
    if node.max is None or entry.weight <= node.max:
        return None
    return BatchRangeError(
        f"a request of weight {entry.weight} fits no instance: the greatest max is {node.max}",
        weight=entry.weight,
        min=node.min,
        max=node.max,
        node=node.name,
        hint="Send fewer rows in one request, or raise the node's max.",
    )


def _enter_full(node: Node, entry: Entry) -> None:
    rule = node.limits.queue_full
    if rule == "wait":
        node.outside[entry] = None
        entry.state = OUTSIDE
        return
    waiting = node.bounded
    if rule == "shed_oldest" and _shed(node, entry.priority, waiting):
        node.push(entry)
    else:
        node.settle(entry, _overloaded(node, waiting, shed=False))


def _shed(node: Node, priority: int, waiting: int) -> bool:
    """Let the oldest of the lowest priority make way, if that is ``priority`` or lower.

    Of equals those that wait at other nodes are the older ones.
    """
    error = _overloaded(node, waiting, shed=True)
    oldest = node.line.oldest_of_lowest()
    here = priority + 1 if oldest is None else oldest.priority
    found = node.elsewhere.shed(min(here, priority))
    if found is not None:
        node.shed.append((*found, error))
        return True
    if oldest is None or here > priority:
        return False
    node.settle_waiting(error, [oldest])
    return True


def _overloaded(node: Node, waiting: int, *, shed: bool) -> OverloadedError:
    size = node.limits.queue_size
    what = "made way for a newer request" if shed else "the queue is full"
    return OverloadedError(
        f"{what}: {waiting} {'request waits' if waiting == 1 else 'requests wait'}, "
        f"queue_size is {size}",
        queue_size=size,
        waiting=waiting,
        node=node.name,
        hint="Send fewer at a time, raise queue_size, or set queue_full = 'wait'.",
    )


class Entrance:
    """What a scheduler does with requests before they enter."""

    name: str
    needs: Sequence[str] = ("data",)
    """The keys without which a request is refused."""
    outside: OrderedDict[Entry, None]
    """The requests that wait for room."""
    _node: Node
    _dispatcher: Dispatcher

    def checked(self, request: Any, needs: Sequence[str] | None = None) -> int:
        """Check a request on entry and give its weight.

        Args:
            request: What was sent.
            needs: The keys it must have; None for those of the node.

        Raises:
            InputError: See `checked_weight`; it is counted as a failure of the node.
        """
        try:
            return checked_weight(request, self.name, self.needs if needs is None else needs)
        except InputError as error:
            if isinstance(request, dict):
                request.pop("result", None)
            self.count_refused(request, error)
            raise

    def count_refused(self, request: Any, error: BaseException) -> None:
        """Count a request that was refused before it entered."""
        node = self._node
        with node.lock:
            node.entered += 1
            code = code_of(error)
            node.failures[code] = node.failures.get(code, 0) + 1

    def count_late(self, error: BaseException) -> None:
        """Count as failed a request that has ended well here, but cannot go on."""
        node = self._node
        with node.lock:
            code = code_of(error)
            node.failures[code] = node.failures.get(code, 0) + 1

    def waits(self, *, entered: bool = True) -> Waits:
        """Count the waits of a request that enters here, at all nodes, as one.

        Args:
            entered: Whether it has been let in.
        """
        return Waits(self._node.elsewhere, entered=entered)

    def let_in(self) -> None:
        """Let in who waits for room, once a request that entered here waits elsewhere no more."""
        node = self._node
        with node.lock:
            node.let_in()
            self._dispatcher.dispatch(None)
            settled = node.take_settled()
        node.tell(settled)
