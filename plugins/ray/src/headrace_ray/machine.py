"""A process started by the worker of an actor, as the place of a part: connects to it, and sees its end."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from headrace.errors import SetupError
from headrace_process.spawning import ended_with
from headrace_ray.greeting import BATCHES, CONTROL, WrongSecretError, connect
from headrace_ray.tcp import TcpLink, keep_alive
from headrace_ray.tls import context
from headrace_ray.worker import ENDED, FRAME, GREETING_S, REPORT

__all__ = ["Machine"]


class Machine:
    """A process on another machine, with two connections: for batches, and for all that is no answer.

    Args:
        host: Where its worker listens.
        port: The port there.
        secret: The secret that the worker has to prove.
        heartbeat_s: The time between two heartbeats of the worker (seconds). After three missed heartbeats it is away.
    """

    def __init__(self, host: str, port: int, secret: bytes, heartbeat_s: float) -> None:
        self._host, self._port, self._secret = host, port, secret
        self._away_s = 3 * heartbeat_s
        self._ended = threading.Event()
        self._status: int | None = None
        self._why = "with its connection"
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> tuple[TcpLink, socket.socket]:
        """Let the worker start a process. Return the link, and the socket of what is no answer.

        Raises:
            SetupError: No worker is there, it has another secret, or only one side has TLS.
        """
        tls, name = context(server=False), self._host
        try:
            with contextlib.ExitStack() as opened:
                self._control = opened.enter_context(self._connected(CONTROL))
                if tls is not None:
                    self._control.settimeout(GREETING_S)
                    self._control = tls.wrap_socket(self._control, server_hostname=name)
                    opened.enter_context(self._control)
                opened.callback(self.kill)
                batches = opened.enter_context(self._connected(BATCHES))
                batches.settimeout(None)
                self._control.settimeout(self._away_s)
                for connection in (batches, self._control):
                    keep_alive(connection, self._away_s)
                if tls is not None:
                    wrapped = tls.wrap_socket(
                        batches, server_hostname=name, do_handshake_on_connect=False
                    )
                    batches = opened.enter_context(wrapped)
                self._link = TcpLink(batches)
                self._reports, reports = socket.socketpair()
                threading.Thread(target=self._listen, name="headrace-ray", daemon=True).start()
                if tls is not None:
                    wrapped.do_handshake()  # with the process, once it has started: `_listen` sees when it does not
                opened.pop_all()
        except (OSError, EOFError, WrongSecretError) as error:
            problem = f"the actor at {self.address} is not reached: {type(error).__name__}: {error}"
            hint = "Is its network reached from here, and has RAY_USE_TLS there the value that it has here?"
            raise SetupError(problem, hint=hint) from error
        return self._link, reports

    def _connected(self, role: bytes) -> socket.socket:
        connection = socket.create_connection((self._host, self._port), GREETING_S)
        try:
            connect(connection, self._secret, role, GREETING_S)
        except BaseException:
            connection.close()
            raise
        return connection

    def _listen(self) -> None:
        """Take what the worker says, until the process has ended, or nothing has come for three heartbeats."""
        try:
            with self._control.makefile("rb") as stream:
                while self._status is None:
                    kind, size = FRAME.unpack(stream.read(FRAME.size))
                    content = stream.read(size)
                    if kind == REPORT:
                        self._reports.sendall(content)
                    elif kind == ENDED:
                        (self._status,) = struct.unpack("<i", content)
        except TimeoutError:
            self._why = f"or is frozen: it said nothing for {self._away_s:g} s"
        except (OSError, ValueError, struct.error):
            pass  # the connection has ended, or `kill` has cut it
        finally:
            self._link.cut()
            self._ended.set()
            for connection in (self._reports, self._control):
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def wait(self) -> None:
        """Wait until the process has ended, or its machine is away."""
        self._ended.wait()

    def kill(self) -> None:
        """End the process: its worker does so when this connection ends."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._control, socket.SHUT_RDWR)

    def how_ended(self) -> tuple[str, str | None]:
        """Say how the process has ended, and where."""
        if self._status is None:
            return f"{self._why}, at {self.address}", None
        how, hint = ended_with(self._status)
        return f"{how}, at {self.address}", hint

    def close(self) -> None:
        """Close the second connection."""
        self._ended.wait()
        self._control.close()
        self._reports.close()
