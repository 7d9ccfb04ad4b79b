"""Tracebacks as users need them: their own frames and those of a backend, not those between."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

__all__ = ["without_inner_frames"]

_INNER = ("headrace._", "headrace.words.", "contextlib")
"""How the names of modules begin whose frames say nothing to a user."""

E = TypeVar("E", bound=BaseException)


def without_inner_frames(error: E) -> E:
    """Give an error, and its cause, without the frames of Headrace in their tracebacks.

    Between the call that asked for a pipeline and the ``init`` that failed there are some dozens.
    """
    for one in (error, error.__cause__):
        if one is not None:
            one.__traceback__ = _outer(one.__traceback__)
    return error


def _outer(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while traceback is not None:
        if not traceback.tb_frame.f_globals.get("__name__", "").startswith(_INNER):
            kept.append(traceback)
        traceback = traceback.tb_next
    following: TracebackType | None = None
    for one in reversed(kept):
        following = TracebackType(following, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return following
