"""What a backend is given at ``init``: where it stands and what it may use."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from headrace._backend import Backend

    ProgressFactory: TypeAlias = Callable[[int | None, str], AbstractContextManager["Progress"]]

__all__ = ["InitContext", "Progress", "Shared", "no_progress", "showing_progress", "shown_progress"]

T = TypeVar("T")


class Progress(Protocol):
    """A progress bar, or the silent one."""

    def __call__(self, done: int) -> None:
        """Say that ``done`` more units are done."""


def _silent(done: int) -> None:
    """Show nothing."""


def no_progress(total: int | None, unit: str) -> AbstractContextManager[Progress]:
    """Show the progress of no work."""
    return nullcontext(_silent)


_shown: ContextVar[ProgressFactory] = ContextVar("headrace.progress", default=no_progress)


def shown_progress() -> ProgressFactory:
    """Give what ``progress`` is in the contexts of a pipeline that is built here and now."""
    return _shown.get()


@contextmanager
def showing_progress(progress: ProgressFactory) -> Iterator[None]:
    """Show the progress of long work in ``init`` with ``progress``, for pipelines built within."""
    before = _shown.set(progress)
    try:
        yield
    finally:
        _shown.reset(before)


def _never() -> bool:
    return False


def _no_batch(function: Callable[[], object]) -> None:
    """Take note of nothing: outside of a pipeline no batch ends."""


def _no_build(expression: str) -> Backend:
    raise SetupError(f"there is no pipeline here to build {expression!r} in")


class Shared:
    """A store by key: of a node, of one of its instances, or of one copy of an ``IoC``.

    It is closed with what it belongs to: what has a ``close`` method is closed, newest first.

    Args:
        outer: The store in which `get` looks for what is not in this one; None for none.
    """

    def __init__(self, outer: Shared | None = None) -> None:
        self._outer = outer
        self._lock = threading.RLock()
        self._items: dict[object, Any] = {}

    def get(self, key: object, default: Any = None) -> Any:
        """Give what is stored under ``key``, here or in the stores around; else ``default``.

        It does not wait for what another thread is making.
        """
        store: Shared | None = self
        while store is not None:
            if key in (items := store._items):
                return items[key]
            store = store._outer
        return default

    def get_or_create(self, key: object, factory: Callable[[], T]) -> T:
        """Give what this store has under ``key``; the first one to ask makes it with ``factory``.

        The others wait until it is made. An error of the factory is raised and stores nothing.
        Unlike `get` it does not look into the stores around.
        """
        with self._lock:
            if key not in self._items:
                self._items[key] = factory()
            value: T = self._items[key]
            return value

    def close(self) -> None:
        """Close what is stored, newest first: all of it, then the first error is raised."""
        with self._lock:
            items, self._items = list(self._items.values()), {}
        with ExitStack() as stack:
            for item in items:
                close = getattr(item, "close", None)
                if callable(close):
                    stack.callback(close)


@dataclass(frozen=True)
class InitContext:
    """Where an instance of a backend stands, and what it may use in ``init``.

    Fields are only ever added.

    Attributes:
        node_name: The node, ``"main"`` when the configuration has no tables.
        instance_index: Which of the node's instances this is, from 0.
        instance_num: How many instances the node has.
        device: What the node's key ``device`` says for this instance, as text (``"cuda:0"``); None
            when unset.
        min, max: The node's keys ``min`` and ``max``, in weights; None when unset. They narrow the
            range of the class, whatever the backend does.
        batch_sizes: The node's key ``batch_sizes``, in weights; None when unset.
        threads: How many threads this instance may use for its computation, at least 1: its share of
            ``[global] threads``. Pass it to the library.
        children: The backends in ``[ ]``, built and initialised, in the order of writing. Call them,
            ``child(batch)``; they are closed for you.
        prefixes: Per child the prefix before it, as (positional, {key: value}).
        logger: A logger named after the backend; it has no handler of its own.
        shared: One store per node: ``shared.get_or_create(key, factory)`` gives all instances of the
            node one object, which is closed with the node; ``shared.get(key, default)`` gives what
            is there.
        instance: The same for this instance alone: a stream, a memory pool. It is closed after all
            backends of the instance, in the thread of the instance if it has one. Outside of any
            instance, for what is being built there.
        scope: The same for one copy of the innermost ``IoC`` around: what its first phase stores,
            later elements and the front find. `Shared.get` looks outwards, up to the store of the
            instance. Outside of any ``IoC`` it is `instance` itself.
        at_batch_end: ``at_batch_end(function)``, in ``init`` only: ``function()`` is called once per
            batch, in the thread that ran it, after the outermost backend has returned and before
            anything of the batch leaves the instance; in the order of registration. What it raises
            fails every item that has not failed yet, and the instance goes on.
        allow_import: False when the configuration was loaded so: a backend that brings in code by
            path (a module, a plugin library) refuses as well.
        progress: ``progress(total, unit)`` gives a context manager for work that takes long; call
            what it yields with the number of units done since the last call. ``total`` may be None.
            ``headrace run`` shows it on a terminal; elsewhere it is silent.
        cancelled: Tells whether the caller gave up, so that long work can end early: ask it between
            steps, and raise.
        build: ``build(expression)`` makes a backend from an expression, as ``Reflect`` does. It
            is closed after this backend, which must not close it.
    """

    node_name: str = "main"
    instance_index: int = 0
    instance_num: int = 1
    device: str | None = None
    min: int | None = None
    max: int | None = None
    batch_sizes: tuple[int, ...] | None = None
    threads: int = 1
    children: tuple[Backend, ...] = ()
    prefixes: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = ()
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("headrace.backend"))
    shared: Shared = field(default_factory=Shared)
    progress: ProgressFactory = no_progress
    cancelled: Callable[[], bool] = _never
    build: Callable[[str], Backend] = _no_build
    instance: Shared = field(default_factory=Shared)
    scope: Shared = None  # type: ignore[assignment]
    at_batch_end: Callable[[Callable[[], object]], None] = _no_batch
    allow_import: bool = True

    def __post_init__(self) -> None:
        if self.scope is None:
            object.__setattr__(self, "scope", self.instance)
