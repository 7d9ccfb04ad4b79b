"""Where the threads of this process are."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["current_frames"]


def current_frames() -> dict[int, FrameType]:
    """Return the frame of each thread by its identifier, as `sys._current_frames` does.

    Before CPython 3.12 that function may wait for ever (python/cpython#106883): it holds a lock of the interpreter, a garbage
    collection in the middle of it runs Python code, and a thread that starts or ends meanwhile waits for that lock with the GIL.
    So nothing is collected here.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if collects:
            gc.enable()
