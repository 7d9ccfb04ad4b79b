"""RTSP through a relay of our own: FFmpeg follows a redirect to any host, and has no option against that."""

from __future__ import annotations

import io
import re
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any
from urllib.parse import urlsplit

from headrace.errors import InputError

__all__ = ["RtspRelay"]

_PORTS = {"rtsp": 554, "rtsps": 322}
_ANSWER = re.compile(rb"RTSP/[0-9.]+ ([0-9]{3})(?: .*)?")
_REQUEST = re.compile(rb"[A-Z_]+ [^ ]+ RTSP/[0-9.]+")
_MOST_LINE_BYTES, _MOST_LINES, _MOST_BODY_BYTES = 4095, 256, 1_000_000
_CHUNK_BYTES = 65_536


class _Turns(io.RawIOBase):
    """A TLS connection that one thread reads and another one writes: OpenSSL lets them do so in turns alone."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._lock = threading.Lock()

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer as soon as there is something; return how many bytes, 0 at the end."""
        return self._in_turn(lambda: self._connection.recv_into(buffer))

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        while data:
            part = data
            data = part[self._in_turn(lambda part=part: self._connection.send(part)) :]  # type: ignore[misc]

    def _in_turn(self, work: Callable[[], int]) -> int:
        while True:
            try:
                with self._lock:
                    return work()
            except ssl.SSLWantReadError:
                event = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                event = selectors.EVENT_WRITE
            with selectors.DefaultSelector() as ready:
                ready.register(self._connection, event)
                ready.select()


