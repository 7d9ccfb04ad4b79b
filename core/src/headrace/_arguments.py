"""What users give besides requests, and what lists of requests raise."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from headrace.errors import RequestsFailed

if TYPE_CHECKING:
    from headrace._scheduling.entry import Entry

__all__ = ["check_seconds", "deadline_after", "raise_failed"]


def check_seconds(timeout: float) -> None:
    """Refuse what is no number of seconds."""
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not number or math.isnan(timeout) or timeout < 0:
        raise ValueError(f"timeout is a number of seconds of at least 0, got {timeout!r}")


def deadline_after(timeout: float | None) -> float | None:
    """Give when a time from now is over, on the clock of ``time.monotonic()``; None for never."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or math.isnan(timeout):
        raise TypeError(f"timeout is a number of seconds or None, got {timeout!r}")
    if math.isinf(timeout) and timeout > 0:
        return None
    return time.monotonic() + max(0.0, timeout)


def raise_failed(entries: list[Entry]) -> None:
    """Raise the errors of a list of requests, if there are any."""
    if any(entry.error is not None for entry in entries):
        raise RequestsFailed([entry.take_error() for entry in entries])
