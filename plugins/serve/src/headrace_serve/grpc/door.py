"""The calls of all connections of HTTP/2: makes them, times them, and ends them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace_serve.grpc.call import Call, plan_of
from headrace_serve.http2.connection import Bounds, Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace_serve.grpc.context import Method
    from headrace_serve.http2.heads import Head
    from headrace_serve.service import Service

__all__ = ["Door"]


class Receiving:
    """Ends the wait of calls whose messages do not arrive in time.

    All calls have the same time limit, so the one that began first is due first. One timer watches that one alone.

    Args:
        loop: The event loop.
        seconds: The time.

    Attributes:
        due: When each call is late, the one that began first before the others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._seconds = loop, seconds
        self.due: dict[Call, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, call: Call) -> None:
        """Start the time of a call, unless it runs; `end` stops it."""
        if call in self.due:
            return
        self.due[call] = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self, call: Call) -> None:
        """Stop the time of a call."""
        self.due.pop(call, None)

    def _look(self) -> None:
        self._timer = None
        for call, due_s in list(self.due.items()):
            left_s = due_s - self._loop.time()
            if left_s > 0.001:
                self._timer = self._loop.call_later(left_s, self._look)
                return
            del self.due[call]
            call.fail_late()


class Door:
    """Makes connections whose streams are calls. Used by one event loop.

    Attributes:
        service: What is served.
        loop: The event loop.
        connections: The open connections.
        tasks: The calls that run.
        receiving: Times those whose messages come.

    Args:
        service: What is served.
        methods: The methods, by the names of their services and their own.
    """

    def __init__(self, service: Service, methods: Mapping[str, Mapping[str, Method]]) -> None:
        self.service, self.loop = service, asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.tasks: set[Any] = set()
        limits = service.limits
        self.receiving = Receiving(self.loop, limits.receive_timeout_s)
        self._methods = {
            f"/{of}/{name}".encode("ascii"): method
            for of, named in methods.items()
            for name, method in named.items()
        }
        self._bounds = Bounds(
            limits.receive_timeout_s,
            limits.max_streams,
            limits.max_header_bytes,
            limits.grpc_min_ping_interval_s,
            limits.min_rate_bytes_s,
            limits.grpc_keepalive_s,
            limits.grpc_keepalive_timeout_s,
            limits.max_connection_age_s,
        )

    @property
    def is_full(self) -> bool:
        """Whether there are as many connections as there may be."""
        return len(self.connections) >= self.service.limits.max_connections

    def connection(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self.loop, self._bounds, self)

    def note_buffered(self, more: int) -> None:
        """Count bytes in the buffers of sockets whose clients do not take them."""
        self.service.note_unsent(0, more)

    def open_stream(self, connection: Connection, number: int, head: Head, window: int) -> Call:
        """Return the call of a request."""
        plan = head.plan
        if plan is None:
            most_bytes = self.service.limits.max_header_bytes
            plan = head.plan = plan_of(head, self._methods, most_bytes)
        return Call(self, plan, connection, number, head, window)

    def leave(self) -> None:
        """Ask all clients to connect anew for what they ask next, and end their connections once they are answered."""
        for connection in list(self.connections):
            connection.leave()

    def cut_off(self) -> None:
        """End the calls that run: their clients hear that the server has shut down."""
        for task in list(self.tasks):
            task.cancel()

    def close(self) -> None:
        """End all connections, and give their clients a moment to take the last bytes."""
        for connection in list(self.connections):
            connection.close()

    def abort(self) -> None:
        """End all connections at once."""
        for connection in list(self.connections):
            connection.transport.abort()
