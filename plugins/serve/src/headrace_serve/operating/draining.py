"""Ends HTTP connections and gRPC calls whose clients do not know yet that the server shuts down.

A client that sends a request while the server closes the connection gets no answer. So each HTTP connection in use
ends with an answer that says ``connection: close``, and the gRPC server refuses calls for a moment before it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Sequence

    from headrace_serve.counters import Counters

__all__ = ["stop_grpc", "take_backlog", "take_last_requests"]

_RECENT_S = 1.0
"""A connection that was made, or got an answer, within this many seconds may send one more request."""

_FIRST_S = 1.0
"""Seconds for the first request of a new connection."""

_NEXT_S = 0.1
"""Seconds for the next request of a connection that has had an answer."""

_QUIET_S = 0.1
"""The gRPC server stops once no call has begun for this many seconds."""

_GRACE_S = 2.0
"""Seconds for gRPC calls to get their answers when the server ends them because it closes."""


async def take_backlog(
    listener: socket.socket,
    protocol: Callable[[], asyncio.Protocol],
    context: ssl.SSLContext | None,
) -> None:
    """Accept the connections in the system's backlog, and close the socket, which would reset them.

    Args:
        listener: The socket; it does not block, and the loop does not listen on it any more.
        protocol: Makes the protocol of a connection.
        context: That of TLS; None: without TLS.
    """
    accepted = []
    with contextlib.suppress(OSError):  # `accept` raises once the backlog is empty
        while True:
            accepted.append(listener.accept()[0])
    listener.close()
    loop = asyncio.get_running_loop()
    for one in accepted:
        one.setblocking(False)
        with contextlib.suppress(OSError):
            await loop.connect_accepted_socket(protocol, one, ssl=context)
    # `connection_made` runs for the connections that the loop has just accepted.
    await asyncio.sleep(0)


async def take_last_requests(connections: Sequence[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Receive the requests of clients that did not know about the shutdown; their answers end the connections.

    Args:
        connections: The open connections, of `headrace_serve.http.protocol`.
        loop: The event loop of the connections.
    """
    since = loop.time() - _RECENT_S
    fresh = [one.last_request() for one in connections if one.is_fresh(since)]
    used = [one.last_request() for one in connections if one.is_used(since)]
    if used:
        await asyncio.wait(used, timeout=_NEXT_S)
    if fresh:
        await asyncio.wait(fresh, timeout=_FIRST_S)


async def stop_grpc(server: Any, counters: Counters, timeout: float) -> None:
    """Wait for the calls that run, and stop the gRPC server.

    A call that arrives after the stop is reset as if the client had cancelled it, even if the client could not know
    about the stop. So before the stop `Service` refuses new calls while earlier calls run, and then until no call has
    begun for `_QUIET_S` seconds (at most `_RECENT_S`).

    Args:
        server: The server of ``grpc.aio``; None: gRPC is not served.
        counters: Have the number of running calls, and the time at which the last one began.
        timeout: Seconds for the calls to end.
    """
    if server is None:
        return
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(counters.idle("grpc"), timeout + _GRACE_S)
    ends = time.monotonic() + _RECENT_S
    while (now := time.monotonic()) < ends and now - counters.began_s["grpc"] < _QUIET_S:
        await asyncio.sleep(_QUIET_S)
    await server.stop(_GRACE_S)
