"""The C library's allocator of a process that serves: freed bodies leave their memory to the next ones.

glibc gives the free end of a heap back to the system when that end is larger than a bound, which grows to twice the
largest block at most. A request makes several blocks as large as its body. So nearly every body's pages are given back,
and the next body fetches them again with one page fault each, which costs more than to copy it.
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

# Source: mallopt(3) of the Linux manual, and malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20
"""glibc trims a heap when more bytes than this are free at its end."""
_MAPPED_BYTES = 32 << 20
"""The greatest value that glibc accepts: larger blocks are mapped one by one, and given back when they are freed."""
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let the heaps of this process keep freed memory, as `headrace-cv` does for pictures.

    Returns:
        Whether the allocator does so now. It is left as it is if the C library is not glibc, or if the environment
        sets these bounds itself.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _SET_BY_USER):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    )
