"""Working with errors of any class, whose methods may raise: causes, and what tracebacks keep."""

from __future__ import annotations

import builtins
import sys
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from headrace.errors import BackendError, NoMemoryError, is_out_of_memory

Error = TypeVar("Error", bound=BaseException)


def none_if_all_ok(outcomes: list[Error | None]) -> list[Error | None] | None:
    """Return the outcomes of a batch, None where no item failed. A user's error may be false."""
    for outcome in outcomes:
        if outcome is not None:
            return outcomes
    return None


def is_abandoned(error: BaseException | None) -> bool:
    """Tell whether an error says that a backend still runs on its request.

    An attribute that raises says no.
    """
    try:
        return getattr(error, "abandoned", False) is True
    except Exception:  # a user's class may have a property that raises
        return False


def set_abandoned(error: BaseException, abandoned: bool) -> None:
    """Say in an error whether a backend still runs on its request."""
    error.abandoned = abandoned  # type: ignore[attr-defined]


def with_cause(error: Error, by: BaseException | None) -> Error:
    """Give an error with its cause, as ``raise error from by`` sets it."""
    error.__cause__ = by
    return error


def backend_error(message: str, by: BaseException, **places: Any) -> BackendError:
    """Make the error of a request for what a backend has raised."""
    cls = NoMemoryError if is_out_of_memory(by) else BackendError
    return with_cause(cls(message, **places), by)


def caught(error: Error) -> Error:
    """Clear an error that was just caught.

    One that was caught here before loses its traceback, which keeps a batch.
    """
    # Each time an error object is raised, Python puts the new traceback before the old one.
    codes = [frame.f_code for frame, _ in traceback.walk_tb(_part(error, "__traceback__"))]
    if codes.count(codes[0]) > 1:
        BaseException.with_traceback(error, None)
    return without_locals(error)


def without_locals(error: Error) -> Error:
    """Clear the local variables in the tracebacks of an error and its causes. Give the error.

    While the error lives, they would live: after an out-of-memory error that is the batch itself.
    Files and lines stay. In Python's development mode (``python -X dev``) the variables stay as
    well.
    """
    if sys.flags.dev_mode:
        return error
    group = getattr(builtins, "BaseExceptionGroup", ())  # since Python 3.11
    visited: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        linked = left.pop()
        if (
            linked is not None
            and id(linked) not in visited
            and (linked is error or _is_over(linked))
        ):
            visited.add(id(linked))
            traceback.clear_frames(_part(linked, "__traceback__"))
            left += [_part(linked, "__cause__"), _part(linked, "__context__")]
            left += _part(linked, "exceptions") if issubclass(type(linked), group) else ()
    return error


def _is_over(error: BaseException) -> bool:
    """Tell whether the outermost frame of an error's traceback has ended, so it is no caller's."""
    last: TracebackType | None = _part(error, "__traceback__")
    try:
        if last is not None:
            last.tb_frame.clear()
    except RuntimeError:
        return False
    return True


_part: Callable[[BaseException, str], Any] = object.__getattribute__
"""Reads an attribute of an error, past any ``__getattribute__`` of its class."""
