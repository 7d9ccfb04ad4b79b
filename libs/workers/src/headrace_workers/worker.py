"""The listening side: each container that proves the secret gets a process of its own here.

The worker itself unpickles nothing. It checks the secret, compares versions, starts a process, hands it the
connection for batches, and keeps the other connection: it passes on what the process reports, says every
heartbeat that the process lives, and ends it when the container has gone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import secrets
import select
import socket
import ssl
import struct
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SetupError
from headrace_workers import hello
from headrace_workers.far import Reports, serve
from headrace_workers.secret import WrongSecretError, accept
from headrace_workers.spawning import end_with_parent, spawn
from headrace_workers.tcp import TcpLink, keep_alive

if TYPE_CHECKING:
    import subprocess

__all__ = ["FRAME", "Worker"]

FRAME = struct.Struct("<cI")
"""Before each piece on the second connection: its kind, and its size in bytes."""

ALIVE, REPORT, ENDED = b"a", b"r", b"e"

_log = logging.getLogger("headrace.worker")

_CODE = "import sys; sys.path[:] = {path!r}; from headrace_workers.worker import main; main({files}, {parent})"
_GREETING_S = 10.0
"""How long a connection has to prove the secret and to say what it wants."""

_MOST_GREETINGS = 64
"""So many connections may be about to prove the secret at a time; others are closed."""

_CHUNK_BYTES = 1 << 16


class Worker:
    """Lets containers on other machines have processes here.

    Args:
        address: ``HOST:PORT``; port 0 takes a free one.
        secret: 32 bytes, see `headrace_workers.secret.read_secret`.
        tls: Certificate and key; None for none.
        insecure: Whether to listen beyond the loopback without TLS.
        once: Whether to end after the first container that has proved the secret.

    Raises:
        SetupError: It may not, or cannot, listen there.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        tls: ssl.SSLContext | None = None,
        *,
        insecure: bool = False,
        once: bool = False,
    ) -> None:
        self._secret, self._tls, self._once = secret, tls, once
        try:
            host, port = hello.split_address(address)
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family)
        except (OSError, ValueError) as error:
            raise SetupError(f"cannot listen at {address!r}: {error}") from error
        bound = self._listener.getsockname()
        if tls is None and not insecure and not is_loopback(bound[0]):
            self._listener.close()
            what = f"{address} is reached from other machines, and without TLS whoever is between sees and changes all"
            raise SetupError(what, hint="Name a certificate and its key, or say insecure.")
        self.port: int = bound[1]
        self._greetings = threading.Semaphore(_MOST_GREETINGS)
        self._changed = threading.Condition()
        self._waiting: dict[str, socket.socket | None] = {}
        self._children: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def serve(self) -> None:
        """Accept connections until `close`."""
        while True:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                self._changed_pause()
                continue
            if not self._greetings.acquire(blocking=False):
                connection.close()
                continue
            name = f"headrace-worker-{peer[0]}"
            threading.Thread(
                target=self._greet, args=(connection, peer), name=name, daemon=True
            ).start()

    def _changed_pause(self) -> None:
        """Wait a moment where the system has no descriptors left: until one ends, or the worker is closed."""
        with self._changed:
            self._changed.wait(0.1)

    def close(self) -> None:
        """Listen no more, and end the processes."""
        with self._changed:
            self._closed = True
            children = [*self._children]
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for child in children:
            child.kill()
            child.wait()

    def _greet(self, connection: socket.socket, peer: Any) -> None:
        """Learn what a connection is for, and serve it; in a thread of its own."""
        asked: dict[str, Any] = {}

        def give_up() -> None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

        late = threading.Timer(
            _GREETING_S, give_up
        )  # who sends a byte now and then is late as well
        late.daemon = True
        late.start()
        try:
            try:
                connection.settimeout(_GREETING_S)
                if self._tls is not None:
                    connection = self._tls.wrap_socket(connection, server_side=True)
                accept(connection, self._secret)
                asked = hello.read(connection)
            finally:
                late.cancel()
                self._greetings.release()
            if asked.get("for") == "reports":
                self._bring(connection, str(asked.get("token")))
            else:
                try:
                    self._serve_part(connection, asked)
                finally:
                    if self._once:
                        self.close()
        except WrongSecretError:
            _log.warning("%s has not the secret of this worker: it was refused", peer[0])
            connection.close()
        except (EOFError, OSError, ValueError, SetupError) as error:
            _log.warning(
                "a connection of %s has ended: %s: %s", peer[0], type(error).__name__, error
            )
            connection.close()

    def _bring(self, connection: socket.socket, token: str) -> None:
        """Give the second connection of a container to the thread that has the first."""
        with self._changed:
            known = token in self._waiting and self._waiting[token] is None
            if known:
                self._waiting[token] = connection
                self._changed.notify_all()
        if not known:
            raise ValueError("it belongs to no other connection")

    def _serve_part(self, batches: socket.socket, asked: dict[str, Any]) -> None:
        """Start a process for a container, and stay with it until its end."""
        wrong = hello.differing(asked.get("versions") or {})
        if wrong:
            hello.say(batches, error=f"other versions are installed there: {'; '.join(wrong)}")
            raise ValueError("; ".join(wrong))
        heartbeat_s = min(60.0, max(0.01, float(asked.get("heartbeat_s") or 1.0)))
        token = secrets.token_hex(16)
        with self._changed:
            self._waiting[token] = None
        try:
            hello.say(batches, token=token)
            with self._changed:
                self._changed.wait_for(lambda: self._waiting[token] or self._closed, _GREETING_S)
        finally:
            with self._changed:
                control = self._waiting.pop(token)
        if control is None:
            raise ValueError("its second connection did not come")
        for one in (batches, control):
            one.settimeout(None)
            keep_alive(one, 3 * heartbeat_s)
        with control:
            self._with_child(batches, control, heartbeat_s)

    def _with_child(
        self, batches: socket.socket, control: socket.socket, heartbeat_s: float
    ) -> None:
        reports, far_reports = socket.socketpair()
        with reports:
            link, pumps = self._link_for_child(batches)
            try:
                files = (link.fileno(), far_reports.fileno())
                path = [str(one) for one in sys.path]
                code = _CODE.format(path=path, files=files, parent=os.getpid())
                with self._changed:
                    if self._closed:
                        return
                    child = spawn(code, files)
                    self._children.add(child)
            finally:
                far_reports.close()
                link.close()  # the process has its own
            try:
                hello.say(control, process=child.pid)
                _Keeper(child, reports, control, heartbeat_s).run()
            finally:
                child.kill()
                child.wait()
                with self._changed:
                    self._children.discard(child)
                    self._changed.notify_all()
                for one in pumps:
                    one.join()

    def _link_for_child(
        self, batches: socket.socket
    ) -> tuple[socket.socket, list[threading.Thread]]:
        """Return the socket that the process gets, and the threads that carry bytes to it.

        Without TLS it is the connection itself. A TLS connection cannot leave this process.
        """
        if not isinstance(batches, ssl.SSLSocket):
            return batches, []
        here, there = socket.socketpair()
        left = [2]
        both = threading.Lock()

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with contextlib.suppress(OSError, ValueError):
                while piece := source.recv(1 << 18):
                    sink.sendall(piece)
            for one in (source, sink):
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(one, socket.SHUT_RDWR)
            with both:
                left[0] -= 1
                last = not left[0]
            if last:
                here.close()
                batches.close()

        pairs = ((batches, here), (here, batches))
        threads = [threading.Thread(target=pump, args=pair, daemon=True) for pair in pairs]
        for one in threads:
            one.start()
        return there, threads


