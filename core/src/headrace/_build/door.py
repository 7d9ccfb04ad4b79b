"""Objects that the builder puts between backends: a door to a node, a guard, a binding."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._build.batch_end import Ended, Standing
from headrace._graph.entries import Elements
from headrace._scheduling.entry import Entry
from headrace._scheduling.queue import HANDED
from headrace._scheduling.threads import entries_running_here
from headrace.errors import ClosedError, ContractError, InputError, InstanceLostError, NoResultError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from headrace._backend import InitContext
    from headrace._build.batch_end import BatchEnd
    from headrace._checked import Outcomes
    from headrace._graph.links import Each
    from headrace._scheduling.calls import OwnThread
    from headrace._scheduling.queue import Handed, Waits
    from headrace._scheduling.scheduler import Scheduler
    from headrace.keys import Request

__all__ = ["Bound", "Door", "FrontDoor", "Guarded", "InThread", "NotCallable"]


class Door(Backend):
    """A node, called from inside an expression: each item is a request of its own there.

    With ``each`` it is one request per element, whose results are gathered.
    """

    def __init__(
        self, scheduler: Scheduler, levels: Sequence[Each] = (), timeout_ms: float | None = None
    ) -> None:
        """Make a door.

        Args:
            scheduler: The node.
            levels: The ``each`` of the node, and of the nodes behind a second door.
            timeout_ms: The limit of a second door, which its node does not know; None for none.
        """
        self.scheduler = scheduler
        self.levels = levels
        self.timeout_ms = timeout_ms
        self._name = f"node.{scheduler.name}"
        self._state = "ready"

    @property
    def is_plain(self) -> bool:
        """Whether calling it is nothing else than calling its scheduler."""
        return self.timeout_ms is None and not self.levels

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node and wait for them; deadline and priority are kept."""
        return self.pass_on(batch, enters=False)

    def pass_on(self, batch: list[Request], *, enters: bool) -> Outcomes:
        """Do what `forward` does; the bound of the node holds if the items enter there."""
        outer = {id(entry.request): entry for entry in entries_running_here()}
        entries: list[Entry] = []
        parts: list[tuple[Elements | None, list[Entry], Entry | None]] = []
        outcomes: list[BaseException | None] = [None] * len(batch)
        for index, request in enumerate(batch):
            parent = outer.get(id(request))
            request.pop("result", None)
            elements, made = None, []
            try:
                elements = self._elements(request)
            except InputError as error:
                outcomes[index] = error
            else:
                waits = self.scheduler.waits(entered=False) if enters else HANDED
                made = self._entries(request, elements, parent, waits)
            parts.append((elements, made, parent))
            entries += made
        if entries:
            groups = [made for one, made, _ in parts if one is not None and not one.may_fail_alone]
            self.scheduler.call_many(entries, internal=True, groups=groups)
        for index, (elements, made, parent) in enumerate(parts):
            if outcomes[index] is None:
                outcomes[index] = self._outcome(elements, made, parent)
        if not any(outcomes):
            return None
        try:
            return [None if e is None else _outcome_of(e) for e in outcomes]
        finally:
            del outcomes  # see `Entry.take_error`

    def _elements(self, request: Request) -> Elements | None:
        if not self.levels:
            return None
        try:
            return Elements(self.levels, request)
        except InputError as error:
            self.scheduler.count_refused(request, error)
            raise

    def _entries(
        self,
        request: Request,
        elements: Elements | None,
        parent: Entry | None,
        waits: Waits | Handed,
    ) -> list[Entry]:
        if elements is None:
            return [self._entry(request, parent, waits)]
        return elements.entries(lambda one: self._entry(one, parent, waits), self.scheduler)

    def _outcome(
        self, elements: Elements | None, made: list[Entry], parent: Entry | None
    ) -> BaseException | None:
        if elements is not None:
            deadline = parent.deadline if parent is not None else None
            return elements.gather([entry.take_error() for entry in made], deadline)
        (entry,) = made
        if entry.error is None and "result" not in entry.request:  # allowed where an `or` follows
            error = NoResultError(
                f"node {self.scheduler.name!r} gave no 'result'", node=self.scheduler.name
            )
            self.scheduler.count_late(error)
            return error
        return entry.take_error()

    def _entry(self, request: Request, parent: Entry | None, waits: Waits | Handed) -> Entry:
        deadline = parent.deadline if parent is not None else None
        if self.timeout_ms is not None:
            own = time.monotonic() + self.timeout_ms / 1000
            deadline = own if deadline is None else min(own, deadline)
        priority = parent.priority if parent is not None else 0
        entry = Entry(request, deadline=deadline, priority=priority)
        entry.waits = waits
        try:
            entry.weight = self.scheduler.checked(request)
        except InputError as error:
            entry.refuse(error)
        return entry


