"""Parts in processes of other machines: who connects to their workers, and the place of such a part."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_workers import hello
from headrace_workers.secret import WrongSecretError, connect
from headrace_workers.tcp import TcpLink, keep_alive, read_exactly
from headrace_workers.worker import ALIVE, ENDED, FRAME, REPORT, is_loopback

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from headrace.isolation import ChildPlan

__all__ = ["Machine", "Workers", "versions_for"]

_CONNECT_S = 10.0
_MOST_FRAME_BYTES = 1 << 20
_LONGEST_PAUSE_S = 10.0


@dataclass(frozen=True)
class Workers:
    """How workers are reached, and what they must have.

    Attributes:
        secret: 32 bytes, which they have as well.
        versions: The versions that they must have installed, by distribution.
        heartbeat_s: How often they say that a process lives (seconds).
        tls: The roots for their certificates; None for no TLS.
        insecure: Whether connections to other machines may be without TLS.
    """

    secret: bytes
    versions: Mapping[str, str]
    heartbeat_s: float
    tls: ssl.SSLContext | None = None
    insecure: bool = False

    def connected(self, address: str) -> socket.socket:
        """Connect to a worker, and prove the secret.

        Raises:
            SetupError: It is not there, or is not to be trusted.
        """
        connection: socket.socket | None = None
        try:
            host, port = hello.split_address(address)
            connection = socket.create_connection((host, port), _CONNECT_S)
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_hostname=host)
            else:
                self._check_plain(address, connection)
            connect(connection, self.secret)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, WrongSecretError):
                what = f"the worker at {address} has another secret, or is no worker"
                hint = (
                    "Copy the file of the secret; with TLS on one side alone this is seen as well."
                )
                raise SetupError(what, hint=hint) from error
            if isinstance(error, (OSError, EOFError, ValueError)):
                hint = (
                    f"Start it there: headrace worker --listen {address} --secret-file FILE"
                    if connection is None
                    else "Something listens there: has one side TLS alone, is the certificate by tls_ca, is it a worker?"
                )
                raise SetupError(f"no worker answers at {address}: {error}", hint=hint) from error
            raise
        return connection

    def _check_plain(self, address: str, connection: socket.socket) -> None:
        """Refuse a connection without TLS to another machine, unless the options say that it may be."""
        if not (self.insecure or is_loopback(connection.getpeername()[0])):
            what = f"{address} is another machine, and without TLS whoever is between sees and changes all"
            raise SetupError(what, hint="Name the roots, tls_ca, or say insecure = true.")


class Machine:
    """A process that a worker starts, with two connections: for batches, and for all that is no answer.

    Args:
        workers: How it is reached.
        address: Where the worker listens.
    """

    def __init__(self, workers: Workers, address: str) -> None:
        self._workers, self._address = workers, address
        self._heartbeat_s = workers.heartbeat_s
        self._ended = threading.Event()
        self._status: int | None = None
        self._why = "with its connection"

    def start(self) -> tuple[TcpLink, socket.socket]:
        """Let the worker start a process; return the link, and the socket of what is no answer.

        Raises:
            SetupError: No worker is there, it has another secret, or other versions.
        """
        batches = self._workers.connected(self._address)
        try:
            wants = {"versions": dict(self._workers.versions), "heartbeat_s": self._heartbeat_s}
            hello.say(batches, **{"for": "batches"}, **wants)
            token = self._answer(batches)["token"]
            self._control = self._workers.connected(self._address)
            try:
                hello.say(self._control, **{"for": "reports"}, token=token)
                self._answer(self._control)
            except BaseException:
                self._control.close()
                raise
        except BaseException as error:
            batches.close()
            if isinstance(error, (OSError, EOFError, ValueError, KeyError)):
                what = f"the worker at {self._address} started no process: {type(error).__name__} {error}"
                raise SetupError(what, hint="Look at what the worker has logged.") from error
            raise
        batches.settimeout(None)
        self._control.settimeout(3 * self._heartbeat_s)
        for one in (batches, self._control):
            keep_alive(one, 3 * self._heartbeat_s)
        self._link = TcpLink(batches)
        self._reports, reports = socket.socketpair()
        threading.Thread(target=self._listen, name="headrace-host", daemon=True).start()
        return self._link, reports

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        answer = hello.read(connection)
        if "error" in answer:
            raise SetupError(f"the worker at {self._address} refuses: {answer['error']}")
        return answer

    def _listen(self) -> None:
        """Take what the worker says, until the process has ended, or nothing has come for three heartbeats."""
        try:
            while self._status is None:
                kind, size = FRAME.unpack(read_exactly(self._control, FRAME.size))
                if size > _MOST_FRAME_BYTES or kind not in (ALIVE, REPORT, ENDED):
                    break
                content = read_exactly(self._control, size)
                if kind == REPORT:
                    self._reports.sendall(content)
                elif kind == ENDED:
                    (self._status,) = struct.unpack("<i", content)
        except TimeoutError:
            self._why = f"or is frozen: it said nothing for {3 * self._heartbeat_s:g} s"
        except (OSError, EOFError, ValueError, struct.error):
            pass  # the connection has ended, or `kill` has cut it
        finally:
            self._link.cut()
            self._ended.set()
            for one in (self._reports, self._control):
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(one, socket.SHUT_RDWR)

    def wait(self) -> None:
        """Wait until the process has ended, or its machine is away."""
        self._ended.wait()

    def kill(self) -> None:
        """End the process: its worker does so when this connection ends."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._control, socket.SHUT_RDWR)

    def how_ended(self) -> tuple[str, str | None]:
        """Say how the process has ended, and where."""
        status = self._status
        if status is None:
            return f"{self._why}, at {self._address}", None
        if status >= 0:
            return f"with status {status}, at {self._address}", None
        try:
            how = f"of signal {signal.Signals(-status).name}"
        except ValueError:
            how = f"of signal {-status}"
        hint = "Perhaps the system has killed it because memory ran out." if status == -9 else None
        return f"{how}, at {self._address}", hint

    def close(self) -> None:
        """Close the second connection."""
        self._ended.wait()
        self._control.close()
        self._reports.close()


def versions_for(plan: ChildPlan) -> dict[str, str]:
    """Return the versions that building the plan elsewhere needs, by distribution."""
    from headrace_workers import __version__

    return {**plan.requires, "headrace-workers": __version__}
