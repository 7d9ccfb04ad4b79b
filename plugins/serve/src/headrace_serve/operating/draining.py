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
    from collections.abc import Sequence

    from uvicorn.server import ServerState

    from headrace_serve.counters import Counters

__all__ = ["answered", "end_connections", "stop_grpc"]

_RECENT_S = 1.0
"""A connection that was made, or got an answer, within this many seconds may send one more request."""

_FIRST_S = 1.0
"""Seconds for the first request of a new connection."""

_NEXT_S = 0.1
"""Seconds for the next request of a connection that has had an answer, or is getting one."""

_QUIET_S = 0.1
"""The gRPC server stops once no call has begun for this many seconds."""

_GRACE_S = 2.0
"""Seconds for gRPC calls to get their answers when the server ends them because it closes."""


async def end_connections(state: ServerState, timeout: float) -> None:
    """Answer every request that was read, and end each connection with an answer that says so.

    Args:
        state: Has the open connections, of `headrace_serve.http.protocol`, and the tasks of their requests.
        timeout: Seconds for the requests to end.
    """
    ends = asyncio.get_running_loop().time() + timeout
    # An answer in parts that has begun cannot say it any more: its client has a last request after its end.
    for _ in range(2):
        await _take_last_requests(list(state.connections))
        for connection in list(state.connections):
            connection.shutdown()
        await answered(state, ends)


async def answered(state: ServerState, ends: float) -> None:
    """Wait until all requests have their answers, those too that wait behind others on their connections.

    Args:
        state: Has the tasks of the requests.
        ends: The time of the loop until which to wait.
    """
    loop = asyncio.get_running_loop()
    while state.tasks and (left_s := ends - loop.time()) > 0:
        await asyncio.wait(set(state.tasks), timeout=left_s)


async def _take_last_requests(connections: Sequence[Any]) -> None:
    """Receive the requests of clients that do not know yet about the shutdown."""
    since = asyncio.get_running_loop().time() - _RECENT_S
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
        server: The server of ``grpc.aio``. None: gRPC is not served.
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
