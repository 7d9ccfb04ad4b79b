"""Backends that stand around another one and are called in its place.

A thread, a dependency, the end of a batch.

Functions that backends gave to ``context.batch.at_end`` are called at the end of a batch. One
`BatchEnd` belongs to all that one thread runs as a whole: an instance, the inside of a
`BackgroundThread`. Its functions are called when that whole has returned. Where requests of a batch
leave earlier, at an *exit* (a hand-over to another node, thread or queue), the functions are called
before the hand-over as well. Where no backend registers a function, nothing is put around a backend
and no exit is changed.
"""

from __future__ import annotations

import time
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from headrace._language.contract.backend import Backend
from headrace._language.plan.ways import way_through
from headrace._run.contract.checked import PENDING
from headrace._run.steps.threads import wake
from headrace._run.steps.tracebacks import backend_error, without_locals
from headrace._texts import error_text
from headrace.errors import BackendError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace._language.plan.element import Element
    from headrace._run.contract.checked import Outcomes
    from headrace._run.steps.threads import OwnThread
    from headrace.keys import Request

    Forward = Callable[..., Outcomes]


class Around(Backend):
    """Base of the backends that run another one in a way of their own: in a thread, ...

    Attributes:
        run: Calls a function, its first argument, with the others in that way.
    """

    run: Forward
    keeps = _is_last = True  # what it stands around has its own say

    def __init__(self, child: Backend, run: Forward, name: str = "") -> None:
        self.child, self.run = child, run
        self.min, self.max, self.rerun = child.min, child.max, child.rerun  # type: ignore[misc]
        self._name, self._node, self._index = name or child._label(), child._node, child._index
        self._liveness = child._liveness
        self._bounded, self._takes_one = child._bounded, child._takes_one
        self._state = "ready"
        self._has_emitted = child._has_emitted  # type: ignore[method-assign]

    def _last_label(self, request: Request) -> str:
        return self.child._last_label(request)

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the other backend in that way."""
        return self.run(self.child, batch)


class InThread(Around):
    """A backend that one thread owns: its ``init``, every ``forward`` and its ``close``."""

    def __init__(self, child: Backend, thread: OwnThread, name: str) -> None:
        super().__init__(child, thread.call, name)
        self.thread = thread


class WithBatchEnd(Around):
    """A backend after whose batches the functions of a `BatchEnd` are called."""

    def __init__(self, child: Backend, batch_end: BatchEnd) -> None:
        super().__init__(child, batch_end.run)
        self.batch_end = batch_end

    def __call__(self, batch: Sequence[Request]) -> Outcomes:
        """Run a batch; a closed backend refuses it, and the functions of the end are not called."""
        return self.child(batch) if self.child._state != "ready" else super().__call__(batch)


class BatchEnd:
    """The functions that are called at the end of each batch that one thread runs as a whole.

    Attributes:
        functions: The functions in the order of their calls, each with the backend that registered
            it.
        rested: What the callers of the batch before sleep on. They are woken before the functions
            wait for a device.
        launch_s: How long it takes at least until the functions are called.
        is_watched: Whether the timer will call `look`.
    """

    def __init__(self) -> None:
        self.functions: list[tuple[Callable[[], object], Backend]] = []
        self._exits: list[tuple[Backend, Element]] = []
        self.rested: deque[Any] = deque()
        self.launch_s = inf
        self.is_watched = False
        self._called = False  # True when the functions were called and no backend has run since
        # Of this batch; the first one is the outcome of its items.
        self._errors: list[Exception] = []

    def register(self, backend: Backend, function: Callable[[], object]) -> None:
        """Register a function for ``backend``: this is ``context.batch.at_end`` of its ``init``."""
        if backend._state != "new":
            hint = "Call context.batch.at_end in init; what it registers holds for all batches."
            raise SetupError("context.batch.at_end was called after init", hint=hint)
        if not callable(function):
            raise SetupError(f"context.batch.at_end takes a function, got {function!r}")
        self.functions.append((function, backend))

    def exit(self, backend: Backend, element: Element) -> None:
        """Add an exit: a backend through which requests leave before the batch has ended.

        Args:
            backend: The backend, which no other expression uses: its ``forward`` may be replaced.
            element: The element from which it was built.
        """
        self._exits.append((backend, element))

    def around(self, built: Backend, root: Element) -> Backend:
        """Return a backend that runs ``built`` and then the functions.

        ``built`` itself where there are none.

        Args:
            built: The backend around which the batch end stands.
            root: The element from which ``built`` was built.
        """
        if not self.functions:
            return built
        first, last = ([*way_through(root, place, threads=False)][-1] for place in (0, -1))
        for backend, element in self._exits:
            if element is not first:  # before the very first element there is nothing to end yet
                self._run_before_exit(backend, last=element is last)
        return WithBatchEnd(built, self)

    def run(self, forward: Callable[..., Outcomes], batch: list[Request], *args: Any) -> Outcomes:
        """Call ``forward`` with a batch, then the functions that the last exit has not called."""
        self._called, self._errors = False, []
        begun = time.perf_counter()
        try:
            outcomes = forward(batch, *args)
        finally:
            self.launch_s = min(time.perf_counter() - begun, 1.02 * self.launch_s)
            self.wake()
            # The functions are called after Ctrl-C as well: a device may still work on the
            # requests, and must have ended before the callers get them back.
            if not self._called:
                self._call()
            errors, self._errors = self._errors, []
        if not errors:
            return outcomes
        answers = outcomes or [None] * len(batch)
        try:
            return [
                errors[0] if outcome is None or outcome is PENDING else outcome
                for outcome in answers
            ]
        finally:
            del errors  # see `Entry.take_error`

    def wake(self) -> None:
        """Wake the callers of the batch before."""
        while self.rested:
            try:
                wake(self.rested.popleft())
            except IndexError:  # the other thread was there first
                return

    def look(self) -> None:
        """Wake them in the timer's thread, if the batch has not come that far."""
        self.is_watched = False
        self.wake()

    def _run_before_exit(self, backend: Backend, *, last: bool) -> None:
        """Let the functions be called before requests leave through ``backend``.

        Args:
            backend: The exit.
            last: Whether no element of the batch runs after the exit.
        """
        forward = backend.forward

        def leave(batch: list[Request]) -> Outcomes:
            if not self._called:
                self._call()
                self._called = last
            return [self._errors[0]] * len(batch) if self._errors else forward(batch)

        backend.forward = leave  # type: ignore[method-assign]

    def _call(self) -> None:
        for function, backend in self.functions:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - it is the outcome of the items
                self._errors.append(_failure(backend, without_locals(error)))


def _failure(backend: Backend, error: Exception) -> Exception:
    """Make the error of the items of a batch at whose end ``error`` was raised."""
    if issubclass(type(error), BackendError):
        return backend._wrap(error)
    message = f"{backend._label()} raised {error_text(error)} at the end of the batch"
    return backend._locate(backend_error(message, error))
