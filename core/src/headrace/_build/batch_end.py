"""The end of a batch: what backends asked for with ``context.at_batch_end`` is called there.

One `BatchEnd` belongs to what one thread runs as a whole: an instance, what stands inside a
`BackgroundThread`, what stands inside ``Batching[X]``. Its functions are called when all of that has
returned. Where something of a batch leaves earlier, at an *exit* (a hand-over to another node, thread
or queue), they are called before it as well. Where nobody registers anything, nothing is put around
a backend and no exit is changed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace._build.standing import Ended
from headrace._plan.word import word_of
from headrace._portable import error_text, without_locals
from headrace.errors import BackendError, InstanceLostError, RequestError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace._backend import Backend
    from headrace._checked import Outcomes
    from headrace._plan.element import Element
    from headrace.keys import Request

    Forward = Callable[[list[Request]], Outcomes]


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
        self._error: RequestError | None = None

    def registering(self, backend: Backend) -> Callable[[Callable[[], object]], None]:
        """Give what ``context.at_batch_end`` is while ``backend`` is in its ``init``."""

        def at_batch_end(function: Callable[[], object]) -> None:
            if backend._state != "new":
                raise SetupError(
                    "at_batch_end was called after init",
                    node=backend._node,
                    backend=backend._label(),
                    hint="Call context.at_batch_end in init; what it registers holds for all batches.",
                )
            if not callable(function):
                raise SetupError(f"at_batch_end takes a function, got {function!r}")
            self.functions.append((function, backend))

        return at_batch_end

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
        self._called, self._error = False, None
        try:
            outcomes = forward(batch, *args)
        finally:
            # After Ctrl-C as well: what has begun is waited for before the requests are given back.
            if not self._called:
                self._call()
            error, self._error = self._error, None
        if error is None:
            return outcomes
        given = outcomes or [None] * len(batch)
        try:
            return [error.copy() if one is None else one for one in given]
        finally:
            del error  # see `Entry.take_error`

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
            error = self._error
            return forward(batch) if error is None else [error.copy() for _ in batch]

        backend.forward = leave  # type: ignore[method-assign]

    def _call(self) -> None:
        for function, backend in self.functions:
            try:
                function()
            except Exception as error:  # noqa: BLE001 - it is the outcome of the items
                without_locals(error)
                if isinstance(error, InstanceLostError):
                    backend._lose(error)
                self._error = self._error or _failure(backend, error)


def _failure(backend: Backend, error: Exception) -> RequestError:
    """Make what fails the items of a batch at whose end ``error`` was raised."""
    if isinstance(error, BackendError):
        return backend._located(error.copy())
    what = f"{backend._label()} raised {error_text(error)} at the end of the batch"
    failure: RequestError = BackendError(what)
    failure.__cause__ = error
    return backend._located(failure)


def _edge(root: Element, place: int) -> Element:
    """Give the element before which (``place`` 0) or after which (-1) nothing runs in a batch."""
    element = root
    while element.named is None and (element is root or not element.own_thread):
        inner = word_of(element.cls)._through(element, place)
        if inner is None:
            break
        element = inner
    return element
