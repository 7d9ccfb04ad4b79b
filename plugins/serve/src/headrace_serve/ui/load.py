"""The load test of the live page: one request, sent again and again by as many clients as a slider says.

The clients are coroutines in the server that call its application, so that what is measured is the server and its pipelines,
without the network. A browser could not do it: it opens at most six connections to a server.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message

__all__ = ["MOST_CLIENTS", "LoadTest", "Replay"]

MOST_CLIENTS: Final = 128
_BUCKET_S: Final = 0.25
_MOST_BUCKETS: Final = 240
_PAUSE_S: Final = 0.05
"""What a client waits after an answer that is an error: a full queue is not asked without a pause."""


@dataclass(frozen=True)
class Replay:
    """A request that is sent again and again.

    Attributes:
        path: Its path, without the path below which the server is.
        query: Its query string.
        headers: Its headers, names in lower case.
        body: Its body.
        below: The path below which the server is, ``""`` for none.
    """

    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    below: str = ""

    def scope(self) -> dict[str, Any]:
        """Return a scope of ASGI for it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": self.below + self.path,
            "raw_path": (self.below + self.path).encode(),
            "query_string": self.query,
            "root_path": self.below,
            "headers": [*self.headers, (b"content-length", b"%d" % len(self.body))],
            "client": None,
            "server": None,
        }


class LoadTest:
    """Clients that send one request without a pause, and what they measure. Used by one event loop.

    Args:
        clock: Gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._clients: list[asyncio.Task[None]] = []
        self._replay: Replay | None = None
        self._buckets: deque[dict[str, Any]] = deque(maxlen=_MOST_BUCKETS)
        self._number = itertools.count(1)
        self._began_s = float("-inf")
        self._times_ms: list[float] = []
        self._failed = 0
        self._status = 0

    def run(self, application: ASGIApp, replay: Replay, clients: int) -> None:
        """Let so many clients send a request from now on, those of another request end.

        Args:
            application: What answers.
            replay: The request.
            clients: The number of clients, from 0 to `MOST_CLIENTS`.
        """
        if replay != self._replay:
            self.stop()
            self._replay = replay
        while len(self._clients) > clients:
            self._clients.pop().cancel()
        while len(self._clients) < clients:
            task = asyncio.create_task(self._send_for_ever(application, replay))
            self._clients.append(task)

    def stop(self) -> None:
        """End all clients."""
        for client in self._clients:
            client.cancel()
        self._clients, self._replay = [], None
        self._times_ms, self._failed = [], 0

    async def end(self) -> None:
        """End all clients, and wait for their ends."""
        clients = list(self._clients)
        self.stop()
        await asyncio.gather(*clients, return_exceptions=True)

    def state(self, since: int) -> dict[str, Any]:
        """Return the number of clients, the last status that was no success, and the buckets after that number.

        A bucket is a quarter of a second: its end, requests, failures, and the latencies p50, p95 and the longest, in ms.
        """
        later = [bucket for bucket in self._buckets if bucket["number"] > since]
        path = None if self._replay is None else self._replay.path
        return {
            "clients": len(self._clients),
            "path": path,
            "refused": self._status,
            "buckets": later,
        }

    async def _send_for_ever(self, application: ASGIApp, replay: Replay) -> None:
        me = asyncio.current_task()
        while me in self._clients:  # a server that drains answers a request that is cancelled
            started = self._clock()
            status = await _status_of(application, replay)
            self._note(started, self._clock(), status)
            if status >= 400:
                await asyncio.sleep(_PAUSE_S)

    def _note(self, started: float, ended: float, status: int) -> None:
        if ended - self._began_s >= _BUCKET_S:
            self._end_bucket()
            self._began_s = ended
        if status < 400:
            self._times_ms.append((ended - started) * 1e3)
        else:
            self._failed += 1
            self._status = status

    def _end_bucket(self) -> None:
        times, failed = sorted(self._times_ms), self._failed
        self._times_ms, self._failed = [], 0
        if not times and not failed:
            return
        bucket = {
            "number": next(self._number),
            "from": self._began_s,
            "requests": len(times),
            "failed": failed,
        }
        if times:
            at = {"p50": times[len(times) // 2], "p95": times[len(times) * 95 // 100]}
            bucket |= {**at, "most": times[-1]}
        self._buckets.append(bucket)


async def _status_of(application: ASGIApp, replay: Replay) -> int:
    """Send a request to an application, and return the status of its answer."""
    status = 0
    messages = [{"type": "http.request", "body": replay.body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # this client never goes away
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    try:
        await application(replay.scope(), receive, send)
    except Exception:  # noqa: BLE001 - a failure like others, and this client goes on
        return 500
    return status
