"""Values per request, for containers that keep state between calls."""

from __future__ import annotations

from typing import Any

from headrace.errors import RequestError

__all__ = ["KVStorage", "RequestNotFoundError"]


class RequestNotFoundError(RequestError, KeyError):
    """`KVStorage` has no such request.

    Attributes:
        request_id: The identifier that is unknown.
    """

    code = "request_not_found"

    def __init__(self, request_id: object = None) -> None:
        self.request_id = request_id
        super().__init__(f"no request {request_id!r} in this storage; add() it first")


class KVStorage:
    """A table ``request_id → key → value`` that any thread may use.

    It takes no lock: each method changes a dict in one step of the interpreter. Every value lies in a list of
    its own: of two threads that insert the same key, each sees by the list whose value was stored. Every
    method but `add` and `contains` raises RequestNotFoundError for an unknown request.
    """

    def __init__(self) -> None:
        self._requests: dict[Any, dict[str, list[Any]]] = {}

    def add(self, request_id: Any) -> None:
        """Begin a request.

        Raises:
            KeyError: The request is there already.
        """
        values: dict[str, list[Any]] = {}
        if self._requests.setdefault(request_id, values) is not values:
            raise KeyError(f"request {request_id!r} is there already")

    def insert(self, request_id: Any, key: str, value: Any) -> None:
        """Store a value under a new key.

        Raises:
            KeyError: The key is there already.
            RequestNotFoundError: The request is unknown.
        """
        cell = [value]
        if self._find(request_id).setdefault(key, cell) is not cell:
            raise KeyError(f"request {request_id!r} has the key {key!r} already")

    def insert_or_assign(self, request_id: Any, key: str, value: Any) -> None:
        """Store a value, whether the key is there or not.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        self._find(request_id)[key] = [value]

    def get(self, request_id: Any, key: str, default: Any = None) -> Any:
        """Return the value of a key, or ``default``.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        cell = self._find(request_id).get(key)
        return default if cell is None else cell[0]

    def contains(self, request_id: Any, key: str | None = None) -> bool:
        """Tell whether a request is there, and has ``key`` if one is given."""
        values = self._requests.get(request_id)
        return values is not None and (key is None or key in values)

    def items(self, request_id: Any) -> dict[str, Any]:
        """Return a copy of all keys and values of a request.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        return {key: cell[0] for key, cell in self._find(request_id).copy().items()}

    def remove(self, request_id: Any) -> None:
        """End a request and forget its values.

        Raises:
            RequestNotFoundError: The request is unknown.
        """
        if self._requests.pop(request_id, None) is None:
            raise RequestNotFoundError(request_id)

    def __len__(self) -> int:
        return len(self._requests)

    def _find(self, request_id: Any) -> dict[str, list[Any]]:
        values = self._requests.get(request_id)
        if values is None:
            raise RequestNotFoundError(request_id)
        return values
