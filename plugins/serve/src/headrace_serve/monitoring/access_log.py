"""A line per request: its route and model, its outcome, and how long each part took.

The logger is ``headrace.serve.access``, level INFO. Bodies, values of queries, headers and keys are never
logged.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any

from headrace_serve.monitoring.run_times import RunTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AccessLine", "logger", "request_id_of"]

logger = logging.getLogger("headrace.serve.access")

_LONGEST_ID = 64
_LINE = (
    "%(route)s model=%(model)s status=%(status)s code=%(code)s id=%(request_id)r received_bytes=%(received_bytes)d"
    " sent_bytes=%(sent_bytes)d receive_ms=%(receive_ms).3f queue_ms=%(queue_ms).3f run_ms=%(run_ms).3f send_ms=%(send_ms).3f"
)
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-.*")
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


def request_id_of(text: str) -> str:
    """Return the id in ``X-Request-Id``: up to 128 visible characters of ASCII; ``""`` for every other text."""
    return text if _REQUEST_ID.fullmatch(text) else ""


class AccessLine:
    """The line of the access log for one request, filled in while the request is answered.

    Attributes:
        route: The route of HTTP, or the name of the call of gRPC.
        model_name, status, code: Texts, empty until they are known.
        key: The name of the client's key. Empty without keys.
        request_id: The id of the request: of the protocol, else of the header ``X-Request-Id``. ``""`` without one.
        traceparent: The parameter or header of this name.
        peer: The client's host and port, or gives its address. None: unknown.
        received_s, answered_s: When the body was there, and when the answer began (`time.monotonic`). 0 before that.
        received_bytes, sent_bytes: The bytes of the request's body and of the answer's body.
        until_s: When a request that has waited for its model gives up (`time.monotonic`). None: it has not, or never does.
        times: Records when the request waited and ran in the pipeline. None if the pipeline does not measure it.
        timing: What the client is told of each run of its request. None for a client that does not ask.

    Args:
        route: The route of HTTP, or the name of the call of gRPC.
        began_s: When the request began, as `Counters.begin` gives it.
    """

    model_name = status = code = key = request_id = traceparent = ""
    peer: tuple[Any, ...] | list[Any] | Callable[[], str] | None = None
    received_bytes = sent_bytes = 0
    times: RunTimes | None = None
    timing: list[dict[str, Any]] | None = None
    received_s = answered_s = 0.0
    until_s: float | None = None

    def __init__(self, route: str, began_s: float) -> None:
        self.route = route
        self.began_s = began_s

    def received(self, size: int) -> None:
        """Note that the body, of ``size`` bytes, has been received."""
        self.received_bytes = size
        self.received_s = time.monotonic()

    def answered(self, status: str) -> None:
        """Note the status of the answer, and that sending it begins now."""
        self.status = status
        self.answered_s = time.monotonic()

    def note_ids(self, identifier: str, parameters: Mapping[str, Any]) -> None:
        """Note the id of a request of the protocol, ``""`` without one, and the trace that its parameters name."""
        if identifier:
            self.request_id = identifier
        parent = parameters.get("traceparent")
        if isinstance(parent, str):
            self.traceparent = parent

    def nothing_to_receive(self) -> None:
        """Note that the request has no body, so that no time counts as that of receiving it."""
        self.received_s = self.began_s

    def told(self, keys: int | None) -> dict[str, Any]:
        """Return what the ``context`` of a request is given by the server, which has so many keys, None for none."""
        told = {} if keys is None else {"client": self.key, "clients": keys}
        return told if self.timing is None else {**told, "times": self.timing}

    @property
    def client(self) -> str:
        """The address of the client; ``""`` if it is not known."""
        if callable(self.peer):
            return self.peer()
        return "" if not self.peer else ":".join(map(str, self.peer[:2]))

    @property
    def trace_id(self) -> str:
        """The id of the trace that the request belongs to; ``""`` without one."""
        match = _TRACE.fullmatch(self.traceparent)
        return "" if match is None else match[1]

    def timed(self) -> RunTimes:
        """Return the object that records when the request waits and runs in the pipeline."""
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
        answered = self.answered_s or ended
        received = self.received_s or answered
        queue, run = 0.0, answered - received
        if self.times is not None:
            queue, run = self.times.queue_and_run_s() or (run, 0.0)
        spent = (received - self.began_s, queue, run, ended - answered)
        identifier = identifier or self.request_id
        fields: dict[str, Any] = {
            "route": self.route,
            "model": self.model_name or None,
            "status": self.status or None,
            "code": self.code or None,
            "request_id": identifier[:_LONGEST_ID] or None,
            "trace_id": self.trace_id or None,
            "client": self.client or None,
            "key": self.key or None,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
        }
        names = ("receive_ms", "queue_ms", "run_ms", "send_ms")
        fields |= {n: round(1e3 * seconds, 3) for n, seconds in zip(names, spent, strict=True)}
        shown = {name: "-" if value is None else value for name, value in fields.items()}
        shown["request_id"] = identifier[:_LONGEST_ID]
        logger.info(_LINE, shown, extra={"fields": fields})
