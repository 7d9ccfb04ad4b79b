"""A camera of ours that speaks RTSP, whose pictures say which they are and when each was taken."""

from __future__ import annotations

import random
import re
import socket
import struct
import threading
import time
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import av
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["COUNT", "FPS", "LINE", "Camera", "again", "encoded_pictures", "is_below", "number_in"]

FPS, COUNT, PERIOD = 10, 400, 80
"""Pictures a second, pictures before they are the same again, and pictures of one way down and up."""

SIZE, BLOCK, BITS = (240, 320), 16, 9
LINE = (0, 120, 320, 120)
"""What a square crosses twice a period, in pixels."""

_SPAN = 160
_REPORT = 2 * FPS
"""Pictures between two sender reports."""


def _top(number: int) -> int:
    """Return where a square of 40 x 40 begins, in pixels from the top: its middle is never on the line."""
    step = number % PERIOD
    return 22 + 4 * (step if step < PERIOD // 2 else PERIOD - 1 - step)


def is_below(number: int) -> bool:
    """Return whether the square of a picture is below the line."""
    return _top(number) + 20 > LINE[1]


def number_in(gray: np.ndarray[Any, Any]) -> int:
    """Return the number in a picture (``uint8 [H, W]``), from 0 to `COUNT` - 1; -1 where it cannot be read."""
    row = gray[4:12, : 2 * BITS * BLOCK].reshape(8, 2 * BITS, BLOCK)[:, :, 4:12].mean((0, 2)) > 128
    if (row[:BITS] == row[BITS:]).any():
        return -1
    return int(row[:BITS] @ (1 << np.arange(BITS)))


def _picture(number: int) -> np.ndarray[Any, Any]:
    """Return noise, a square that goes down and up, and a number in blocks, twice: as it is, and inverted."""
    image = np.random.default_rng(number).integers(30, 70, SIZE, np.uint8)
    bits = number >> np.arange(BITS) & 1
    blocks = np.concatenate([bits, 1 - bits]).repeat(BLOCK) * 200 + 20
    image[:BLOCK, : len(blocks)] = blocks
    image[_top(number) : _top(number) + 40, 140:180] = 230
    return image


def encoded_pictures() -> list[list[bytes]]:
    """Return the units (H.264) of `COUNT` pictures, a key frame a second. Each takes several packets."""
    encoder: Any = av.CodecContext.create("libx264", "w")
    (encoder.height, encoder.width), encoder.pix_fmt = SIZE, "yuv420p"
    encoder.framerate, encoder.time_base = FPS, Fraction(1, FPS)
    encoder.options = {"tune": "zerolatency", "g": str(FPS), "bf": "0", "crf": "30"}
    found = []
    for number in range(COUNT):
        frame = av.VideoFrame.from_ndarray(_picture(number), format="gray").reformat(
            format="yuv420p"
        )
        frame.pts = number
        data = b"".join(map(bytes, encoder.encode(frame)))
        found.append([one for one in re.split(b"\x00\x00\x00?\x01", data) if one])
    return found


def _payloads(units: list[bytes]) -> Iterator[bytes]:
    """Yield the units of a picture as RFC 6184 sends them: whole, or in fragments (FU-A)."""
    for unit in units:
        parts = [unit[1:][at : at + 1200] for at in range(0, len(unit) - 1, 1200)]
        if len(parts) == 1:
            yield unit
            continue
        for number, part in enumerate(parts):
            ends = (number == 0) << 7 | (number == len(parts) - 1) << 6
            yield bytes([unit[0] & 0xE0 | 28, ends | unit[0] & 31]) + part


def again(listen: Callable[[], Any]) -> Any:
    """Return what listens at a port that was closed, once it is free: for a moment it may not be."""
    for _ in range(100):
        try:
            return listen()
        except OSError:
            threading.Event().wait(0.1)
    return listen()


class Camera:
    """Sends its pictures to whoever asks (RTSP over TCP), each when it is taken, with sender reports.

    Args:
        pictures: What `encoded_pictures` returned.
        begun_s: When picture 0 was taken, in seconds since 1970.

    Attributes:
        late_s: How many seconds after it was taken a picture is sent.
        works: Cleared while nothing is said at all.
        sent_s: When each picture was sent last, in seconds since 1970.
    """

    def __init__(self, pictures: list[list[bytes]], begun_s: float) -> None:
        self._packets = [list(_payloads(one)) for one in pictures]
        self._begun_s = begun_s
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self.late_s = 0.0
        self.works = threading.Event()
        self.works.set()
        self.sent_s: dict[int, float] = {}
        self.port = 0
        self.up()

    @property
    def url(self) -> str:
        """Its address."""
        return f"rtsp://127.0.0.1:{self.port}/live"

    def up(self) -> None:
        """Take connections."""
        self._listening = listening = again(lambda: socket.create_server(("127.0.0.1", self.port)))
        listening.settimeout(0.1)
        self.port = listening.getsockname()[1]
        threading.Thread(target=self._accept, args=[listening], daemon=True).start()

    def down(self) -> None:
        """Take none, and end those that are there."""
        if self._listening is not None:
            self._listening.close()
        self._listening = None
        with self._lock:
            while self._connections:
                with suppress(OSError):  # the other side has ended it
                    self._connections.pop().shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End the connections in the middle of the next picture."""
        with self._lock:
            self._connections.clear()

    def _accept(self, listening: socket.socket) -> None:
        while self._listening is listening:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._talk, args=[connection], daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as reader:
                method = b""
                while method != b"PLAY" and (line := reader.readline()):
                    method, number = line.split()[0], b"0"
                    while (line := reader.readline().strip()) != b"":
                        name, _, value = line.partition(b":")
                        number = value.strip() if name.lower() == b"cseq" else number
                    self.works.wait()
                    connection.sendall(_reply(method.decode(), number.decode()))
                if method == b"PLAY":
                    self._play(connection)
        except OSError:
            pass
        finally:
            with self._lock:
                self._connections.discard(connection)

    def _play(self, connection: socket.socket) -> None:
        clock, sequence, pause = random.randrange(2**32), random.randrange(2**16), threading.Event()
        first = number = int((time.time() - self._begun_s) * FPS) + 1
        while True:
            taken_s = self._begun_s + number / FPS
            pause.wait(max(taken_s + self.late_s - time.time(), 0.0))
            self.works.wait()
            stamp, data = (clock + 90_000 // FPS * number) % 2**32, b""
            if (number - first) % _REPORT == 0:  # RFC 3550, 6.4.1
                whole = round((taken_s + 2_208_988_800) * 2**32)
                report = struct.pack(">BBHIQIII", 0x80, 200, 6, 7, whole, stamp, sequence, 0)
                data += b"$\1" + struct.pack(">H", len(report)) + report
            parts = self._packets[number % COUNT]
            for at, part in enumerate(parts):
                kind = 96 | (at == len(parts) - 1) << 7
                packet = struct.pack(">BBHII", 0x80, kind, sequence, stamp, 7) + part
                data += b"$\0" + struct.pack(">H", len(packet)) + packet
                sequence = (sequence + 1) % 2**16
            if connection not in self._connections:
                connection.sendall(data[: len(data) // 2])
                return
            self.sent_s[number] = time.time()
            connection.sendall(data)
            number += 1


def _reply(method: str, number: str) -> bytes:
    more = body = ""
    if method == "OPTIONS":
        more = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
    elif method == "DESCRIBE":
        body = (
            "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=live\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\nm=video 0 RTP/AVP 96\r\n"
            f"a=control:track1\r\na=framerate:{FPS}\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\n"
        )
        more = f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
    elif method == "SETUP":
        more = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\nSession: 7\r\n"
    elif method == "PLAY":
        more = "Session: 7\r\n"
    return f"RTSP/1.0 200 OK\r\nCSeq: {number}\r\n{more}\r\n{body}".encode()
