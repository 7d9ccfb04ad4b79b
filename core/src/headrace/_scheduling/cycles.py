"""Which thread waits for which, and cycles of them, in which all would wait for ever.

A backend that calls its own pipeline waits while it holds an instance. One thread that waits for what
it holds itself is refused on entry (`admission.held_here`). With two threads it takes a search: thread
A holds an instance of node a and waits at node b, where thread B holds the instance and is about to
wait at node a.

Each thread notes that it waits first, and searches then. Thread A notes and searches, then B does: B
finds A waiting. Or B notes before A searches: A finds B. So the last thread of a cycle always finds it.
Instances are read here without the locks of their nodes: those in a cycle do not change.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Protocol

from headrace._scheduling.calls import served_by, serves, serving
from headrace._scheduling.workers import Caller

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance
    from headrace._scheduling.workers import Place, Station

__all__ = [
    "Waiter",
    "batches_run",
    "cycle_of",
    "entries_running_here",
    "noted",
    "served_here",
    "waited_for",
    "waiting",
]

batches_run: dict[int, tuple[Sequence[Entry], ...]] = {}
"""Per thread the batches from queues that it runs, one inside the other."""


def entries_running_here() -> list[Entry]:
    """Give the entries of the batches that the calling thread runs, or that wait for its job."""
    batches = [batch for ident in served_by(get_ident()) for batch in batches_run.get(ident, ())]
    return [entry for batch in batches for entry in batch]


def waited_for(ident: int) -> bool:
    """Tell whether other threads may wait for what thread ``ident`` does now."""
    return ident in batches_run or serves(ident)


def served_here(ident: int) -> set[int]:
    """Give thread ``ident`` and all threads that wait for what it does now."""
    found: set[int] = set()
    left = [ident]
    while left:
        for thread in served_by(left.pop()) - found:
            found.add(thread)
            for entries in batches_run.get(thread, ()):
                left += [e.owner.ident for e in entries if isinstance(e.owner, Caller)]
    return found


class Waiter(Protocol):
    """What a thread waits for."""

    def places(self) -> Sequence[Place]:
        """Give all it needs; none when it is awake."""


waiting: dict[int, Waiter] = {}
"""By the identifier of a thread, what it waits for; the innermost, where one wait is inside another."""


@contextmanager
def noted(waiter: Waiter) -> Iterator[None]:
    """Take note that the calling thread waits."""
    me = get_ident()
    outer = waiting.get(me)
    waiting[me] = waiter
    try:
        yield
    finally:
        if outer is None:
            del waiting[me]
        else:
            waiting[me] = outer


def cycle_of(waiter: Waiter) -> str | None:
    """Give the node for which the calling thread would wait for ever, None for none.

    It waits in a cycle when all instances that could serve it are held by threads that wait
    likewise, and one of them is this thread or waits for what it does.
    """
    places = waiter.places()
    if not any(_needs(one.ident) for node, _ in places for one in node.every):
        return None  # whoever holds an instance is at work
    for node, what in places:
        search = _Search(served_here(get_ident()))
        if search.blocked(node, what) and search.reached:
            return node.name
    return None


class _Search:
    """Looks for those who wait, from node to node.

    Attributes:
        reached: Whether it came to a thread that waits for the one that searches.
    """

    def __init__(self, mine: set[int]) -> None:
        self.reached = False
        self._mine = mine
        self._stuck: dict[int, bool] = {}

    def blocked(self, node: Station, what: object) -> bool:
        """Tell whether something that waits or runs at a node can never end there."""
        running = [one for one in node.every if what is not None and _runs(one, what)]
        if running:
            return any(self._held(one) for one in running)
        return all(self._held(one) for one in node.instances)

    def _held(self, instance: Instance) -> bool:
        return instance.holder is not None and self._waits(instance.ident)

    def _waits(self, ident: int) -> bool:
        """Tell whether a thread waits for ever; true as long as nothing tells otherwise."""
        if ident in self._mine:
            self.reached = True
            return True
        if ident not in self._stuck:
            self._stuck[ident] = True
            self._stuck[ident] = any(self.blocked(*place) for place in _needs(ident))
        return self._stuck[ident]


def _needs(ident: int) -> list[Place]:
    """Give what a thread waits for, itself or in the threads that it waits for."""
    waiters = [waiting.get(one) for one in (ident, *serving(ident))]
    return [place for waiter in waiters if waiter is not None for place in waiter.places()]


def _runs(instance: Instance, what: object) -> bool:
    return any(entry is what or entry.owner is what for entry in instance.entries or ())
