"""Errors of others: their text, what of them can be pickled, and how they are made again."""

from __future__ import annotations

import builtins
import pickle
import sys
import traceback
from typing import Any

__all__ = ["portable", "rebuild", "told", "twin_of", "without_locals"]


def told(error: BaseException) -> str:
    """Give type and text of an error, whatever its ``__str__`` does."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as broken:  # noqa: BLE001 - foreign code
        return f"{type(error).__name__} (its __str__ raised {type(broken).__name__})"


def without_locals(error: BaseException) -> None:
    """Let the tracebacks of an error and of its causes hold no local variables any more.

    Whoever keeps the error would keep them: after an out-of-memory error that is the batch itself.
    Files and lines stay. In Python's development mode (``python -X dev``) the variables stay, too.
    """
    if sys.flags.dev_mode:
        return
    group = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen and (one is error or _is_over(one)):
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)  # passes over frames that still run
            left += [one.__cause__, one.__context__]
            left += one.exceptions if isinstance(one, group) else ()


def _is_over(error: BaseException) -> bool:
    """Tell whether the function that caught an error has ended; else it is that of a caller."""
    try:
        if error.__traceback__ is not None:
            error.__traceback__.tb_frame.clear()
    except RuntimeError:
        return False
    return True


def rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> Any:
    """Make an error again from what ``__reduce__`` gave, without calling its ``__init__``."""
    error = cls.__new__(cls, *args)
    error.args = args  # an OSError with an __init__ of its own leaves them to that
    cause = state.pop("__cause__", None)
    error.__dict__.update(state)
    error.__cause__ = cause
    return error


def twin_of(error: BaseException) -> Any:
    """Make another error of the same content, which shows where the first was raised, and why."""
    twin = rebuild(type(error), error.args, dict(error.__dict__))
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


def portable(value: Any) -> Any:
    """Give ``value`` itself if it can be pickled and made again, else a stand-in with its text.

    An exception whose ``__init__`` takes more than its text is pickled well, and fails only where
    it is made again.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if type(value) in (list, tuple):
        return type(value)(map(portable, value))
    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301 - what was pickled just here
    except Exception:  # noqa: BLE001 - any failure of foreign code means the same here
        return RuntimeError(told(value)) if isinstance(value, BaseException) else _shown(value)
    return value


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - foreign code
        return object.__repr__(value)
