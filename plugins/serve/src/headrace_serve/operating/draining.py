"""Ends HTTP connections and gRPC calls whose clients do not know yet that the server shuts down.

A client that sends a request while the server closes the connection gets no answer. So each HTTP connection in use
ends with an answer that says ``connection: close``, and the gRPC server refuses calls for a moment before its connections end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from uvicorn.server import ServerState

    from headrace_serve.service import Service

__all__ = ["answered", "end_connections", "stop_grpc"]

_RECENT_S = 1.0
"""A connection that was made, or got an answer, within this many seconds may send one more request."""

_FIRST_S = 1.0
"""Seconds for the first request of a new connection."""

_NEXT_S = 0.1
"""Seconds for the next request of a connection that has had an answer, or is getting one."""

_LOOK_S = 0.01
"""Seconds between two looks whether requests are answered."""

_QUIET_S = 0.1
"""The gRPC server stops once no call has begun for this many seconds."""

_GRACE_S = 2.0
"""Seconds for calls to get their answers when the server ends them because it closes, and to take these."""


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
    while state.tasks and loop.time() < ends:
        await asyncio.sleep(_LOOK_S)


async def _take_last_requests(connections: Sequence[Any]) -> None:
    """Receive the requests of clients that do not know yet about the shutdown."""
    since = asyncio.get_running_loop().time() - _RECENT_S
    fresh = [connection.last_request() for connection in connections if connection.is_fresh(since)]
    used = [connection.last_request() for connection in connections if connection.is_used(since)]
    if used:
        await asyncio.wait(used, timeout=_NEXT_S)
    if fresh:
        await asyncio.wait(fresh, timeout=_FIRST_S)


async def stop_grpc(side: Any, service: Service, timeout: float) -> None:
    """Wait for the calls that run, end the connections, and serve gRPC no more.

    A call that comes after the end of its connection fails without a reason. So before that `Service` refuses new calls
    while earlier calls run, and then until no call has begun for `_QUIET_S` seconds (at most `_RECENT_S`). Clients that
    still go on calling hear that they are to leave, and find nobody who listens, which is UNAVAILABLE as well.

    Args:
        side: The calls of the server, `headrace_serve.operating.grpc_port.GrpcSide`.
        service: Counts the running calls, the time at which the last one began, and the answers that clients have not taken.
        timeout: Seconds for the calls to end.
    """
    if not side.is_used:
        return
    counters = service.counters
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(counters.idle("grpc"), timeout + _GRACE_S)
    ends = time.monotonic() + _RECENT_S
    # Those who watch the health are told, and hear the end of their streams.
    await asyncio.sleep(_QUIET_S)
    while (now := time.monotonic()) < ends and now - counters.began_s["grpc"] < _QUIET_S:
        await asyncio.sleep(_QUIET_S)
    while service.unsent_bytes and time.monotonic() < ends + _GRACE_S:
        await asyncio.sleep(_QUIET_S)
    await side.end(_GRACE_S)
