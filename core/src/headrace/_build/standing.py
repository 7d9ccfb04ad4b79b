"""What is called in the place of a backend: a lock, a thread, a binding around it, or care for its range."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend, InitContext
from headrace._checked import weight_of
from headrace._scheduling.batch import Filler
from headrace.errors import BatchRangeError, ContractError, InstanceLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from headrace._checked import Outcomes
    from headrace._scheduling.calls import OwnThread
    from headrace.keys import Request

    Forward = Callable[..., Outcomes]


class Standing(Backend):
    """Base of what stands for another backend."""

    def __init__(self, child: Backend) -> None:
        self.child = child
        self.min, self.max, self.rerun = child.min, child.max, child.rerun  # type: ignore[misc]
        self._name, self._node, self._index = child._label(), child._node, child._index
        self._lost = child._lost
        self._bounded, self._takes_one = child._bounded, child._takes_one
        self._state = "ready"

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)


class Passage(Standing):
    """One use of a node or instance that others use, too: an exit of its own.

    It calls the ``forward`` of what it stands for, so that it costs nothing.
    """

    def __init__(self, child: Backend) -> None:
        super().__init__(child)
        self.forward = child.forward  # type: ignore[method-assign]
        self.describe = child.describe  # type: ignore[method-assign]


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


class Ended(Standing):
    """A backend with the end of its batches."""

    def __init__(self, child: Backend, run: Forward) -> None:
        """Make it.

        Args:
            child: The backend.
            run: Runs what it is given on a batch, then what is to be called at the end.
        """
        super().__init__(child)
        self.run = run

    def __call__(self, batch: Sequence[Request]) -> Outcomes:
        """Run a batch; after `close` the backend refuses it, and nothing of its end is called."""
        return self.child(batch) if self.child._state != "ready" else super().__call__(batch)

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the backend, then what is to be called at the end."""
        return self.run(self.child, batch)


class Bound(Backend):
    """An instance with what it depends on, which is given to it at each call."""

    def __init__(self, instance: Backend, dependency: Backend) -> None:
        self._guard: AbstractContextManager[bool] | None = None
        self._thread: OwnThread | None = None
        run: Forward | None = None
        inner = instance
        while isinstance(inner, (Guarded, InThread, Ended)):
            if isinstance(inner, Guarded):
                self._guard = inner._lock
            elif isinstance(inner, InThread):
                self._thread = inner.thread
            else:
                run = inner.run
            inner = inner.child
        forward: Callable[[list[Request], Backend], Outcomes] = inner.forward_with_dep  # type: ignore[attr-defined]
        self._forward = forward if run is None else partial(run, forward)
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


class Caller:
    """Calls one child: item by item where its max is 1, filled up or refused below its min."""

    __slots__ = ("child", "pad")

    def __init__(self, child: Backend, *, pad: bool) -> None:
        self.child = child
        self.pad = pad

    def __call__(self, batch: list[Request]) -> list[Exception | None] | None:
        """Give one outcome per item, None when all went well."""
        child = self.child
        if child.max == 1:
            if len(batch) == 1:
                return child(batch)
            outcomes = [child([request]) for request in batch]
            if not any(outcomes):
                return None
            return [None if outcome is None else outcome[0] for outcome in outcomes]
        if child.min > 1:
            weight = weight_of(batch)
            if weight < child.min:
                return self._too_few(batch, weight)
        return child(batch)

    def _too_few(self, batch: list[Request], weight: int) -> list[Exception | None] | None:
        child = self.child
        if not self.pad:
            what = (
                f"only a weight of {weight} is left for {child._label()}, whose min is {child.min}: "
                "the other items of the batch failed or went another way"
            )
            return [
                BatchRangeError(
                    what,
                    weight=weight,
                    min=child.min,
                    max=child.max,
                    node=child._node,
                    backend=child._label(),
                    instance=child._index,
                    hint="Set pad = true to fill such batches up.",
                )
                for _ in batch
            ]
        filled = list(batch)
        step = batch[-1].get("request_size", 1)
        while weight < child.min:
            copy = Filler(batch[-1])
            copy.pop("result", None)
            filled.append(copy)
            weight += step
        outcomes = child(filled)
        return None if outcomes is None else outcomes[: len(batch)]


def caller_of(child: Backend, *, pad: bool) -> Backend | Caller:
    """Give what calls ``child``: itself where its range needs no care."""
    return Caller(child, pad=pad) if child.max == 1 or child.min > 1 else child
