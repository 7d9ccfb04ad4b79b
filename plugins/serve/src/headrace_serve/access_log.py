"""A line per request: what was asked of which model, how it ended, and how long each part took.

The logger is ``headrace.serve.access``, level INFO. Never in it: bodies, values of queries, headers, keys.
"""

from __future__ import annotations

import logging
import time
from itertools import pairwise

__all__ = ["AccessLine", "logger"]

logger = logging.getLogger("headrace.serve.access")

_LONGEST_ID = 64


class AccessLine:
    """What is logged of one request; ``mark`` ends a part of it.

    Attributes:
        route: Which route or call it is.
        model, identifier, status, code, received_bytes, sent_bytes: As far as they are known.
    """

    def __init__(self, route: str) -> None:
        self.route = route
        self._marks: list[tuple[str, float]] = [("", time.perf_counter())]
        self.model = self.identifier = self.status = self.code = ""
        self.received_bytes = self.sent_bytes = 0

    def mark(self, part: str) -> None:
        """Give a part the time since the one before."""
        self._marks.append((part, time.perf_counter()))

    def write(self) -> None:
        """Log it."""
        identifier = self.identifier[:_LONGEST_ID]
        spent_ms: dict[str, float] = {}
        for (_, before), (part, after) in pairwise(self._marks):
            spent_ms[part] = spent_ms.get(part, 0.0) + (after - before) * 1e3
        logger.info(
            "%s model=%s status=%s code=%s id=%r received_bytes=%d sent_bytes=%d"
            " receive_ms=%.3f pipeline_ms=%.3f send_ms=%.3f",
            self.route,
            self.model or "-",
            self.status or "-",
            self.code or "-",
            identifier,
            self.received_bytes,
            self.sent_bytes,
            *(spent_ms.get(part, 0.0) for part in ("receive", "pipeline", "send")),
        )
