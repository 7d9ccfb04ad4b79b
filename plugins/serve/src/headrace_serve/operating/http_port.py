"""Ports: that of the clients of HTTP, one for health, metrics and the repository, and that of gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config

from headrace_serve.http.plans import Plans
from headrace_serve.http.protocol import protocol_class
from headrace_serve.http.rest import application
from headrace_serve.operating.listening import BACKLOG

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable, Collection

    from uvicorn.server import ServerState

    from headrace_serve.admission.limits import Limits
    from headrace_serve.service import Service

__all__ = ["HttpPort", "Port"]

logger = logging.getLogger("headrace.serve")

_AT_A_TIME = 64
"""So many connections are accepted between two steps of the event loop."""

_USED_UP = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 1.0
"""Seconds until a connection is accepted again where the system has no descriptor or memory for one."""

_LAST_S = 1.0
"""Seconds for the clients that the system has accepted to shake hands, once no others are accepted."""


class Port:
    """Accepts connections on one socket, which it closes. Used by one event loop.

    It accepts them itself, because connections count before their handshake of TLS, which costs the most. Subclasses
    give `connection`, and say what `is_crowded`.

    Args:
        listener: The socket, which listens and does not block.
        limits: The bounds of connections.
        connections: The open connections.
    """

    def __init__(
        self, listener: socket.socket, limits: Limits, connections: Collection[Any]
    ) -> None:
        self._listener, self._loop = listener, asyncio.get_running_loop()
        self._limits, self._connections = limits, connections
        self._context: ssl.SSLContext | None = None
        self._begun: set[asyncio.Task[None]] = set()
        self._later: asyncio.TimerHandle | None = None

    def listen(self, context: ssl.SSLContext | None) -> None:
        """Accept new connections with these certificates; open connections stay."""
        self._context = context
        self._loop.add_reader(self._listener, self._accept, _AT_A_TIME)

    def _accept(self, most: int) -> None:
        while most and self._listener.fileno() >= 0:  # the event may be older than its end
            most -= 1
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _USED_UP:
                    raise
                logger.warning("no connection is accepted for %g s: %s", _PAUSE_S, error.strerror)
                self._loop.remove_reader(self._listener)
                self._later = self._loop.call_later(_PAUSE_S, self.listen, self._context)
                return
            accepted.setblocking(False)
            taken = len(self._connections) + len(self._begun)
            if taken >= self._limits.max_connections and self.refuses(self._context is not None):
                accepted.close()
                continue
            task = self._loop.create_task(self._begin(accepted, self._context))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    def connection(self) -> Any:
        """Return the protocol of a new connection."""
        raise NotImplementedError

    def refuses(self, secure: bool) -> bool:
        """Note a connection beyond the limit. Return whether it is closed before it is made.

        Args:
            secure: Whether it begins with a handshake of TLS.
        """
        raise NotImplementedError

    async def _begin(self, accepted: socket.socket, context: ssl.SSLContext | None) -> None:
        """Make the connection of a socket."""
        limit_s = None if context is None else self._limits.receive_timeout_s
        with contextlib.suppress(OSError):  # as errors of TLS are, and the end of the time
            await self._loop.connect_accepted_socket(
                self.connection, accepted, ssl=context, ssl_handshake_timeout=limit_s
            )

    async def stop(self) -> None:
        """Accept no new connections, but for those that the system has accepted already, and would reset."""
        if self._listener.fileno() < 0:
            return
        self._accept(BACKLOG)
        self._loop.remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()
        self._listener.close()
        if self._begun:
            _, late = await asyncio.wait(self._begun, timeout=_LAST_S)
            for connection in late:
                connection.cancel()

    async def close(self) -> None:
        """Close all connections, and give their clients a moment to take the last bytes."""
        for connection in list(self._connections):
            with contextlib.suppress(Exception):
                connection.transport.close()
        ends = self._loop.time() + _LAST_S
        while self._connections and self._loop.time() < ends:
            await asyncio.sleep(0.01)


class HttpPort(Port):
    """A port of HTTP.

    Attributes:
        state: Has the open connections, and the tasks of their requests.

    Args:
        listener: As `Port` takes it.
        service: The service that answers.
        state: See the attribute.
        http2: Gives the protocol of a client that begins with the preface of HTTP/2. None: it is refused.
        admin: Whether it answers those who operate the server alone.
    """

    def __init__(
        self,
        listener: socket.socket,
        service: Service,
        state: ServerState,
        http2: Callable[[], asyncio.Protocol] | None = None,
        *,
        admin: bool = False,
    ) -> None:
        super().__init__(listener, service.limits, state.connections)
        self.state, self._counters = state, service.counters
        answers = application(service, admin=admin)
        plans = Plans(service, answers.table.plan)
        protocol: Any = protocol_class(service, plans, http2)
        self._config = Config(answers, lifespan="off", http=protocol, ws="none", log_config=None)
        self._config.load()

    def connection(self) -> Any:
        """Return the protocol of a new connection, which refuses what is beyond the limit."""
        protocol: Any = self._config.http_protocol_class
        config, state = self._config, self.state
        return protocol(config=config, server_state=state, app_state={}, _loop=self._loop)

    def refuses(self, secure: bool) -> bool:
        """Note a connection beyond the limit. Without TLS its protocol refuses it, with an answer."""
        if secure:
            self._counters.note_unread("503", "overloaded", 0)
        return secure
