"""A line per request: its route and model, its outcome, and how long each part took.

The logger is ``headrace.serve.access``, level INFO. Bodies, values of queries, headers and keys are never
logged.
"""

from __future__ import annotations

import logging
import time

from headrace_serve.run_times import RunTimes

__all__ = ["AccessLine", "logger"]

logger = logging.getLogger("headrace.serve.access")

_LONGEST_ID = 64


class AccessLine:
    """The line of the access log for one request, filled in while the request is answered.

    Attributes:
        route: The route of HTTP, or the name of the call of gRPC.
        model, status, code: Texts, empty until they are known.
        received_bytes, sent_bytes: The bytes of the request's body and of the answer's body.
        times: Records when the request waited and ran in the pipeline; None if the pipeline does not measure it.

    Args:
        route: The route of HTTP, or the name of the call of gRPC.
        began_s: When the request began, as `Counters.begin` gives it.
    """

    model = status = code = ""
    received_bytes = sent_bytes = 0
    times: RunTimes | None = None
    _received = _answered = 0.0

    def __init__(self, route: str, began_s: float) -> None:
        self.route = route
        self._began_s = began_s

    def received(self, size: int) -> None:
        """Note that the body, of ``size`` bytes, has been received."""
        self.received_bytes = size
        self._received = time.monotonic()

    def answered(self, status: str) -> None:
        """Note the status of the answer, and that sending it begins now."""
        self.status = status
        self._answered = time.monotonic()

    def timed(self) -> RunTimes:
        """Give the object that records when the request waits and runs in the pipeline."""
        self.times = self.times or RunTimes()
        return self.times

    def log(self, identifier: str = "") -> None:
        """Write the line to the logger, with the id of the request, if the logger is enabled.

        Args:
            identifier: The id of the request.
        """
        if not logger.isEnabledFor(logging.INFO):
            return
        ended = time.monotonic()
        answered = self._answered or ended
        received = self._received or answered
        queue, run = 0.0, answered - received
        if self.times is not None:
            queue, run = self.times.queue_and_run_s() or (run, 0.0)
        spent = (received - self._began_s, queue, run, ended - answered)
        logger.info(
            "%s model=%s status=%s code=%s id=%r received_bytes=%d sent_bytes=%d"
            " receive_ms=%.3f queue_ms=%.3f run_ms=%.3f send_ms=%.3f",
            self.route,
            self.model or "-",
            self.status or "-",
            self.code or "-",
            identifier[:_LONGEST_ID],
            self.received_bytes,
            self.sent_bytes,
            *(1e3 * seconds for seconds in spent),
        )
