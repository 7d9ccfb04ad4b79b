"""Objects that the builder puts between backends: a door to a node, a guard, a binding."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace._backend import Backend
from headrace._containers.background import BackgroundThread
from headrace._scheduling.batch import entries_running_here
from headrace._scheduling.entry import Entry
from headrace.errors import ContractError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

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
                entry.weight = self.scheduler.checked(request)
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
        self.min, self.max, self.rerun = child.min, child.max, child.rerun  # type: ignore[misc]
        self._name, self._node, self._index = child._label(), child._node, child._index
        self._lock = threading.RLock()  # an instance may stand inside itself: DI[A,A,X]
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance, alone."""
        with self._lock:
            return self.child(batch)


class Bound(Backend):
    """An instance with what it depends on, which is given to it at each call."""

    def __init__(self, instance: Backend, dependency: Backend) -> None:
        inner = instance.child if isinstance(instance, (Guarded, BackgroundThread)) else instance
        self._instance = instance
        self._forward: Callable[[list[Request], Backend], Outcomes] = inner.forward_with_dep  # type: ignore[attr-defined]
        self._given = dependency
        self.min, self.max, self.rerun = inner.min, inner.max, inner.rerun  # type: ignore[misc]
        self._name, self._node, self._index = inner._label(), inner._node, inner._index
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance with its dependency."""
        if isinstance(self._instance, Guarded):
            with self._instance._lock:
                return self._forward(batch, self._given)
        if isinstance(self._instance, BackgroundThread):
            return self._instance.thread.call(self._forward, batch, self._given)
        return self._forward(batch, self._given)


class NotCallable(Backend):
    """What is left of a word that only builds others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Refuse."""
        raise ContractError(f"{self._name} cannot be called", hint="It only builds others.")
