"""How deep expressions and configurations may be nested, and room on the call stack for that."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar, cast

from headrace._run.steps.threads import run_in_pool
from headrace.errors import ConfigError, Problem

MAX_DEPTH = 100
"""How deep tables, files and expressions may be nested."""

TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"

_ROOM = 750
"""How many frames reading, planning or building a tree of the greatest depth may need."""

T = TypeVar("T")


def with_room(function: Callable[[], T]) -> T:
    """Call ``function``, which recurses, in another thread where the stack of the caller is deep.

    Trees and plans are at most `MAX_DEPTH` levels deep: the stack of another thread is deep enough.
    """
    room, frame = sys.getrecursionlimit(), sys._getframe()
    while room >= _ROOM and (below := frame.f_back) is not None:
        room, frame = room - 1, below
    try:
        return function() if room >= _ROOM else cast("T", run_in_pool(function))
    except RecursionError as error:
        message = "the recursion limit of this process leaves no room for this configuration"
        hint = f"Nest less deep, or raise sys.setrecursionlimit({sys.getrecursionlimit()})."
        raise ConfigError(Problem("nesting", message, hint=hint)) from error
