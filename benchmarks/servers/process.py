"""A server in processes of its own, and a client that costs little."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import on_cores
from benchmarks.servers.network import MODEL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import psutil

START_SECONDS = 90.0
ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join([str(ROOT), str(ROOT / "core" / "src")])
"""The parts of this checkout that the modules of a server import in an environment of their own."""


def paths_for(python: str | Path) -> str:
    """Return PYTHONPATH of a server: that of this process too, where the interpreter is the same."""
    own = os.environ.get("PYTHONPATH", "") if str(python) == sys.executable else ""
    return os.pathsep.join(part for part in (SOURCES, own) if part)


def read_cores(text: str) -> list[int]:
    """Read ``0,1`` or ``2-15`` or both as the numbers of cores."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


PATHS = {
    "headrace_serve": "/run/light",
    "litserve": "/predict",
    "mosec": "/inference",
    "bentoml": "/classify",
    "mlserver": "/classify",
    "ray": "/classify",
    "pytriton": "/v2/models/light/infer",
}


class RefusedError(RuntimeError):
    """The server refused the request because it is overloaded."""


class Client:
    """POSTs to one address, each thread on a connection that stays open.

    It reads answers that have a Content-Length, as those of all servers here have. A path of the Open Inference
    Protocol gets the file as a binary tensor.
    """

    def __init__(self, port: int, path: str) -> None:
        self.port, self.path = port, path
        self.head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            "Content-Type: application/octet-stream\r\nContent-Length: "
        ).encode()
        self.idle: list[socket.socket] = []
        self.of_protocol = path.startswith("/v2/")

    def request(self, file: bytes) -> bytes:
        """Give the bytes of a request with one file."""
        if not self.of_protocol:
            return b"%b%d\r\n\r\n%b" % (self.head, len(file), file)
        size = len(file) + 4
        tensor = b'{"inputs":[{"name":"file","datatype":"BYTES","shape":[1,1],"parameters":{"binary_data_size":%d}}]}'
        document = tensor % size
        extra = b"\r\nInference-Header-Content-Length: %d" % len(document)
        body = document + (len(file)).to_bytes(4, "little") + file
        return b"%b%d%b\r\n\r\n%b" % (self.head, len(body), extra, body)

    def __call__(self, file: bytes) -> int:
        """Send one file; give its class."""
        connection = self.idle.pop() if self.idle else self.connect()
        try:
            connection.sendall(self.request(file))
            status, body = self.read(connection)
        except BaseException:
            connection.close()
            raise
        self.idle.append(connection)
        if status == b"429":
            raise RefusedError
        if status != b"200":
            raise RuntimeError(f"HTTP status {status.decode()}: {body[:200]!r}")
        answer = json.loads(body)
        if self.of_protocol:
            return int(answer["outputs"][0]["data"][0])
        return int(answer["class"] if "class" in answer else answer["result"])

    def connect(self) -> socket.socket:
        """Open a connection that sends data at once, without waiting for more (TCP_NODELAY)."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def read(self, connection: socket.socket) -> tuple[bytes, bytes]:
        """Read one answer; give its status and body."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.more(connection)
        head, _, body = received.partition(b"\r\n\r\n")
        _, found, length = head.lower().partition(b"\r\ncontent-length:")
        if not found:
            raise RuntimeError(f"an answer without its length: {head[:200]!r}")
        while len(body) < int(length.partition(b"\r\n")[0]):
            body += self.more(connection)
        return head.split(b" ", 2)[1], body

    def more(self, connection: socket.socket) -> bytes:
        """Read the bytes that have arrived."""
        received = connection.recv(65536)
        if not received:
            raise ConnectionResetError("the server closed the connection")
        return received

    def close(self) -> None:
        """Close the connections; the next requests open new ones."""
        while self.idle:
            self.idle.pop().close()


class Server:
    """A server in processes of its own, ready when made.

    Attributes:
        client: Sends requests to it.
    """

    def __init__(
        self,
        peer: str,
        setting: Mapping[str, Any],
        model: Path,
        file: bytes,
        python: str | Path = sys.executable,
        cores: Collection[int] | None = None,
    ) -> None:
        import psutil

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.name = f"{peer} {setting}"
        self.client = Client(port, PATHS[peer])
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        module = f"benchmarks.servers.with_{peer}"
        with on_cores(cores):
            self.process = psutil.Popen(
                [python, "-m", module, str(port), json.dumps(setting)],
                env={**os.environ, MODEL: str(model), "PYTHONPATH": paths_for(python)},
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
            )
        self.tree: list[psutil.Process] = [self.process]
        try:
            self.wait_until_ready(file)
        except BaseException:
            self.stop()
            raise

    def wait_until_ready(self, file: bytes) -> None:
        """Send requests until the server answers several in a row, so that every worker is ready."""
        until, answered = time.perf_counter() + START_SECONDS, 0
        while answered < 20:
            try:
                self.client(file)
                answered += 1
            except (OSError, RuntimeError) as error:
                answered = 0
                if self.process.poll() is not None or time.perf_counter() > until:
                    self.log.seek(0)
                    tail = self.log.read()[-3000:].decode(errors="replace")
                    raise SystemExit(f"{self.name} does not answer ({error}):\n{tail}") from error
                time.sleep(0.1)
        self.tree = [self.process, *self.process.children(recursive=True)]

    def cpu_seconds(self) -> float:
        """Return the processor time of all processes of the server, in seconds."""
        times = [process.cpu_times() for process in self.tree]
        return sum(time.user + time.system for time in times)

    def pause(self) -> None:
        """Suspend the processes of the server, so that they use no processor time."""
        for process in self.tree:
            process.suspend()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the server run inside a ``with`` block, with fresh connections."""
        for process in self.tree:
            process.resume()
        self.client.close()
        yield
        self.client.close()
        self.pause()

    def stop(self) -> None:
        """End all processes of the server."""
        import psutil

        self.client.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            self.tree = [self.process, *self.process.children(recursive=True)]
        for process in reversed(self.tree):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self.tree, timeout=10)
        self.log.close()
