"""What stands around a backend and is called in its place: a lock, a thread, the end of its batches.

Functions that backends gave to ``context.at_batch_end`` are called at the end of a batch. One `BatchEnd`
belongs to what one thread runs as a whole: an instance, what stands inside a `BackgroundThread`, what
stands inside ``Batching[X]``. Its functions are called when all of that has returned. Where something of
a batch leaves earlier, at an *exit* (a hand-over to another node, thread or queue), they are called
before it as well. Where nobody registers anything, nothing is put around a backend and no exit is changed.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._plan.word import word_of
from headrace._portable import caused, error_text, without_locals
from headrace.errors import BackendError, InstanceLostError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace._checked import Outcomes
    from headrace._plan.element import Element
    from headrace._scheduling.own_thread import OwnThread
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


class Around(Standing):
    """Base of what runs another backend in a way of its own.

    Attributes:
        run: Runs what it is given on a batch in that way.
    """

    run: Forward

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run the backend in that way."""
        return self.run(self.child, batch)


class Guarded(Around):
    """An instance that several threads can reach: called by one at a time."""

    def __init__(self, child: Backend) -> None:
        super().__init__(child)
        # An instance may stand inside itself: DI[A,A,X]. A thread of its own runs one call at a time.
        alone = nullcontext() if isinstance(child, InThread) else threading.RLock()
        self._lock: AbstractContextManager[Any] = alone

    def run(self, forward: Forward, *args: Any) -> Outcomes:
        """Run something of the instance, alone."""
        with self._lock:
            if self._lost is not None and self._lost.gone:  # by whom no scheduler knows
                raise InstanceLostError(f"{self._label()} was lost", node=self._node)
            return forward(*args)


class InThread(Around):
    """A backend that one thread owns: its ``init``, every ``forward`` and its ``close``."""

    def __init__(self, child: Backend, thread: OwnThread, name: str) -> None:
        super().__init__(child)
        self.thread, self.run = thread, thread.call
        self._name = name


class Ended(Around):
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


class BatchEnd:
    """What is called at the end of each batch that one thread runs as a whole.

    Attributes:
        functions: What is called, in order, each with the backend that registered it.
        sealed: Whether all that it stands around is built.
    """

    def __init__(self) -> None:
        self.functions: list[tuple[Callable[[], object], Backend]] = []
        self.sealed = False
        self._exits: list[tuple[Backend, Element]] = []
        self._called = False  # and nothing has run since
        self._errors: list[Exception] = []  # of this batch; the first is the outcome of its items

    def register(self, backend: Backend, function: Callable[[], object]) -> None:
        """Do what ``context.at_batch_end`` does for ``backend``, which is in its ``init``."""
        if backend._state != "new":
            hint = "Call context.at_batch_end in init; what it registers holds for all batches."
            raise backend._located(SetupError("at_batch_end was called after init", hint=hint))
        if not callable(function):
            raise SetupError(f"at_batch_end takes a function, got {function!r}")
        self.functions.append((function, backend))

    def exit(self, backend: Backend, element: Element) -> None:
        """Take note of a backend that lets something of a batch leave.

        Args:
            backend: The backend; nobody else may use it.
            element: What it was built from.
        """
        if self.sealed and self.functions:
            self._open(backend, last=False)
        else:
            self._exits.append((backend, element))

    def around(self, built: Backend, root: Element | None = None) -> Backend:
        """Give what runs ``built`` and the end of its batches; itself where nobody registered.

        Args:
            built: All that the batch end stands around.
            root: What it was built from.
        """
        self.sealed = True
        if not self.functions:
            return built
        edges = [] if root is None else [_edge(root, 0), _edge(root, -1)]
        for backend, element in self._exits:
            if element not in edges[:1]:  # else nothing has run that it could let go
                self._open(backend, last=element in edges[1:])
        return Ended(built, self.run)

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Take back what was registered within, when what is built there fails and is closed."""
        count = len(self.functions)
        try:
            yield
        except BaseException:
            del self.functions[count:]
            raise

    def run(self, forward: Callable[..., Outcomes], batch: list[Request], *args: Any) -> Outcomes:
        """Run a batch and its end."""
        self._called, self._errors = False, []
        try:
            outcomes = forward(batch, *args)
        finally:
            # After Ctrl-C as well: what has begun is waited for before the requests are given back.
            if not self._called:
                self._call()
            errors, self._errors = self._errors, []
        if not errors:
            return outcomes
        given = outcomes or [None] * len(batch)
        try:
            return [errors[0] if one is None else one for one in given]
        finally:
            del errors  # see `Entry.take_error`

    def _open(self, backend: Backend, *, last: bool) -> None:
        """Let the functions be called before something leaves through ``backend``.

        Args:
            backend: The exit.
            last: Whether nothing runs after it in the same batch.
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
    """Make what fails the items of a batch at whose end ``error`` was raised."""
    if issubclass(type(error), BackendError):
        return backend._wrap(error)
    what = f"{backend._label()} raised {error_text(error)} at the end of the batch"
    return backend._located(caused(BackendError(what), error))


def _edge(root: Element, place: int) -> Element:
    """Give the element before which (``place`` 0) or after which (-1) nothing runs in a batch."""
    element = root
    while element.named is None and (element is root or not element.own_thread):
        inner = word_of(element.cls)._through(element, place)
        if inner is None:
            break
        element = inner
    return element
