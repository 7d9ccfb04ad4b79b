"""What a connection sends: frames of control at once, bytes of answers as windows and socket take them."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from headrace_serve.http2 import frames
from headrace_serve.http2.frames import ConnectionFaultError, StreamFaultError, frame

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace_serve.http2.floods import Patience
    from headrace_serve.http2.stream import Stream

__all__ = ["Outbox"]

_USUAL_WINDOW: Final = 65535

_TURN_BYTES: Final = 64 << 10
"""So many bytes of one answer are sent before those of another."""

_WRITTEN_BYTES: Final = 128 << 10
"""So many bytes are given to the socket at a time."""

_HEAD = struct.Struct(">HBBBI")


class Outbox:
    """Sends what streams answer.

    Attributes:
        initial_window: The bytes that the client takes of a new stream.
        is_held: Whether what is put here waits, because frames are being read that may add more.

    Args:
        loop: The event loop.
        transport: The transport of asyncio.
        patience: Earns from what is sent.
        note_buffered: Told how many more bytes wait in the buffer of the socket while the client does not take them, less
            than 0: how many fewer.
        end_answer: Called for a stream whose bytes are all sent, and whose last headers are known.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: Any,
        patience: Patience,
        note_buffered: Callable[[int], None],
        end_answer: Callable[[Stream, bytes], None],
    ) -> None:
        self._loop, self._transport, self._patience = loop, transport, patience
        self._note_buffered, self._end_answer = note_buffered, end_answer
        self._window = self.initial_window = _USUAL_WINDOW
        self._frame_bytes = frames.FRAME_BYTES
        self._waiting: dict[Stream, None] = {}
        self._out: list[bytes | memoryview] = []
        self._out_bytes = self._buffered_bytes = 0
        self.is_held = self._is_scheduled = self._is_paused = self._is_over = False

    def put(self, *pieces: bytes | memoryview) -> None:
        """Keep bytes for the socket until the end of this turn of the loop."""
        self._out.extend(pieces)
        if not self.is_held and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush)

    def send(self, stream: Stream) -> None:
        """Send what a stream has, or keep it until the client takes it. `Stream.sent` tells of it."""
        if stream.queue and stream.window > 0:
            self._waiting[stream] = None
            if not self.is_held:
                self.push()

    def send_at_once(
        self, stream: Stream, head: bytes, pieces: tuple[bytes, ...], last: bytes
    ) -> bool:
        """Send a whole answer if it is one frame and nothing is before it. Return whether it was sent.

        Args:
            stream: The stream.
            head: The block of headers before the body.
            pieces: The body.
            last: The block of headers behind it.
        """
        size = sum(map(len, pieces))
        if self._waiting or self._is_paused or not 0 < size <= self._frame_bytes:
            return False
        if size > self._window or size > stream.window:
            return False
        number = stream.number
        self._window -= size
        stream.window -= size
        self._patience.earn(6)
        self.put(
            frame(frames.HEADERS, frames.END_HEADERS, number, head),
            _HEAD.pack(size >> 8, size & 255, frames.DATA, 0, number),
            *pieces,
            frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, number, last),
        )
        return True

    def forget(self, stream: Stream) -> None:
        """Drop what a stream has."""
        stream.queue.clear()
        self._waiting.pop(stream, None)

    def pause(self) -> int:
        """Wait until the client takes bytes. Return how many wait in the buffer of the socket."""
        self._is_paused = True
        waiting: int = self._transport.get_write_buffer_size()
        self._count_buffered(waiting)
        return waiting

    def resume(self) -> None:
        """Go on."""
        self._is_paused = False
        self._count_buffered(0)
        self.push()
        self._flush()

    def end(self) -> None:
        """Write what is there, and take nothing more."""
        self.write()
        self._is_over = True
        self._waiting.clear()

    def lose(self) -> None:
        """Drop all: the client is gone."""
        self._is_over = True
        self._count_buffered(0)
        self._out.clear()
        self._waiting.clear()

    # What the client takes.

    def widen(self, more: int) -> None:
        """Note that the client takes more bytes on this connection."""
        self._window += more
        if not more or self._window > frames.LARGEST_WINDOW:
            code = frames.FLOW_CONTROL_ERROR if more else frames.PROTOCOL_ERROR
            raise ConnectionFaultError(code, "a window is wider by none, or too wide")

    def widen_stream(self, stream: Stream, more: int) -> None:
        """Note that the client takes more bytes of a stream, with less than 0 fewer."""
        if stream.window + more > frames.LARGEST_WINDOW:
            text = "a window is too wide"
            raise StreamFaultError(stream.number, frames.FLOW_CONTROL_ERROR, text)
        stream.window += more
        if stream.queue and stream.window > 0:
            self._waiting[stream] = None

    def note_frame_bytes(self, size: int) -> None:
        """Note the largest frame that the client takes."""
        self._frame_bytes = min(size, _TURN_BYTES)

    # How it is sent.

    def push(self) -> None:
        """Send what waits, a turn of each stream, as far as windows and socket take it."""
        while self._waiting and self._window > 0 and not self._is_paused:
            stream = next(iter(self._waiting))
            del self._waiting[stream]
            size = min(self._window, stream.window, _TURN_BYTES)
            if size <= 0:  # a wider window brings it back
                continue
            self._send_turn(stream, size)
            if not stream.queue:
                if stream.last_block is not None:
                    self._end_answer(stream, stream.last_block)
            elif stream.window > 0:
                self._waiting[stream] = None
            if self._out_bytes >= _WRITTEN_BYTES:
                self.write()

    def _send_turn(self, stream: Stream, most: int) -> None:
        """Send up to ``most`` bytes of a stream, a frame for as many as fit into one."""
        queue, left = stream.queue, most
        while queue and left > 0:
            size, pieces = 0, []
            room = min(left, self._frame_bytes)
            while queue and size < room:
                piece = queue.popleft()
                if len(piece) > room - size:
                    queue.appendleft(piece[room - size :])
                    piece = piece[: room - size]
                pieces.append(piece)
                size += len(piece)
            head = _HEAD.pack(size >> 8, size & 255, frames.DATA, 0, stream.number)
            self.put(head, *pieces)
            left -= size
        sent = most - left
        self._patience.earn(2 + sent // 2048)
        self._out_bytes += sent
        self._window -= sent
        stream.window -= sent
        stream.sent(sent)

    def write(self) -> None:
        """Give the socket what was put here."""
        if self._out and not self._is_over:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._transport.write(data)

    def _flush(self) -> None:
        self._is_scheduled = False
        self.write()

    def _count_buffered(self, now: int) -> None:
        if now != self._buffered_bytes:
            more, self._buffered_bytes = now - self._buffered_bytes, now
            self._note_buffered(more)
