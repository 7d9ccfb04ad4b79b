"""What makes the HTTP connections of a server: uvicorn's settings, and the protocol class with its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.config import Config

from headrace_serve.http.protocol import protocol_class
from headrace_serve.http.rest import application

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.server import ServerState

    from headrace_serve.service import Service

__all__ = ["connections_to"]


def connections_to(
    service: Service, state: ServerState, loop: asyncio.AbstractEventLoop, *, admin: bool = False
) -> Callable[[], asyncio.Protocol]:
    """Return the function that makes the protocol of each new connection.

    Args:
        service: The service that answers the requests.
        state: Has the open connections and the tasks of their requests.
        loop: The event loop of the connections.
        admin: Whether they have the routes of those who operate the server alone.
    """
    config = Config(
        application(service, admin=admin),
        lifespan="off",
        http=protocol_class(service.limits, service.counters),
        ws="none",
        log_config=None,
        access_log=False,
        date_header=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=service.limits.keep_alive_s,  # type: ignore[arg-type]
    )
    config.load()

    def connection() -> asyncio.Protocol:
        made: Any = config.http_protocol_class
        protocol: asyncio.Protocol = made(
            config=config, server_state=state, app_state={}, _loop=loop
        )
        return protocol

    return connection
