"""The end of connections and calls of which clients do not know yet that the server ends.

What is sent on a connection that is closed meanwhile gets no answer. So each connection in use ends with an answer
that says so, and the server of gRPC refuses calls for a moment before it stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_serve.counters import Counters

__all__ = ["stop_grpc", "take_last_requests"]

_RECENT_S = 1.0
"""Connections that were made, or had an answer, in so many seconds may send one more request."""

_FIRST_S = 1.0
"""Seconds for the first request of a new connection."""

_NEXT_S = 0.1
"""Seconds for the next request of one that is in use."""

_QUIET_S = 0.1
"""Seconds in which no call of gRPC has begun, before its server stops."""

_TOLD_S = 2.0
"""Seconds in which calls of gRPC that closing ended get their answers."""


async def take_last_requests(connections: Sequence[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Let connections send what their clients sent before they could know; each ends with the answer to that.

    Args:
        connections: Those of `headrace_serve.http_protocol`.
        loop: Theirs.
    """
    since = loop.time() - _RECENT_S
    fresh = [one.last_request() for one in connections if one.is_fresh(since)]
    used = [one.last_request() for one in connections if one.is_used(since)]
    if used:
        await asyncio.wait(used, timeout=_NEXT_S)
    if fresh:
        await asyncio.wait(fresh, timeout=_FIRST_S)


async def stop_grpc(server: Any, counters: Counters, timeout: float) -> None:
    """Let the calls there are end, and stop.

    A call that arrives when the server has stopped, and its client does not know it yet, is reset as if the client
    had cancelled it. So `Service` refuses new calls while others run, and as long as clients ask often.

    Args:
        server: That of ``grpc.aio``; None: there is none.
        counters: Tell which calls there are.
        timeout: Seconds for them to end.
    """
    if server is None:
        return
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(counters.idle("grpc"), timeout + _TOLD_S)
    ends = time.monotonic() + _RECENT_S
    while (now := time.monotonic()) < ends and now - counters.began_s["grpc"] < _QUIET_S:
        await asyncio.sleep(_QUIET_S)
    await server.stop(_TOLD_S)
