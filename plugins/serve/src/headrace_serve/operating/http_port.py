"""A port of HTTP: that of the clients, or one for health, metrics and the repository with connections of its own."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from headrace_serve.http.connections import connections_to
from headrace_serve.operating.draining import take_backlog
from headrace_serve.operating.listening import BACKLOG

if TYPE_CHECKING:
    import socket
    import ssl

    from uvicorn.server import ServerState

    from headrace_serve.service import Service

__all__ = ["HttpPort"]


class HttpPort:
    """Accepts connections on one socket, which it closes. Used by one event loop.

    Attributes:
        state: Has the open connections, and the tasks of their requests.

    Args:
        listener: The socket, which listens.
        service: The service that answers.
        state: See the attribute.
        admin: Whether it answers those who operate the server alone.
    """

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        state: ServerState,
        *,
        admin: bool = False,
    ) -> None:
        self.state = state
        self._listener, self._loop = listener, asyncio.get_running_loop()
        self._connection = connections_to(service, state, self._loop, admin=admin)
        self._context: ssl.SSLContext | None = None
        self._listening: asyncio.AbstractServer | None = None

    async def listen(self, context: ssl.SSLContext | None) -> None:
        """Accept new connections with these certificates; open connections stay."""
        before, self._context = self._listening, context
        self._listening = await self._loop.create_server(
            self._connection, sock=self._listener.dup(), backlog=BACKLOG, ssl=context
        )
        if before is not None:
            before.close()

    async def stop(self) -> None:
        """Accept no new connections, but for those that the system has accepted already."""
        if self._listening is not None:
            self._listening.close()
        await take_backlog(self._listener, self._connection, self._context)

    async def close(self) -> None:
        """Close all connections."""
        for connection in list(self.state.connections):
            with contextlib.suppress(Exception):
                connection.transport.close()
        if self._listening is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._listening.wait_closed(), 1.0)