class FrontDoor(Backend):
    """A node, called from the front of the pipeline: requests enter there, so its bound holds."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self._name = door._name
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Hand the items to the node."""
        return self.door.pass_on(batch, enters=True)


def _outcome_of(error: BaseException) -> Exception:
    """Give what the door says of a request that failed at its node."""
    if isinstance(error, ClosedError):  # the pipeline of both
        return error._passing()
    if isinstance(error, Exception):
        return error
    shown = ContractError(f"{type(error).__name__} ended a request")
    shown.__cause__ = error
    return shown


class Guarded(Standing):
    """An instance that several threads can reach: called by one at a time."""

    def __init__(self, child: Backend) -> None:
        super().__init__(child)
        self._lock = threading.RLock()  # an instance may stand inside itself: DI[A,A,X]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance, alone."""
        with self._lock:
            if self._lost is not None and self._lost.is_set():  # by whom no scheduler knows
                raise InstanceLostError(f"{self._label()} was lost", node=self._node)
            return self.child(batch)


class InThread(Backend):
    """A backend that one thread owns: its ``init``, every ``forward`` and its ``close``."""

    def __init__(self, thread: OwnThread, name: str) -> None:
        self.thread = thread
        self._name = name

    def init(self, options: Any, context: InitContext) -> None:
        """Take over the range of what was built in the thread."""
        (self.child,) = context.children
        self.min, self.max = self.child.min, self.child.max
        self.rerun = self.child.rerun  # type: ignore[misc]

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run it on the batch in its thread."""
        return self.thread.call(self.child, batch)

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)


class Bound(Backend):
    """An instance with what it depends on, which is given to it at each call."""

    def __init__(self, instance: Backend, dependency: Backend) -> None:
        self._guard: AbstractContextManager[bool] | None = None
        self._thread: OwnThread | None = None
        end: BatchEnd | None = None
        inner = instance
        while isinstance(inner, (Guarded, InThread, Ended)):
            if isinstance(inner, Guarded):
                self._guard = inner._lock
            elif isinstance(inner, InThread):
                self._thread = inner.thread
            else:
                end = inner.end
            inner = inner.child
        forward: Callable[[list[Request], Backend], Outcomes] = inner.forward_with_dep  # type: ignore[attr-defined]
        self._forward = forward if end is None else partial(end.run, forward)
        self._given = dependency
        self.min, self.max, self.rerun = inner.min, inner.max, inner.rerun  # type: ignore[misc]
        self._name, self._node, self._index = inner._label(), inner._node, inner._index
        self._lost = inner._lost
        self._state = "ready"

    @property
    def leaves(self) -> bool:
        """Whether it hands its batch to another thread, or to an instance that others call."""
        return self._guard is not None or self._thread is not None

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the instance with its dependency."""
        if self._guard is not None:
            with self._guard:
                return self._forward(batch, self._given)
        if self._thread is not None:
            return self._thread.call(self._forward, batch, self._given)
        return self._forward(batch, self._given)


class NotCallable(Backend):
    """What is left of a word that only builds others."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._state = "ready"

    def forward(self, batch: list[Request]) -> Outcomes:
        """Refuse."""
        raise ContractError(f"{self._name} cannot be called", hint="It only builds others.")
