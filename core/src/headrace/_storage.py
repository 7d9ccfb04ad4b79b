"""Values per request, for containers that keep state between calls."""

from __future__ import annotations

import threading
from typing import Any

from headrace.errors import RequestNotFoundError


class _Values:
    __slots__ = ("items", "lock")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.items: dict[str, Any] = {}


class KVStorage:
    """A table ``request_id → key → value`` that any thread may use.

    One lock guards the table and one each request, so that requests do not wait for each other.
    Every method but `add` and `contains` raises RequestNotFoundError for an unknown request.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[Any, _Values] = {}

    def add(self, request_id: Any) -> None:
        """Begin a request.

        Raises:
            KeyError: It is there already.
        """
        with self._lock:
            if request_id in self._requests:
                raise KeyError(f"request {request_id!r} is there already")
            self._requests[request_id] = _Values()

    def insert(self, request_id: Any, key: str, value: Any) -> None:
        """Store a value under a new key.

        Raises:
            KeyError: The key is there already.
            RequestNotFoundError: The request is unknown.
        """
        values = self._find(request_id)
        with values.lock:
            if key in values.items:
                raise KeyError(f"request {request_id!r} has the key {key!r} already")
            values.items[key] = value

    def insert_or_assign(self, request_id: Any, key: str, value: Any) -> None:
        """Store a value, whether the key is there or not.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        values = self._find(request_id)
        with values.lock:
            values.items[key] = value

    def get(self, request_id: Any, key: str, default: Any = None) -> Any:
        """Give the value of a key, or ``default``.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        values = self._find(request_id)
        with values.lock:
            return values.items.get(key, default)

    def contains(self, request_id: Any, key: str | None = None) -> bool:
        """Tell whether a request is there, and has ``key`` if one is given."""
        with self._lock:
            values = self._requests.get(request_id)
        if values is None or key is None:
            return values is not None
        with values.lock:
            return key in values.items

    def items(self, request_id: Any) -> dict[str, Any]:
        """Give a copy of all keys and values of a request.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        values = self._find(request_id)
        with values.lock:
            return dict(values.items)

    def remove(self, request_id: Any) -> None:
        """End a request and forget its values.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        with self._lock:
            if self._requests.pop(request_id, None) is None:
                raise RequestNotFoundError(request_id)

    def __len__(self) -> int:
        with self._lock:
            return len(self._requests)

    def _find(self, request_id: Any) -> _Values:
        with self._lock:
            values = self._requests.get(request_id)
        if values is None:
            raise RequestNotFoundError(request_id)
        return values
