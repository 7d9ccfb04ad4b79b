"""The server: an event loop in a thread of its own that listens for both protocols."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import threading
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.errors import SetupError
from headrace_serve.http_protocol import protocol_class
from headrace_serve.models import build_models
from headrace_serve.rest import application
from headrace_serve.service import Service

if TYPE_CHECKING:
    from types import TracebackType

    from headrace_serve.limits import Limits

__all__ = ["Server"]

logger = logging.getLogger("headrace.serve")

_BACKLOG = 2048


class Server:
    """Serves models from a thread of its own.

    Everything is read, checked and built when it is made; `start` opens the port. ``with`` starts and
    closes it::

        with headrace_serve.Server({"page": "page.toml"}, port=0) as server:
            print(server.url)

    Attributes:
        host, port: Where it listens; the port is known once it is started.
    """

    def __init__(
        self,
        models: Any,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        limits: Limits | None = None,
        debug_errors: bool = False,
        priority_default: int = 2,
    ) -> None:
        """Build the models.

        Args:
            models: See `headrace_serve.entries.read_entries`.
            host: The address to listen on; only programs of this machine reach the default.
            port: The port; 0 takes a free one.
            limits: Bounds; see `headrace_serve.Limits`.
            debug_errors: Whether clients are told the text of every error.
            priority_default: The priority of requests that say none; 1 is most urgent.

        Raises:
            ConfigError, SetupError, PluginError: As `headrace.pipe` raises them.
        """
        self.host = host
        self.port = port
        catalogue = build_models(models)
        try:
            self._service = Service(
                catalogue,
                limits=limits,
                debug_errors=debug_errors,
                priority_default=priority_default,
            )
        except BaseException:
            catalogue.close(2.0)
            raise
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._state = ServerState()
        self._closing = threading.Lock()
        self._closed = False

    @property
    def url(self) -> str:
        """The address of REST."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def is_open_to_others(self) -> bool:
        """Whether other machines may reach it."""
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        return not all(ip_address(one[4][0]).is_loopback for one in found)

    def start(self) -> None:
        """Listen; returns when requests are accepted.

        Raises:
            SetupError: The address cannot be listened on; the models are closed then.
        """
        if self._thread is not None:
            raise RuntimeError("a server is started once")
        try:
            listener = _listen(self.host, self.port)
        except OSError as error:
            self._service.models.close(2.0)
            self._closed = True
            raise SetupError(
                f"cannot listen on {self.host} port {self.port}: {error.strerror or error}",
                hint="Another program may use the port; choose another with --port.",
            ) from error
        self.port = listener.getsockname()[1]
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop,), name="headrace-serve", daemon=True
        )
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(listener), self._loop).result()

    def close(self, *, timeout: float = 30.0) -> None:
        """Accept nothing new, let requests end within ``timeout`` seconds, and close the models.

        What is not done by then gets an answer that says so. More than one call is one.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
            if self._loop is not None and self._thread is not None:
                asyncio.run_coroutine_threadsafe(self._end(timeout), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
            else:
                self._service.models.close(timeout)

    def __enter__(self) -> Server:  # noqa: PYI034 - Self needs Python 3.11
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            loop.close()

    async def _open(self, listener: socket.socket) -> None:
        service = self._service
        config = Config(
            application(service),
            lifespan="off",
            http=protocol_class(service.limits),
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
                config=config, server_state=self._state, app_state={}, _loop=self._loop
            )
            return protocol

        self._listening = await asyncio.get_running_loop().create_server(
            connection, sock=listener, backlog=_BACKLOG
        )

    async def _end(self, timeout: float) -> None:
        """Drain: no new connection, then each one is closed when its request is answered."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + timeout
        self._service.draining = True
        self._listening.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=timeout)
        # Closed pipelines fail what is left, and every client gets that as its answer.
        left = max(0.0, ends - loop.time())
        await asyncio.to_thread(self._service.models.close, left)
        if self._state.tasks:
            await asyncio.wait(self._state.tasks, timeout=1.0)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            with contextlib.suppress(Exception):
                connection.transport.close()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._listening.wait_closed(), 1.0)


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform != "win32" and sys.implementation.name == "cpython":
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


def _listen(host: str, port: int) -> socket.socket:
    """Give a socket that listens, so that a port in use is known before the loop starts."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
