"""A port of its own for health, metrics and the repository: the connections of clients take none of its places."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from uvicorn.server import ServerState

from headrace_serve.http.connections import connections_to
from headrace_serve.operating.draining import end_connections
from headrace_serve.operating.listening import BACKLOG, listen, not_listening

if TYPE_CHECKING:
    import socket
    import ssl

    from headrace_serve.service import Service

__all__ = ["Admin"]


class Admin:
    """Listens for those who operate the server; used by its event loop.

    Attributes:
        port: The port.

    Args:
        service: The service that answers.
        host: The address.
        port: The port; 0 takes a free one.
        shared: Whether other processes listen on the same port.

    Raises:
        SetupError: The port is in use, or cannot be bound.
    """

    def __init__(self, service: Service, host: str, port: int, *, shared: bool) -> None:
        try:
            self._listener: socket.socket = listen(host, port, shared=shared)
        except OSError as error:
            raise not_listening(host, port, error, "--admin-port") from error
        self.port: int = self._listener.getsockname()[1]
        self._service = service
        self._state = ServerState()
        self._connection: Any = None
        self._listening: asyncio.AbstractServer | None = None

    def url(self, beside: str) -> str:
        """Return the address, from that of the port for clients."""
        return f"{beside.rpartition(':')[0]}:{self.port}"

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Accept new connections with these certificates; open connections stay."""
        loop, before = asyncio.get_running_loop(), self._listening
        if self._connection is None:
            self._connection = connections_to(self._service, self._state, loop, admin=True)
        self._listening = await loop.create_server(
            self._connection, sock=self._listener.dup(), backlog=BACKLOG, ssl=context
        )
        if before is not None:
            before.close()

    async def close(self) -> None:
        """End: let the requests that run have their answers for a moment, and close all connections."""
        if self._listening is not None:
            self._listening.close()
        self._listener.close()
        await end_connections(self._state, 1.0)
        for connection in list(self._state.connections):
            with contextlib.suppress(Exception):
                connection.transport.close()
