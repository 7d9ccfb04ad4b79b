"""A blocking call in a coroutine: it is allowed, and warned of once in a process."""

from __future__ import annotations

import sys
import warnings

from headrace._run.threads import took_token

_INSIDE = "headrace."
_unsaid = [None]


def warn_in_coroutine() -> None:
    """Warn where the calling thread runs an event loop, which a call that waits would stop."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not _unsaid or asyncio._get_running_loop() is None:
        return
    if "ipykernel" in sys.modules:  # a notebook runs its cells in a loop of its own
        return
    if took_token(_unsaid):
        what = "a pipeline was called in a coroutine, and stops its event loop until the answer is there"
        warnings.warn(f"{what}: write `await pipe.call_async(...)`", RuntimeWarning, _level())


def _level() -> int:
    """Return which of the callers is the first outside of Headrace, as `warnings.warn` counts."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        level, frame = level + 1, frame.f_back
    return level
