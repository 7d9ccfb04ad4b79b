"""What instances may share, and how progress of long work is shown: parts of an `InitContext`."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ProgressFactory: TypeAlias = Callable[[int | None, str], AbstractContextManager["Progress"]]


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
