"""Objects that the builder puts between backends: a door to a node, a guard, a binding."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace._backend import Backend
from headrace._scheduling.batch import entries_running_here
from headrace._scheduling.entry import Entry, checked_weight
from headrace.errors import ContractError, InputError

if TYPE_CHECKING:
    from headrace._backend import Outcomes
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Bound", "Door", "Guarded", "NotCallable"]


class Door(Backend):
    """A node, called from inside an expression: each item is a request of its own there."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._name = f"node.{scheduler.name}"
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node and wait for them; deadline and priority are kept."""
        outer = {id(entry.request): entry for entry in entries_running_here()}
        entries = []
        for request in batch:
            parent = outer.get(id(request))
            entry = Entry(
                request,
                None,
                deadline=parent.deadline if parent is not None else None,
                priority=parent.priority if parent is not None else 0,
            )
            request.pop("result", None)
            try:
                entry.weight = checked_weight(request, self.scheduler.name)
            except InputError as error:
                entry.refuse(error)
            entries.append(entry)
        self.scheduler.call_many(entries, internal=True)
        errors = [entry.error for entry in entries]
        if not any(errors):
            return None
        return [e if e is None or isinstance(e, Exception) else _shown(e) for e in errors]


def _shown(error: BaseException) -> Exception:
    shown = ContractError(f"{type(error).__name__} ended a request")
    shown.__cause__ = error
    return shown


class Guarded(Backend):
    """An instance that several threads can reach: called by one at a time."""

    def __init__(self, child: Backend) -> None:
        self.child = child
        self.min, self.max = child.min, child.max
        self._name = child._label()
        self._lock = threading.Lock()
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance, alone."""
        with self._lock:
            return self.child(batch)


class Bound(Backend):
    """An instance with what it depends on, which is given to it at each call."""

    def __init__(self, instance: Backend, dependency: Backend) -> None:
        self._instance = instance
        self._given = dependency
        self.min, self.max = instance.min, instance.max
        self._name = instance._label()
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance with its dependency."""
        target = self._instance
        if isinstance(target, Guarded):
            with target._lock:
                return target.child.forward_with_dep(batch, self._given)  # type: ignore[attr-defined, no-any-return]
        return target.forward_with_dep(batch, self._given)  # type: ignore[attr-defined, no-any-return]


class NotCallable(Backend):
    """What is left of a word that only builds others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Refuse."""
        raise ContractError(f"{self._name} cannot be called", hint="It only builds others.")