class RtspRelay:
    """A port of this machine that FFmpeg connects to, once, in place of a camera.

    What the camera says goes through word by word until the pictures begin, and a redirect does not. Whatever FFmpeg
    might read otherwise than it is read here is refused too. Pictures over UDP come to FFmpeg itself: the address that it
    answers to is that of the camera, whatever the camera says.

    Args:
        address: The camera. With ``rtsps`` its certificate is checked.
        timeout_s: Most seconds until it is connected.

    Attributes:
        address: What FFmpeg is to open.
        refused: Why the connection was ended, or None.

    Raises:
        OSError: It cannot be connected.

    Source:
        RFC 2326, sections 6, 7 and 10.12 (messages, and what is interleaved with them).
    """

    def __init__(self, address: str, timeout_s: float) -> None:
        parts = urlsplit(address)
        scheme, host = parts.scheme.lower(), parts.hostname or ""
        camera = socket.create_connection((host, parts.port or _PORTS[scheme]), timeout_s)
        try:
            if scheme == "rtsps":
                camera = ssl.create_default_context().wrap_socket(camera, server_hostname=host)
            self._host = str(camera.getpeername()[0])
            camera.settimeout(None)  # from here on FFmpeg says how long a silence may last
            self._camera: Any = _Turns(camera) if isinstance(camera, ssl.SSLSocket) else camera
            self._listening = socket.create_server(("127.0.0.1", 0), backlog=1)
            self._listening.settimeout(timeout_s)
        except BaseException:
            camera.close()
            raise
        self._is_playing = False
        self._lock = threading.Lock()
        self._open = [self._listening, camera]
        self._is_closed = False
        self.refused: InputError | None = None
        user, at, _ = parts.netloc.rpartition("@")
        here = f"{user}{at}127.0.0.1:{self._listening.getsockname()[1]}"
        self.address = parts._replace(scheme="rtsp", netloc=here).geturl()
        self._thread = self._start(self._serve)

    def _start(self, work: Any, *args: Any) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, name="headrace-vision-rtsp", daemon=True)
        thread.start()
        return thread

    def _serve(self) -> None:
        asking = None
        try:
            player, _ = self._listening.accept()
            player.settimeout(None)
            with self._lock:
                self._open.append(player)
                if self._is_closed:
                    return
            asking = self._start(self._ask, player)
            is_tls = isinstance(self._camera, _Turns)
            raw = self._camera if is_tls else self._camera.makefile("rb", buffering=0)
            with io.BufferedReader(raw, _CHUNK_BYTES) as camera:
                self._answer(camera, player)
        except InputError as error:
            self.refused = error
        except (OSError, ValueError):  # what was shut down meanwhile
            pass
        finally:
            self._shut_down()
            if asking is not None:
                asking.join()
            for connection in self._open:
                connection.close()

    def _ask(self, player: socket.socket) -> None:
        """Hand on what FFmpeg asks; once it asks for the pictures, it follows no redirect any more."""
        with suppress(OSError, ValueError):
            while data := player.recv(_CHUNK_BYTES):
                self._is_playing = self._is_playing or data.startswith(b"PLAY ")
                self._camera.sendall(data)
        self._shut_down()

    def _answer(self, camera: io.BufferedReader, player: socket.socket) -> None:
        while not self._is_playing:
            message = _message(camera, self._host.encode())
            if not message:
                return
            player.sendall(message)
        while data := camera.read1(_CHUNK_BYTES):
            player.sendall(data)

    def close(self) -> None:
        """End both connections."""
        self._shut_down()
        self._thread.join()

    def _shut_down(self) -> None:
        """Wake who reads or writes. The thread that serves closes: a socket that is closed under a reader wakes nobody."""
        with self._lock:
            self._is_closed = True
            for connection in self._open:
                with suppress(OSError):
                    # This leaves TLS to who reads it.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _message(camera: IO[bytes], host: bytes) -> bytes:
    """Return the next message of a camera, or what is interleaved. Nothing at the end.

    Args:
        camera: What it says.
        host: Its address, from which its pictures come over UDP.

    Raises:
        InputError: It is a redirect, or no RTSP.
    """
    first = camera.read(1)
    if first == b"$":
        head = camera.read(3)
        return first + head + camera.read(int.from_bytes(head[1:], "big"))
    text, body_bytes, has_length = first, 0, False
    for number in range(_MOST_LINES):
        raw = camera.readline(_MOST_LINE_BYTES)
        if not raw:
            return b""
        line = (first + raw if number == 0 else raw).replace(b"\r", b"")
        if not line.endswith(b"\n") or line.startswith(b"$") or b"\0" in line:
            raise _no_rtsp(line)
        line = line[:-1]
        text += _with_source(raw, line, host)
        if not line:
            break
        if number == 0:
            _check_first(line)
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            if has_length or not value.strip().isdigit():
                raise _no_rtsp(line)
            body_bytes, has_length = int(value), True
    else:
        raise _no_rtsp(b"a message without an end")
    if body_bytes > _MOST_BODY_BYTES:
        raise _no_rtsp(b"a body of %d bytes" % body_bytes)
    return text + camera.read(body_bytes)


def _with_source(raw: bytes, line: bytes, host: bytes) -> bytes:
    """Return a line as it goes to FFmpeg, which sends over UDP to the host that the last ``source`` of the first way names."""
    if not (line.lower().startswith(b"transport:") and b"server_port" in line):
        return raw
    line = line.partition(b",")[0] + b";source=" + host
    if len(line) >= _MOST_LINE_BYTES:
        raise _no_rtsp(line)
    return line + b"\r\n"


def _check_first(line: bytes) -> None:
    answer = _ANSWER.fullmatch(line)
    if answer is not None and answer[1].startswith(b"3"):
        text = "the camera sends us to another address"
        expected = "an answer; redirects are not followed"
        hint = "Write the address where it is now, and its host into network."
        got = line[:80].decode("ascii", "replace")
        raise InputError(text, expected=expected, got=got, hint=hint)
    if answer is None and not _REQUEST.fullmatch(line):
        raise _no_rtsp(line)


def _no_rtsp(got: bytes) -> InputError:
    text = got[:80].decode("ascii", "replace")
    return InputError("the camera does not speak RTSP", expected="an answer of RTSP", got=text)
