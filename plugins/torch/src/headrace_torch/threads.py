"""torch's own threads: a knob of the whole process, turned here and nowhere else."""

from __future__ import annotations

import threading

import torch

__all__ = ["limit_torch_threads"]

_lock = threading.Lock()
_limited: int | None = None


def limit_torch_threads(threads: int) -> int:
    """Set how many threads torch uses inside one call on the CPU; only the first call does so.

    The instances of the pipelines run side by side, so each computes with its share; torch has one
    number for the process.

    Args:
        threads: The share of one instance, of `[global] threads`.

    Returns:
        The number that holds: that of the first call.
    """
    global _limited
    with _lock:
        if _limited is None:
            torch.set_num_threads(threads)
            _limited = threads
        return _limited
