"""The calls of gRPC of a server: on a port of their own, and on that of HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace_serve.operating.http_port import Port

if TYPE_CHECKING:
    import socket

    from headrace_serve.grpc.door import Door
    from headrace_serve.operating.tls import Certificates
    from headrace_serve.service import Service

__all__ = ["GrpcPort", "GrpcSide"]

_LEAVE_S = 1.0
"""Seconds for clients without calls to hear that they are to leave."""

_LOOK_S = 0.01


class GrpcPort(Port):
    """The port of gRPC. Used by one event loop.

    Args:
        listener: As `Port` takes it.
        door: Makes the connections.
    """

    def __init__(self, listener: socket.socket, door: Door) -> None:
        super().__init__(listener, door.service.limits, door.connections)
        self._door = door

    def connection(self) -> Any:
        """Return the protocol of a new connection."""
        return self._door.connection()

    def refuses(self, secure: bool) -> bool:
        """Close each connection beyond the limit: gRPC has no answer for it."""
        return True


class GrpcSide:
    """All calls of a server. Used by one event loop.

    Attributes:
        port: Its own port. None: there is none, and calls come by that of HTTP.

    Args:
        service: The service that answers.
    """

    port: GrpcPort | None = None
    _door: Door | None = None

    def __init__(self, service: Service) -> None:
        self._service = service

    def open(self, listener: socket.socket) -> None:
        """Have a port of its own."""
        self.port = GrpcPort(listener, self._made_door())

    def listen(self, certificates: Certificates | None) -> None:
        """Accept new connections on its port with these certificates; open connections stay."""
        if self.port is not None:
            self.port.listen(None if certificates is None else certificates.grpc_context)

    def connection(self) -> Any:
        """Return the protocol of a client that speaks HTTP/2 on the port of HTTP."""
        door = self._made_door()
        connection = door.connection()
        if self._service.draining or door.is_full:
            door.loop.call_soon(connection.close, "no more connections are taken")
        return connection

    def _made_door(self) -> Door:
        """Return what makes connections. A server without calls does without it, and without protobuf."""
        if self._door is None:
            from headrace_serve.grpc.door import Door
            from headrace_serve.grpc.service import methods_of

            self._door = Door(self._service, methods_of(self._service))
        return self._door

    @property
    def is_used(self) -> bool:
        """Whether there was a port or a connection."""
        return self._door is not None

    async def end(self, grace_s: float) -> None:
        """Accept nothing new, let clients leave, and end the calls that are left after some seconds."""
        door = self._made_door()
        if self.port is not None:
            await self.port.stop()
        door.leave()
        loop = asyncio.get_running_loop()
        ends = loop.time() + (grace_s if door.tasks else _LEAVE_S)
        while door.connections and loop.time() < ends:
            await asyncio.sleep(_LOOK_S)
        door.cut_off()
        await asyncio.sleep(0)
        door.close()
        ends = loop.time() + _LEAVE_S
        while door.connections and loop.time() < ends:
            await asyncio.sleep(_LOOK_S)
        door.abort()
