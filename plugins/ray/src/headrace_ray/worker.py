"""The side that listens, in an actor: one container that proves the secret gets a process for X here.

The worker itself unpickles nothing. It hands the process the connection for batches, and keeps the other one: it passes
on what the process reports, says every heartbeat that it is there, and ends the process when the container has gone.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import struct
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace_process.far import Reports, serve
from headrace_process.spawning import end_with_parent, spawn
from headrace_ray.greeting import BATCHES, CONTROL, WrongSecretError, accept
from headrace_ray.tcp import TcpLink, keep_alive
from headrace_ray.tls import context

if TYPE_CHECKING:
    import subprocess

__all__ = ["ALIVE", "ENDED", "FRAME", "GREETING_S", "REPORT", "Worker"]

FRAME = struct.Struct("<cI")
"""Before each piece on the connection for control: its kind, and its size in bytes."""

ALIVE, REPORT, ENDED = b"a", b"r", b"e"

GREETING_S = 10.0
"""How long a connection has to prove the secret."""

_MOST_GREETINGS = 64
"""So many connections may be about to prove the secret at a time; the oldest makes room for another."""

_CHUNK_BYTES = 1 << 16

_log = logging.getLogger("headrace.worker")

_CODE = "import sys; sys.path[:] = {path!r}; from headrace_ray.worker import main; main({files}, {parent})"


class Worker:
    """Waits for one container, and stays with it until it or its process has ended.

    Args:
        host: The address of this machine at which it listens, at a free port.
        secret: What the container has to prove.
        heartbeat_s: How often it says that it is there (seconds).

    Raises:
        SetupError: The certificates of Ray's TLS cannot be used.
    """

    def __init__(self, host: str, secret: bytes, heartbeat_s: float) -> None:
        self._secret, self._heartbeat_s = secret, heartbeat_s
        self._tls = context(server=True)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port: int = self._listener.getsockname()[1]
        self._unproved: list[socket.socket] = []
        self._closed = False
        self._come: dict[bytes, queue.Queue[socket.socket]] = {
            role: queue.Queue() for role in (CONTROL, BATCHES)
        }

    def serve(self, wait_s: float) -> None:
        """Wait for the container, at most ``wait_s`` seconds; return once it or its process has ended."""
        threading.Thread(target=self._accept, name="headrace-accept", daemon=True).start()
        control: socket.socket | None = None
        batches: socket.socket | None = None
        try:
            control = self._come[CONTROL].get(timeout=wait_s)
            if self._tls is not None:
                control.settimeout(GREETING_S)
                control = self._tls.wrap_socket(control, server_side=True)
            batches = self._come[BATCHES].get(timeout=GREETING_S)
        except queue.Empty:
            _log.warning("no container has come")
            return
        except OSError as error:
            _log.warning("the connection of the container has ended: %s", error)
            return
        finally:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # `_accept` waits there
            self._listener.close()
            self._closed = True
            self._close_unused()
            if control is not None and batches is None:
                control.close()
        for connection in (control, batches):
            connection.settimeout(None)
            keep_alive(connection, 3 * self._heartbeat_s)
        with control:
            self._with_process(control, batches)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._unproved.append(connection)
            if len(self._unproved) > _MOST_GREETINGS:
                with suppress(OSError):  # it has ended just now
                    self._unproved.pop(0).shutdown(socket.SHUT_RDWR)
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """Learn what a connection is for; in a thread of its own, so that half a greeting keeps nobody else out."""
        try:
            self._come[accept(connection, self._secret, GREETING_S)].put(connection)
            if self._closed:
                self._close_unused()
        except (WrongSecretError, EOFError, OSError) as error:
            _log.warning("a connection was refused: %s: %s", type(error).__name__, error)
            connection.close()
        finally:
            with suppress(ValueError):  # it has made room
                self._unproved.remove(connection)

    def _close_unused(self) -> None:
        """Close connections that nobody takes any more."""
        for left in self._come.values():
            with suppress(queue.Empty):
                while True:
                    left.get_nowait().close()

    def _with_process(self, control: socket.socket, batches: socket.socket) -> None:
        reports, far_reports = socket.socketpair()
        with reports:
            with batches, far_reports:  # the process has its own
                files = (batches.fileno(), far_reports.fileno())
                path = [str(entry) for entry in sys.path]
                child = spawn(_CODE.format(path=path, files=files, parent=os.getpid()), files)
            try:
                self._keep(child, reports, control)
            finally:
                child.kill()
                child.wait()

    def _keep(
        self, child: subprocess.Popen[bytes], reports: socket.socket, control: socket.socket
    ) -> None:
        """Return once the process has ended; end it when the container has gone."""
        ended, sending = threading.Event(), threading.Lock()

        def tell(kind: bytes, content: bytes = b"") -> None:
            with sending, suppress(OSError):  # the container has gone
                control.sendall(FRAME.pack(kind, len(content)) + content)

        def pass_on() -> None:
            while piece := reports.recv(_CHUNK_BYTES):
                tell(REPORT, piece)

        def see_end() -> None:
            child.wait()
            ended.set()

        def see_container_gone() -> None:
            poll = select.poll()
            poll.register(control, select.POLLIN)
            poll.poll()  # the container says nothing here: its connection has ended
            child.kill()

        passing = threading.Thread(target=pass_on, daemon=True)
        passing.start()
        for watch in (see_end, see_container_gone):
            threading.Thread(target=watch, daemon=True).start()
        while not ended.wait(self._heartbeat_s):
            tell(ALIVE)
        reports.shutdown(socket.SHUT_RD)  # what the process has started may hold the other end
        passing.join()
        tell(ENDED, struct.pack("<i", child.returncode))


def main(files: tuple[int, int], parent: int) -> None:
    """Serve a container on another machine. Runs in the process that the worker has started.

    Args:
        files: Descriptors: the connection for batches, and the socket for all messages that are no answers.
        parent: The process id of the worker.
    """
    for file in files:
        os.set_inheritable(file, False)
    reports = Reports(socket.socket(fileno=files[1]))
    end_with_parent(parent, reports.wait_for_end)
    batches, tls = socket.socket(fileno=files[0]), context(server=True)
    serve(TcpLink(tls.wrap_socket(batches, server_side=True) if tls else batches), reports)
