"""The stores that backends share: of a pipeline, a node, an instance, a copy of an ``IoC``."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from headrace.errors import ClosedError

T = TypeVar("T")

_log = logging.getLogger("headrace.build")


class Shared:
    """A store by key: of a pipeline, a node, an instance, or one copy of an ``IoC``.

    It is closed together with its owner: every stored object that has a ``close`` method is closed,
    newest first.

    Args:
        outer: The store in which `get` looks for keys that this one does not have. None for none.
    """

    def __init__(self, outer: Shared | None = None) -> None:
        self._outer = outer
        self._lock = threading.RLock()
        self._items: dict[object, Any] = {}
        self._closed = False

    def get(self, key: object, default: Any = None) -> Any:
        """Return the object under ``key`` in this store or an outer one, else ``default``.

        It does not wait for an object that another thread is making.
        """
        store: Shared | None = self
        while store is not None:
            if key in (items := store._items):
                return items[key]
            store = store._outer
        return default

    def get_or_create(self, key: object, factory: Callable[[], T]) -> T:
        """Return the object under ``key`` in this store, which the first caller's factory makes.

        Other callers wait until it is made. An error of the factory is raised, and nothing is
        stored. Once the store is closed nothing more is made: ClosedError. Unlike `get` this does
        not look into outer stores.
        """
        with self._lock:
            if key not in self._items:
                if self._closed:
                    raise ClosedError(f"the store that was to keep {key!r} is closed")
                self._items[key] = factory()
            value: T = self._items[key]
            return value

    def _end_waits(self) -> None:
        """Let no request wait any more for what a store of a pipeline holds."""
        for item in list(self._items.values()):
            if callable(end := getattr(item, "end_waits", None)):
                try:
                    end()
                except Exception as error:  # the others must end as well
                    _log.warning("end_waits of %s failed", type(item).__name__, exc_info=error)

    def _statistics(self, among: Collection[str]) -> dict[str, dict[str, Any]]:
        """Return the ``statistics()`` of stored objects by kind, not in ``among``, and name."""
        by_kind: dict[str, dict[str, Any]] = {}
        for key, item in list(self._items.items()):
            match key:
                case (str(kind), str(name)) if kind not in among and hasattr(item, "statistics"):
                    by_kind.setdefault(kind, {})[name] = item.statistics()
        return by_kind

    def close(self) -> None:
        """Close all stored objects, newest first, and raise the first error afterwards.

        An interrupt is raised rather than an error. All other errors are logged.
        """
        with self._lock:
            items, self._items, self._closed = list(self._items.values()), {}, True
        errors: list[BaseException] = []
        for item in reversed(items):
            try:
                close = getattr(item, "close", None)
                if callable(close):
                    close()
            except BaseException as error:  # the others must be closed as well
                errors.append(error)
        errors.sort(key=lambda raised: isinstance(raised, Exception))
        for other in errors[1:]:
            _log.warning("closing what a store holds failed", exc_info=other)
        if errors:
            raise errors[0]
