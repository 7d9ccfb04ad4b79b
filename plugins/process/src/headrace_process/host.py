"""Host: a backend in a process of another machine, where `headrace worker` listens."""

from __future__ import annotations

import contextlib
import signal
import socket
import ssl
import struct
import threading
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic import Field, field_validator

import headrace
from headrace import Options as _Options
from headrace.errors import SetupError
from headrace.isolation import Restarts
from headrace_process import hello
from headrace_process.apart import Apart
from headrace_process.secret import WrongSecretError, connect, read_secret
from headrace_process.tcp import TcpLink, keep_alive, read_exactly
from headrace_process.worker import ALIVE, ENDED, FRAME, REPORT, is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace import InitContext
    from headrace.isolation import ChildPlan

__all__ = ["Host", "Machine", "Workers", "versions_for"]

_CONNECT_S = 10.0
_MOST_FRAME_BYTES = 1 << 20
_LONGEST_PAUSE_S = 10.0


class Host(Apart):
    """Let X live in a process of another machine: ``Host(at=["gpu1:7000"])[X]``.

    There `headrace worker` listens, with the same versions of Python, core and all plugins in X, and the files
    that the configuration imports at the same paths. All that holds for `Process` holds here: what X reads is sent,
    what it wrote comes back, outcomes are those of each request, log records and warnings arrive, and what dies
    is started again. Instance 0 lives at the first address, instance 1 at the second, and so on, around; what
    could not be started at one address, or has died there, is started at the next one.

    A machine that says nothing for three heartbeats is away: its batch fails with InstanceLostError, or runs once
    more elsewhere where all backends in X say ``rerun``, and requests go to other instances, or wait.

    **Who has the secret runs code**, on both machines: batches are pickles. The secret never crosses the wire, and
    both sides prove it before anything is unpickled. Beyond the loopback TLS is needed, or ``insecure``.

    Probes and ``timings`` see nothing of the backends in X: their clock is another one.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises; InputError when a key that X reads cannot be copied; ContractError when a key that
        X wrote cannot be copied; InstanceLostError when the process has died, or its machine is away.
    Source:
        own
    Example:
        A machine that decodes, beside the one of the program::

            [decode]
            backend = "Host[S[DecodeMat,ResizeMat(64,64)]]"
            at = ["cpu1:7000", "cpu2:7000"]
            secret_file = "secret"
            tls_ca = "ca.pem"
            instance_num = 2
    """

    class Options(_Options):
        """Options of Host."""

        at: list[str] = Field(
            min_length=1, description="The addresses of workers, HOST:PORT each, one or more."
        )
        secret_file: headrace.FilePath = Field(
            description="The file with the secret of the workers: 64 hexadecimal digits."
        )
        tls_ca: headrace.FilePath | None = Field(
            None, description="The roots for the workers' certificates, PEM; none: no TLS."
        )
        insecure: bool = Field(
            False, description="Let connections to other machines be without TLS."
        )
        heartbeat_ms: float = Field(
            1000,
            ge=10,
            le=60000,
            description="A machine that says nothing three times is away (ms).",
        )
        restart_limit: int | None = Field(
            None, ge=0, description="How many times a minute X is started again; none: without end."
        )
        kill_after_ms: float | None = Field(
            None,
            ge=0,
            description="Kill the process when a batch of its instance runs for so long (ms) after the last "
            "deadline of its requests; none: never.",
        )

        @field_validator("at")
        @classmethod
        def _judge_addresses(cls, at: list[str]) -> list[str]:
            for one in at:
                hello.split_address(one)
            return at

    same_clock = False

    def init(self, options: Options, context: InitContext) -> None:
        """Connect to a worker, let it build X, and take over its range.

        Raises:
            SetupError: No worker is there, it has another secret or other versions, or X could not be built.
        """
        plan: Any = context.children[0]
        self.options = options
        if options.kill_after_ms is not None:
            self.kill_after_s = options.kill_after_ms / 1000
        tls = None
        if options.tls_ca is not None:
            try:
                tls = ssl.create_default_context(cafile=str(options.tls_ca))
            except (OSError, ssl.SSLError) as error:
                raise SetupError(f"tls_ca: {options.tls_ca} cannot be used: {error}") from error
        secret, versions = read_secret(options.secret_file), versions_for(plan)
        heartbeat_s = options.heartbeat_ms / 1000
        self._workers = Workers(secret, versions, heartbeat_s, tls, insecure=options.insecure)
        self._starts: dict[int, count[int]] = {}
        super().init(options, context)

    def place(self, index: int) -> Machine:
        """Return the machine of the next start: the first time that of the instance, then the next one."""
        turn = next(self._starts.setdefault(index, count(index)))
        return Machine(self._workers, self.options.at[turn % len(self.options.at)])

    def restarts(self) -> Restarts:
        """Return how often X is started again."""
        return Restarts(self.options.restart_limit, _LONGEST_PAUSE_S)


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
    from headrace_process import __version__

    return {**plan.requires, "headrace-process": __version__}
