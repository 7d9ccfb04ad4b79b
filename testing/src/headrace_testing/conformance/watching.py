"""A request that records which of its keys are read and written."""

from __future__ import annotations

from collections.abc import KeysView
from typing import Any

DECOY = "a key that nobody declares"
"""A key in watched requests: a backend that reads it has copied the whole request, or walked through it."""

_MISSING = object()


class WatchedRequest(dict[str, Any]):
    """A dict that records which keys are read before they are written, and which keys are written.

    Attributes:
        came: The content at first.
        read: The keys that were read before a value was written under them.
        written: The keys that were set or removed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.came = dict(super().items())
        self.read: set[str] = set()
        self.written: set[str] = set()

    @property
    def walked(self) -> bool:
        """Whether a backend has copied the request, or walked through all its keys."""
        return DECOY in self.read

    def _look(self, key: str) -> None:
        if key not in self.written:
            self.read.add(key)

    def __getitem__(self, key: str) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, as dict does."""
        self._look(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._look(key)  # type: ignore[arg-type]
        return super().__contains__(key)

    def __iter__(self) -> Any:
        # This override lets `dict(request)` ask for each key: for a plain dict it would take a shortcut.
        return super().__iter__()

    def keys(self) -> Any:
        """Return all keys, as dict does: to ask whether one is there is to read it."""
        return KeysView(self)

    def items(self) -> Any:
        """Return all pairs, as dict does."""
        self._look_at_all()
        return super().items()

    def values(self) -> Any:
        """Return all values, as dict does."""
        self._look_at_all()
        return super().values()

    def copy(self) -> Any:
        """Return a plain copy."""
        self._look_at_all()
        return dict(super().items())

    def __or__(self, other: Any) -> Any:
        return {**self.copy(), **other}

    def __ror__(self, other: Any) -> Any:
        return {**other, **self.copy()}

    def __eq__(self, other: object) -> bool:
        self._look_at_all()
        return super().__eq__(other)

    __hash__ = None

    def _look_at_all(self) -> None:
        for key in list(super().__iter__()):
            self._look(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.written.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        super().__delitem__(key)
        self.written.add(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Return a value, or set it, as dict does."""
        self._look(key)
        if not super().__contains__(key):
            self.written.add(key)
        return super().setdefault(key, default)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        """Remove a key, as dict does."""
        self._look(key)
        if super().__contains__(key):
            self.written.add(key)
        return super().pop(key) if default is _MISSING else super().pop(key, default)

    def popitem(self) -> tuple[str, Any]:
        """Remove the last key, as dict does."""
        key, value = super().popitem()
        self._look(key)
        self.written.add(key)
        return key, value

    def clear(self) -> None:
        """Remove all keys, as dict does."""
        self.written.update(super().keys())
        super().clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set several keys, as dict does."""
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __reduce__(self) -> Any:
        return dict, (self.copy(),)
