"""The C library's allocator: a knob of the whole process, turned here and nowhere else.

A decoded picture takes close to a megabyte, or more. glibc gives the end of a thread's heap back to the system
when it is larger than a bound, which grows to twice the largest block at most. So the pages of nearly every picture
are given back when it is freed and fetched again, one fault each, for the next one; and all threads of a process
wait for the same map of its memory meanwhile. With fixed, larger bounds a heap keeps what its largest pictures took.
"""

from __future__ import annotations

import os
import threading

from headrace.errors import SetupError

__all__ = ["KEEP_VARIABLE", "keep_freed_memory"]

KEEP_VARIABLE = "HEADRACE_CV_KEEP_MEMORY"
"""Environment variable: 0 leaves the allocator as it is."""

# Source: mallopt(3) of the Linux manual, and malloc.h of glibc.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 256 << 20
"""A heap is trimmed when more than this is free at its end."""
_MAPPED_BYTES = 32 << 20
"""Blocks from here on are mapped one by one, and given back at once: the greatest value that glibc takes."""
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")

_lock = threading.Lock()
_is_turned = False


def keep_freed_memory() -> bool:
    """Let the heaps of all threads keep freed memory for the next picture; only the first call does anything.

    It is left alone where the C library is not glibc, or where the environment sets the bounds itself.

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
            raise SetupError(
                f"{KEEP_VARIABLE}={text!r} is neither 0 nor 1",
                hint="Set it to 0 to leave the allocator as it is, or unset it (the default is 1).",
            )
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
