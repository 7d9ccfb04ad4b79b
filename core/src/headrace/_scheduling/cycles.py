"""Calls from inside a backend that would wait for ever: which threads wait for the batches that a thread runs."""

from __future__ import annotations

from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from headrace._scheduling.threads import calls_run, reset, served_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace._scheduling.entry import Entry
    from headrace._scheduling.instance import Instance


class Waits(Protocol):
    """What a thread waits for."""

    def places(self) -> Sequence[tuple[Any, object]]:
        """Return the schedulers, each with the entry or owner that waits or runs there; none while it is awake."""


batches_run: dict[int, tuple[Sequence[Entry], ...]] = {}
"""Per thread the batches from queues that it runs, the innermost first."""

waiting: dict[int, Waits] = {}
"""Per thread that waits inside a backend, or for another thread, what it waits for."""


def served_here(ident: int) -> set[int]:
    """Return thread ``ident`` and all threads that wait for a batch or a call that it runs now."""
    found: set[int] = set()
    left = [ident]
    while left:
        for thread in served_by(left.pop()) - found:
            found.add(thread)
            for entries in batches_run.get(thread, ()):
                left += [one.owner.ident for one in entries if hasattr(one.owner, "ident")]
    return found


def held_here(node: Any, ident: int | None = None) -> bool:
    """Tell whether a thread (None: the calling one), or one that waits for it, runs a batch of a node."""
    me = ident or get_ident()
    mine = served_here(me) if me in batches_run or me in calls_run else (me,)
    for one in node.every:  # noqa: SIM110 - a generator would cost a call each
        if one.ident in mine and one.holder is not None:
            return True
    return False


@contextmanager
def noted(waiter: Waits) -> Iterator[None]:
    """Note that the calling thread waits, so that the searches of other threads find it."""
    me = get_ident()
    outer = waiting.get(me)
    waiting[me] = waiter
    try:
        yield
    finally:
        reset(waiting, me, outer)


def cycle_of(waiter: Waits, ident: int | None = None) -> str | None:
    """Return the name of the node at which a thread (None: the calling one) would wait for ever, None for none."""
    me = ident or get_ident()
    idents = [one.ident for node, _ in waiter.places() for one in node.every]
    if not calls_run and me not in idents and waiting.keys().isdisjoint(idents):
        return None  # every thread that holds an instance is at work
    mine = served_here(me)
    seen: dict[tuple[int, int], bool] = {}

    def blocked(node: Any, what: object) -> bool:
        key = id(node), id(what)
        if key not in seen:
            seen[key] = True  # until it is known: who comes here again has gone round
            on = [one for one in node.every if what is not None and _runs(one, what)]
            seen[key] = any(map(held, on)) if on else all(map(held, node.instances))
        return seen[key]

    def held(instance: Instance) -> bool:
        ident = instance.ident
        if instance.holder is None or not ident:
            return False
        if ident in mine:
            return True
        asked = [ident, *(one for one in list(calls_run) if ident in served_by(one))]
        return any(blocked(*place) for one in asked for place in _asleep(one))

    return next((node.name for node, what in waiter.places() if blocked(node, what)), None)


def _asleep(ident: int) -> Sequence[tuple[Any, object]]:
    waiter = waiting.get(ident)
    return () if waiter is None else waiter.places()


def _runs(instance: Instance, what: object) -> bool:
    return any(entry is what or entry.owner is what for entry in instance.entries or ())
