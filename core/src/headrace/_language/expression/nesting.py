"""How deep expressions and configurations may be nested, and room on the call stack for that."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from headrace.errors import ConfigError, Problem

MAX_DEPTH = 100
"""How deep tables, files and expressions may be nested."""

TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"

_ROOM = 750
"""How many frames reading, planning or building a tree of the greatest depth may need."""

T = TypeVar("T")


def with_room(function: Callable[[], T]) -> T:
    """Call ``function``, which recurses, however deep the stack of the caller is: in a new thread if need be.

    Trees and plans are at most `MAX_DEPTH` levels deep, so that the stack of a new thread is deep enough.
    """
    room, frame = sys.getrecursionlimit(), sys._getframe()
    while room >= _ROOM and (below := frame.f_back) is not None:
        room, frame = room - 1, below
    if room >= _ROOM:
        return _call_quietly(function)
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(_call_quietly(function))
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            outcome.set_exception(error)

    # An executor would wait for its thread when an interrupt leaves it. Here an interrupt ends the wait.
    threading.Thread(target=run, name="headrace-room", daemon=True).start()
    return outcome.result()


def _call_quietly(function: Callable[[], T]) -> T:
    try:
        return function()
    except RecursionError as error:
        what = "the recursion limit of this process leaves no room for this configuration"
        hint = f"Nest less deep, or raise sys.setrecursionlimit({sys.getrecursionlimit()})."
        raise ConfigError(Problem("nesting", what, hint=hint)) from error
