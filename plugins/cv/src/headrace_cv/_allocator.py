"""Settings of the C library's allocator, which hold for the whole process. `headrace serve` sets the same for bodies.

A decoded picture takes close to a megabyte, or more. glibc gives the free end of a thread's heap back to the system
when that end is larger than a bound, which grows to twice the largest block at most. So glibc gives the pages of
nearly every picture back when the picture is freed, and the next picture fetches them again with one page fault
each. Meanwhile all threads of the process wait for the lock of its memory map. With fixed, larger bounds a heap
keeps the memory that its largest pictures took.
"""

from __future__ import annotations

import os
import threading

from headrace.errors import SetupError

__all__ = ["KEEP_VARIABLE", "keep_freed_memory"]

KEEP_VARIABLE = "HEADRACE_CV_KEEP_MEMORY"
"""Environment variable, 0 or 1 (the default): 0 does not change the allocator."""

# Source: mallopt(3) of the Linux manual, and malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20
"""glibc trims a heap when more bytes than this are free at its end."""
_MAPPED_BYTES = 32 << 20
"""Blocks of this many bytes and more are mapped one by one and given back when they are freed.

32 MiB is the greatest value that glibc accepts.
"""
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_lock = threading.Lock()
_is_turned = False


def keep_freed_memory() -> bool:
    """Let the heaps of all threads keep freed memory for the next picture. Only the first call does anything.

    The allocator does not change if the C library is not glibc, or if the environment sets these bounds itself.

    Returns:
        Whether this call has changed the allocator.

    Raises:
        SetupError: `KEEP_VARIABLE` holds something else than 0 or 1.
    """
    global _is_turned
    with _lock:
        if _is_turned:
            return False
        text = os.environ.get(KEEP_VARIABLE, "1")
        if text not in ("0", "1"):
            hint = "Set it to 0 to leave the allocator unchanged, or unset it (the default is 1)."
            raise SetupError(f"{KEEP_VARIABLE}={text!r} is neither 0 nor 1", hint=hint)
        _is_turned = True
        if text == "0" or any(name in os.environ for name in _SET_BY_USER):
            return False
        if not _is_glibc():
            return False
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
        return bool(
            mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        )


def _is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # another system, or another C library
        return False
