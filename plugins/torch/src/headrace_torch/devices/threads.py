"""Limits torch's own threads; the limit holds for the whole process, and is set only here."""

from __future__ import annotations

import threading

import torch

__all__ = ["limit_torch_threads"]

_lock = threading.Lock()
_limited: int | None = None


def limit_torch_threads(threads: int) -> int:
    """Set the number of threads that torch uses inside one call on the CPU. Only the first call sets it.

    Instances run side by side, so each should compute with its share of the threads. But torch has one number for the
    whole process, so later calls change nothing, even with another share.

    Args:
        threads: The share of one instance in `[global] threads`.

    Returns:
        The number that holds, from the first call.
    """
    global _limited
    with _lock:
        if _limited is None:
            torch.set_num_threads(threads)
            _limited = threads
        return _limited
