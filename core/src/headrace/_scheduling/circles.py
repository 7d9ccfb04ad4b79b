"""Threads that would wait for each other for ever, because backends call pipelines in a circle.

A backend that calls its own pipeline waits while it holds an instance. One thread that waits for what
it holds itself is refused at the door (`admission.held_here`). With two it takes a search: the first
holds an instance of one node and waits for another, where the second holds the instance and is about
to wait for the first.

Whoever begins to wait takes note of it first and looks then, so the last thread of a circle finds it.
Instances are read here without the locks of their nodes: those in a circle do not change.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Protocol

from headrace._scheduling.batch import served_here
from headrace._scheduling.calls import serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from headrace._scheduling.instance import Instance
    from headrace._scheduling.node import Node

    Place: TypeAlias = tuple[Node, object]
    """A node, and the entry or the owner of entries that waits or runs there; None for neither yet."""

__all__ = ["Waiter", "circle_of", "noted", "waiting"]


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


def circle_of(waiter: Waiter) -> str | None:
    """Give the node for which the calling thread would wait for ever, None for none.

    It waits for a circle when all instances that could serve it are held by threads that wait
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

    def blocked(self, node: Node, what: object) -> bool:
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
