"""Counters of the server for its metrics, and of each model for the statistics of the protocol.

They are plain numbers without a lock, because only the event loop changes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace_serve.monitoring.access_log import AccessLine

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Counters", "Counts"]

_LATE = 64
_LATE_NS = 30_000_000_000
"""The rate is measured from at most the last 64 answers, and from none older than 30 seconds."""

_COPIED = ("requests", "received_bytes", "sent_bytes", "in_flight", "loads")


@dataclass
class Counters:
    """Numbers of the server. Used by one event loop.

    All labels have bounded values: routes are those of the server, models those that are served, and
    statuses those of the protocols.

    Attributes:
        requests: The number of answered requests, by route, model (``""``: no served model) and status.
        received_bytes, sent_bytes: Bytes of bodies by route, as transferred: before decompression, after compression.
        in_flight: Requests that are being received or answered, by protocol.
        loads: Reloads, loads and unloads by kind (``reload``, ``load``, ``unload``) and outcome (``ok``, ``failed``).
        began_s: When the last request of each protocol began, in seconds of `time.monotonic`.
    """

    requests: dict[tuple[str, str, str], int] = field(default_factory=dict)
    received_bytes: dict[str, int] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=dict)
    in_flight: dict[str, int] = field(default_factory=lambda: {"http": 0, "grpc": 0})
    loads: dict[tuple[str, str], int] = field(default_factory=dict)
    began_s: dict[str, float] = field(default_factory=lambda: {"http": 0.0, "grpc": 0.0})
    _idle: asyncio.Event | None = None
    _loading: set[str] = field(default_factory=set)

    def begin(self, protocol: str) -> float:
        """Record that a request has begun; return the time, in seconds of `time.monotonic`."""
        self.in_flight[protocol] += 1
        now_s = self.began_s[protocol] = time.monotonic()
        return now_s

    async def idle(self, protocol: str) -> None:
        """Wait until no request of a protocol is in flight."""
        while self.in_flight[protocol]:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def end(self, protocol: str, line: AccessLine) -> None:
        """Record that a request has ended; its status is ``""`` if the client went away."""
        self.in_flight[protocol] -= 1
        if self._idle is not None and not self.in_flight[protocol]:
            self._idle.set()
        route = line.route
        key = (route, line.model_name, line.status or "disconnected")
        self.requests[key] = self.requests.get(key, 0) + 1
        self.received_bytes[route] = self.received_bytes.get(route, 0) + line.received_bytes
        self.sent_bytes[route] = self.sent_bytes.get(route, 0) + line.sent_bytes

    def note_unread(self, status: str, code: str, sent_bytes: int) -> None:
        """Count and log an HTTP request that was refused before any of it could be parsed."""
        line = AccessLine("other", self.begin("http"))
        line.answered(status)
        line.code, line.sent_bytes = code, sent_bytes
        self.end("http", line)
        line.log()

    def copy(self) -> Counters:
        """Return a copy of the counters, which another thread may read while the event loop goes on counting."""
        copied: Any = {name: dict(getattr(self, name)) for name in _COPIED}
        return replace(self, **copied)

    @contextlib.contextmanager
    def loading(self, kind: str) -> Iterator[None]:
        """Count the block as one load, by whether it raises. One of the same kind inside of it is the same load.

        Threads that load may do so, too, because they take turns.

        Args:
            kind: ``reload``, ``load`` or ``unload``.
        """
        if kind in self._loading:
            yield
            return
        outcome = "failed"
        self._loading.add(kind)
        try:
            yield
            outcome = "ok"
        finally:
            self._loading.discard(kind)
            self.loads[kind, outcome] = self.loads.get((kind, outcome), 0) + 1


class Counts:
    """Answered requests of one model, for the protocol's statistics. Used by one event loop.

    Attributes:
        ok, failed: How many requests succeeded, and how many failed.
        ok_ns, failed_ns: The sum of their times in the server, in nanoseconds.
        inferences: The rows, or items, of the successful requests.
        last_ns: The wall time of the last answer, in nanoseconds. 0 before the first.
    """

    def __init__(self) -> None:
        self.ok = self.failed = 0
        self.ok_ns = self.failed_ns = 0
        self.inferences = self.last_ns = 0
        self._requests = 0
        self._late: deque[tuple[int, int]] = deque(maxlen=_LATE)

    def note_failed(self, elapsed_ns: int) -> None:
        """Count one request that failed."""
        self.last_ns = time.time_ns()
        self.failed += 1
        self.failed_ns += elapsed_ns

    def note(self, elapsed_ns: int, inferences: int, requests: int) -> None:
        """Count one request that succeeded.

        Args:
            elapsed_ns: Its time in the server, in nanoseconds.
            inferences: Its rows or items.
            requests: The requests of the pipeline that it became.
        """
        self.last_ns = time.time_ns()
        self.ok += 1
        self.ok_ns += elapsed_ns
        self.inferences += inferences
        self._requests += requests
        self._late.append((self.last_ns, self._requests))

    def rate_s(self) -> float | None:
        """Return the recent rate of successful requests of the pipeline, per second.

        It is None if too few requests have succeeded in the last 30 seconds to measure it.
        """
        now_ns = time.time_ns()
        for then_ns, before in self._late:
            if 0 < now_ns - then_ns < _LATE_NS:
                done = self._requests - before
                return done / (now_ns - then_ns) * 1e9 if done else None
        return None
