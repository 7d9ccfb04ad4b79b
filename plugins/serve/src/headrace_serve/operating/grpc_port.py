"""The port of gRPC."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace_serve.grpc.door import Door
from headrace_serve.grpc.service import methods_of
from headrace_serve.operating.http_port import Port

if TYPE_CHECKING:
    import socket

    from headrace_serve.operating.tls import Certificates
    from headrace_serve.service import Service

__all__ = ["GrpcPort"]

_LAST_S = 1.0
"""Seconds for clients to hear that they are to leave."""

_LOOK_S = 0.01


class GrpcPort(Port):
    """The port of gRPC. Used by one event loop.

    Attributes:
        number: Its number.

    Args:
        listener: As `Port` takes it.
        service: The service that answers.
    """

    def __init__(self, listener: socket.socket, service: Service) -> None:
        self._door = Door(service, methods_of(service))
        super().__init__(listener, service.limits, self._door.connections)
        self.number: int = listener.getsockname()[1]

    def use(self, certificates: Certificates | None) -> None:
        """Accept new connections with these certificates; open connections stay."""
        self.listen(None if certificates is None else certificates.grpc_context)

    def connection(self) -> Any:
        """Return the protocol of a new connection."""
        return self._door.connection()

    def refuses(self, secure: bool) -> bool:
        """Close each connection beyond the limit: gRPC has no answer for it."""
        return True

    async def end(self, grace_s: float) -> None:
        """Accept nothing new, let clients leave, and end the calls that are left after some seconds."""
        await self.stop()
        self._door.leave()
        await self._wait(_LAST_S if not self._door.tasks else grace_s)
        self._door.cut_off()
        await asyncio.sleep(0)
        self._door.close()
        await self.close()

    async def _wait(self, seconds: float) -> None:
        ends = self._loop.time() + seconds
        while self._connections and self._loop.time() < ends:
            await asyncio.sleep(_LOOK_S)
