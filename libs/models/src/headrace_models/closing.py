"""Closes several things side by side, also where the system lets this process start no thread."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["close_all"]


def close_all(closes: Iterable[Callable[[], None]]) -> None:
    """Call functions, each in a thread of its own, or in this one if no thread can be started. Return when all have returned."""
    with contextlib.ExitStack() as ends:
        for close in closes:
            thread = threading.Thread(target=close, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):
                close()
            else:
                ends.callback(thread.join)
