"""How errors are pickled and copied, whatever their classes do."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

from headrace._texts import error_text, repr_of

Error = TypeVar("Error", bound=BaseException)


def rebuild(cls: type[Error], args: tuple[Any, ...], state: dict[str, Any]) -> Error:
    """Make an error again from what ``__reduce__`` gave, without calling its ``__init__``."""
    error = cls.__new__(cls, *args)
    error.args = args  # a subclass of OSError with an own __init__ would have empty args
    cause = state.pop("__cause__", None)
    error.__dict__.update(state)
    error.__cause__ = cause
    return error


def twin_of(error: Error) -> Error:
    """Make a second error of the same content, with the traceback and the cause of the first."""
    twin = rebuild(type(error), error.args, dict(error.__dict__))
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


def portable(value: Any) -> Any:
    """Return ``value`` itself if it can be pickled and unpickled, else a stand-in with its text.

    An exception whose ``__init__`` takes more than its text is pickled, and raises when unpickled.
    """
    if value is None or issubclass(type(value), (str, int)):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(portable, value))
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - pickled in this very line
    except Exception:  # the value's class may raise anything
        is_error = isinstance(value, BaseException)
        return RuntimeError(error_text(value)) if is_error else repr_of(value)
    return value
