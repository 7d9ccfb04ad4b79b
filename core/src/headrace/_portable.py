"""Errors between processes: what of them can be pickled, and how they are made again."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["portable", "rebuild"]


def rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Make an error again from what ``__reduce__`` gave, without calling its ``__init__``."""
    error = cls.__new__(cls, *args)
    error.args = args  # an OSError with an __init__ of its own leaves them to that
    cause = state.pop("__cause__", None)
    error.__dict__.update(state)
    error.__cause__ = cause
    return error


def portable(value: Any) -> Any:
    """Give ``value`` itself if it can be pickled, else a stand-in with the same text."""
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - any failure of foreign __reduce__ means the same here
        if isinstance(value, BaseException):
            return RuntimeError(f"{type(value).__name__}: {value}")
        return repr(value)
    return value