class _Keeper:
    """Stays with one process: passes its reports on, says that it lives, and ends it when nobody wants it."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        reports: socket.socket,
        control: socket.socket,
        heartbeat_s: float,
    ) -> None:
        self.child, self.reports, self.control = child, reports, control
        self.heartbeat_s = heartbeat_s

    def run(self) -> None:
        """Return once the process has ended, or the container has gone."""
        poll = select.poll()
        poll.register(self.reports, select.POLLIN)
        poll.register(self.control, select.POLLIN)
        end = self._end_of_child()
        if end is not None:
            poll.register(end, select.POLLIN)
        beats_at = time.monotonic()
        try:
            while self.child.poll() is None:
                now = time.monotonic()
                if now >= beats_at:
                    beats_at = now + self.heartbeat_s
                    if not is_stopped(self.child.pid):
                        self._tell(ALIVE)
                ready = dict(poll.poll(max(0.0, beats_at - time.monotonic()) * 1000))
                if self.reports.fileno() in ready and not self._pass_on():
                    poll.unregister(self.reports)
                if self.control.fileno() in ready:
                    return  # the container says nothing here: its connection has ended
            self.reports.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while self._pass_on():
                    pass
            self._tell(ENDED, struct.pack("<i", self.child.returncode))
        except OSError:
            return  # the container has gone
        finally:
            if end is not None:
                os.close(end)

    def _end_of_child(self) -> int | None:
        """Open a descriptor that shows the end of the process; None where the system has none such."""
        try:
            return os.pidfd_open(self.child.pid)
        except (AttributeError, OSError):
            return None  # then its end is seen with the end of its reports, or after a heartbeat

    def _pass_on(self) -> bool:
        """Pass a piece of what the process reports on; False when no more can come."""
        piece = self.reports.recv(_CHUNK_BYTES)
        if piece:
            self._tell(REPORT, piece)
        return bool(piece)

    def _tell(self, kind: bytes, content: bytes = b"") -> None:
        self.control.sendall(FRAME.pack(kind, len(content)) + content)


def is_stopped(process: int) -> bool:
    """Tell whether a process is stopped by a signal (SIGSTOP, or a debugger); False where the system does not tell."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return state.rpartition(")")[2].split()[:1] in (["T"], ["t"])


def is_loopback(address: str) -> bool:
    """Tell whether an IP address is reached from this machine alone."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def main(files: tuple[int, int], parent: int) -> None:
    """Serve a container on another machine; runs in the process that the worker has started.

    Args:
        files: Descriptors: the connection for batches, and the socket for all messages that are no answers.
        parent: The process id of the worker.
    """
    for file in files:
        os.set_inheritable(file, False)
    reports = Reports(socket.socket(fileno=files[1]))
    end_with_parent(parent, reports.wait_for_end)
    serve(TcpLink(socket.socket(fileno=files[0])), reports)
