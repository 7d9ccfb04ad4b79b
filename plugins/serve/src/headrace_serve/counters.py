"""What the server counts of itself: plain numbers, kept by its event loop, read by its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_serve.access_log import AccessLine

__all__ = ["Counters"]


@dataclass
class Counters:
    """Numbers of the server; used by one event loop.

    All labels have bounded values: routes are those of the server, models those that are served, and
    statuses those of the protocols.

    Attributes:
        requests: How many were answered, by route, model (``""``: none that is served) and status.
        received_bytes, sent_bytes: Bytes of bodies as they travelled, by route.
        in_flight: Requests that are being received or answered, by protocol.
    """

    requests: dict[tuple[str, str, str], int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=lambda: {"http": 0, "grpc": 0})

    def begin(self, protocol: str) -> None:
        """Note that a request has begun."""
        self.in_flight[protocol] += 1

    def end(self, protocol: str, line: AccessLine) -> None:
        """Note that a request has ended; its status is ``""`` where the client went away."""
        self.in_flight[protocol] -= 1
        route = line.route
        key = (route, line.model, line.status or "disconnected")
        self.requests[key] = self.requests.get(key, 0) + 1
        self.received_bytes[route] = self.received_bytes.get(route, 0) + line.received_bytes
        self.sent_bytes[route] = self.sent_bytes.get(route, 0) + line.sent_bytes

    def copy(self) -> Counters:
        """Give the numbers of now, for another thread."""
        return Counters(
            dict(self.requests),
            dict(self.received_bytes),
            dict(self.sent_bytes),
            dict(self.in_flight),
        )
