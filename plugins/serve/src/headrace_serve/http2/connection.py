"""One connection of HTTP/2: reads frames, keeps windows and bounds, and sends what streams answer."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace_serve.http2 import frames
from headrace_serve.http2.floods import Patience
from headrace_serve.http2.frames import ConnectionFaultError, StreamFaultError, frame
from headrace_serve.http2.heads import Heads
from headrace_serve.http2.outbox import Outbox
from headrace_serve.http2.stream import RECEIVED_BYTES
from headrace_serve.http2.watch import ALIVE, Watch

if TYPE_CHECKING:
    from headrace_serve.http2.heads import Head
    from headrace_serve.http2.stream import Stream

__all__ = ["Bounds", "Connection", "Owner"]

_HEAD_BYTES: Final = 9
_USUAL_WINDOW: Final = 65535
_WINDOW: Final = 16 << 20
"""So many bytes may come on a connection before it says how many more may."""

_MOST_RESET: Final = 1024
"""So many streams that ended here first are remembered, because their clients may still send."""

_SMALL_BYTES: Final = 8
_LEAVE: Final = b"leaving\0"
_LAST_S: Final = 2.0
"""Seconds for a client to take the last bytes of a connection."""

_HEADER_TABLE, _PUSH, _STREAMS, _INITIAL_WINDOW, _FRAME_SIZE, _LIST_SIZE = range(1, 7)


@dataclass(frozen=True)
class Bounds:
    """What a client may do.

    Attributes:
        first_s: Seconds until its first bytes must have come.
        streams: The most streams at a time.
        header_bytes: The most bytes of headers of a request.
        least_ping_s: The least seconds between its pings.
        least_rate_bytes_s: The least bytes per second that it takes of what the socket has.
        keepalive_s: Seconds without a byte after which it is asked whether it is there. None: never.
        keepalive_timeout_s: Seconds for it to answer.
        age_s: Seconds until it is asked to connect anew. None: never.
    """

    first_s: float
    streams: int
    header_bytes: int
    least_ping_s: float
    least_rate_bytes_s: float
    keepalive_s: float | None
    keepalive_timeout_s: float
    age_s: float | None


class Owner(Protocol):
    """What the connections belong to."""

    connections: set[Any]

    def open_stream(self, connection: Any, number: int, head: Head, window: int) -> Stream:
        """Return the stream of a request."""

    def note_buffered(self, more: int) -> None:
        """Note how many more bytes wait in the buffer of a socket, less than 0: how many fewer."""


_NEW, _GREETED, _OPEN, _LEAVING, _LAST, _OVER = range(6)
"""The stages of a connection: the last is that nothing more is read or written."""


class Connection(asyncio.Protocol):
    """A connection.

    Attributes:
        transport: The transport of asyncio.
        peername: Host and port of the client, as asyncio has them.

    Args:
        loop: The event loop.
        bounds: What the client may do.
        owner: Makes streams, and has this connection from its begin to its end.
    """

    transport: Any
    peername: Any = None

    def __init__(self, loop: asyncio.AbstractEventLoop, bounds: Bounds, owner: Owner) -> None:
        self._loop, self._bounds, self._owner = loop, bounds, owner
        self._heads, self._patience = Heads(bounds.header_bytes), Patience(loop.time)
        self._watch = Watch(loop, bounds.least_ping_s)
        self._left, self._stage = b"", _NEW
        self._streams: dict[int, Stream] = {}
        self._reset: dict[int, None] = {}
        self._begun: list[Stream] = []
        self._last = 0
        self._block: tuple[int, int, bytes] | None = None
        self._receive_left, self._received = _WINDOW, 0
        self._kinds = {
            frames.DATA: self._read_data,
            frames.HEADERS: self._read_headers,
            frames.PRIORITY: self._read_priority,
            frames.RST_STREAM: self._read_reset,
            frames.SETTINGS: self._read_settings,
            frames.PUSH_PROMISE: self._read_promise,
            frames.PING: self._read_ping,
            frames.GOAWAY: self._read_goaway,
            frames.WINDOW_UPDATE: self._read_window,
            frames.CONTINUATION: self._read_continuation,
        }

    # As a protocol of asyncio.

    def connection_made(self, transport: Any) -> None:
        """Begin, and say what this end takes."""
        self.transport, self.peername = transport, transport.get_extra_info("peername")
        watch, bounds, note = self._watch, self._bounds, self._owner.note_buffered
        self._outbox = Outbox(self._loop, transport, self._patience, note, self._end_answer)
        self._owner.connections.add(self)
        watch.after("first", bounds.first_s, transport.abort)
        watch.note_heard()
        if bounds.keepalive_s is not None:
            ping = partial(self._outbox.put, frame(frames.PING, 0, 0, ALIVE))
            watch.ask(bounds.keepalive_s, bounds.keepalive_timeout_s, ping, transport.abort)
        if bounds.age_s is not None:
            watch.after("age", bounds.age_s, self.leave)
        values = (
            *(_STREAMS, min(self._bounds.streams, frames.LARGEST_WINDOW)),
            *(_INITIAL_WINDOW, RECEIVED_BYTES),
            *(_LIST_SIZE, min(self._bounds.header_bytes, frames.LARGEST_WINDOW)),
        )
        self._outbox.put(frame(frames.SETTINGS, 0, 0, struct.pack(">HIHIHI", *values)))
        self._outbox.put(frames.window_update(0, _WINDOW - _USUAL_WINDOW))

    def connection_lost(self, exc: Exception | None) -> None:
        """End all streams."""
        self._stage = _OVER
        self._owner.connections.discard(self)
        self._watch.stop_all()
        self._outbox.lose()
        self._lose_streams()
        self._kinds.clear()

    def pause_writing(self) -> None:
        """Wait until the client takes bytes, and read none of its own meanwhile."""
        waiting = self._outbox.pause()
        if not self.transport.is_closing():
            self.transport.pause_reading()
        least_s = waiting / self._bounds.least_rate_bytes_s
        self._watch.after("taken", max(self._bounds.first_s, least_s), self.transport.abort)

    def resume_writing(self) -> None:
        """Go on."""
        self._watch.stop("taken")
        if not self.transport.is_closing():
            self.transport.resume_reading()
        self._outbox.resume()

    def data_received(self, data: bytes) -> None:
        """Read frames, then begin to answer the requests that came with them."""
        if self._stage == _OVER:
            return
        if self._bounds.keepalive_s is not None:
            self._watch.note_heard()
        outbox = self._outbox
        outbox.is_held = True
        try:
            self._read(self._left + data if self._left else data)
            begun, self._begun = self._begun, []
            for stream in begun:
                if not stream.is_closed:
                    stream.begin()
        except ConnectionFaultError as error:
            self._fail(error)
        finally:
            outbox.is_held = False
        outbox.push()
        outbox.write()

    def _read(self, data: bytes) -> None:
        place, end = self._greet(data) if self._stage == _NEW else 0, len(data)
        while self._stage and end - place >= _HEAD_BYTES:
            size = data[place] << 16 | data[place + 1] << 8 | data[place + 2]
            if size > frames.FRAME_BYTES:
                raise ConnectionFaultError(frames.FRAME_SIZE_ERROR, "a frame is too large")
            stop = place + _HEAD_BYTES + size
            if stop > end:
                break
            kind, flags = data[place + 3], data[place + 4]
            number = int.from_bytes(data[place + 5 : place + 9], "big") & frames.LARGEST_WINDOW
            if self._stage < _OPEN or self._block is not None:
                self._check_order(kind, flags)
            try:
                self._kinds.get(kind, self._read_other)(
                    flags, number, data[place + _HEAD_BYTES : stop]
                )
            except StreamFaultError as error:
                self._patience.spend(4, "wrong streams")
                self.reset(error.stream, error.code)
            place = stop
        self._left = data[place:] if place < end else b""

    def _greet(self, data: bytes) -> int:
        """Read the preface. Return the place behind it, or behind all that is there."""
        length = len(frames.PREFACE)
        if data[:length] != frames.PREFACE[: len(data)]:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "this is no HTTP/2")
        if len(data) < length:
            return 0
        self._stage = _GREETED
        return length

    def _check_order(self, kind: int, flags: int) -> None:
        """Check a frame that comes before any settings, or within a block of headers."""
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "a block of headers has no end")
        if self._stage < _OPEN and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "settings must come first")

    def _read_other(self, flags: int, number: int, body: bytes) -> None:
        self._patience.spend(1, "frames of other kinds")

    # Frames, by their kinds.

    def _read_data(self, flags: int, number: int, body: bytes) -> None:
        size = len(body)
        if size > self._receive_left:
            raise ConnectionFaultError(frames.FLOW_CONTROL_ERROR, "more bytes than the window has")
        self._receive_left -= size
        self._received += size
        if self._received >= _WINDOW // 2:
            more, self._received = self._received, 0
            self._receive_left += more
            self.send_window(0, more)
        stream = self._streams.get(number)
        if stream is None or stream.is_received:
            self._refuse_data(number, stream)
            return
        if size > stream.left_bytes:
            raise StreamFaultError(number, frames.FLOW_CONTROL_ERROR, "more than the window has")
        stream.left_bytes -= size
        if flags & frames.PADDED:
            body = _unpadded(body)
            stream.allow(size - len(body))
        if not flags & frames.END_STREAM:
            if len(body) < _SMALL_BYTES:
                self._patience.spend(1, "frames without bytes")
            stream.body_bytes += len(body)
            stream.receive(body)
            return
        stream.is_received = True
        stream.body_bytes += len(body)
        self._check_length(stream)
        if body:
            stream.receive(body)
        stream.end()

    def _refuse_data(self, number: int, stream: Stream | None) -> None:
        """Drop bytes of a stream that has ended here. Those of one that the client has ended are a fault."""
        self._check_known(number)
        if stream is not None or number not in self._reset:
            raise StreamFaultError(number, frames.STREAM_CLOSED, "the request was whole")
        self._patience.spend(1, "bytes of streams that have ended")

    def _read_headers(self, flags: int, number: int, body: bytes) -> None:
        if not number % 2:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "no client has such a stream")
        if flags & frames.PADDED:
            body = _unpadded(body)
        if flags & frames.PRIORITIZED:
            if len(body) < 5:
                raise ConnectionFaultError(frames.FRAME_SIZE_ERROR, "a priority is cut off")
            depends = int.from_bytes(body[:4], "big") & frames.LARGEST_WINDOW
            body = body[5:]
            if depends == number:
                raise ConnectionFaultError(frames.PROTOCOL_ERROR, "a stream depends on itself")
        if flags & frames.END_HEADERS:
            self._take_block(number, flags, body)
        else:
            self._block = number, flags, body

    def _read_continuation(self, flags: int, number: int, body: bytes) -> None:
        if self._block is None or number != self._block[0]:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "no headers to go on with")
        self._patience.spend(4, "pieces of headers")
        number, first, block = self._block
        block += body
        self._block = number, first, block
        if len(block) > 2 * self._bounds.header_bytes:
            raise ConnectionFaultError(frames.ENHANCE_YOUR_CALM, "too many bytes of headers")
        if flags & frames.END_HEADERS:
            self._block = None
            self._take_block(number, first, block)

    def _take_block(self, number: int, flags: int, block: bytes) -> None:
        head = self._heads.read(block)  # of streams that have ended, too: it may change the table
        stream = self._streams.get(number)
        if stream is not None:
            self._take_trailers(stream, flags, head)
            return
        if number <= self._last:
            if number in self._reset:
                self._patience.spend(4, "headers of streams that have ended")
                return
            raise ConnectionFaultError(frames.STREAM_CLOSED, "headers of a stream that has ended")
        self._last = number
        if self._stage == _LAST or len(self._streams) >= self._bounds.streams:
            raise StreamFaultError(number, frames.REFUSED_STREAM, "too many streams")
        if head.wrong_as_request:
            raise StreamFaultError(number, frames.PROTOCOL_ERROR, head.wrong_as_request)
        stream = self._owner.open_stream(self, number, head, self._outbox.initial_window)
        self._streams[number] = stream
        self._begun.append(stream)
        if flags & frames.END_STREAM:
            stream.is_received = True
            self._check_length(stream)
            stream.end()

    def _take_trailers(self, stream: Stream, flags: int, head: Head) -> None:
        if stream.is_received:
            raise StreamFaultError(stream.number, frames.STREAM_CLOSED, "the request was whole")
        if not flags & frames.END_STREAM or head.wrong_as_trailers:
            raise StreamFaultError(stream.number, frames.PROTOCOL_ERROR, "these are no trailers")
        stream.is_received = True
        self._check_length(stream)
        stream.end()

    def _check_length(self, stream: Stream) -> None:
        if stream.head.length not in (None, stream.body_bytes):
            text = "the body is not as long as its headers say"
            raise StreamFaultError(stream.number, frames.PROTOCOL_ERROR, text)

    def _check_known(self, number: int) -> None:
        if not number % 2 or number > self._last:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "a frame of no stream")

    def _read_priority(self, flags: int, number: int, body: bytes) -> None:
        if not number:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "a priority of no stream")
        self._patience.spend(1, "priorities")
        if len(body) != 5:
            raise StreamFaultError(number, frames.FRAME_SIZE_ERROR, "a priority has five bytes")
        if int.from_bytes(body[:4], "big") & frames.LARGEST_WINDOW == number:
            raise StreamFaultError(number, frames.PROTOCOL_ERROR, "a stream depends on itself")

    def _read_reset(self, flags: int, number: int, body: bytes) -> None:
        if len(body) != 4:
            raise ConnectionFaultError(frames.FRAME_SIZE_ERROR, "a reset has four bytes")
        self._check_known(number)
        stream = self._streams.get(number)
        self._patience.spend(1 if stream is None else 4, "streams that are cancelled")
        if stream is not None:
            self._close(stream)
            stream.lost()

    def _read_settings(self, flags: int, number: int, body: bytes) -> None:
        if number:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "settings of a stream")
        if len(body) % 6 or (flags & frames.ACK and body):
            raise ConnectionFaultError(frames.FRAME_SIZE_ERROR, "settings have six bytes each")
        self._patience.spend(1 + len(body) // 60, "settings")
        if flags & frames.ACK:
            return
        if self._stage < _OPEN:
            self._stage = _OPEN
            self._watch.stop("first")
        window = self._outbox.initial_window
        for key, value in struct.iter_unpack(">HI", body):
            _check_setting(key, value)
            if key == _INITIAL_WINDOW:
                window = value
            elif key == _FRAME_SIZE:
                self._outbox.note_frame_bytes(value)
        more, self._outbox.initial_window = window - self._outbox.initial_window, window
        if more:
            self._widen_all(more)
        self._outbox.put(frame(frames.SETTINGS, frames.ACK, 0))

    def _widen_all(self, more: int) -> None:
        try:
            for stream in self._streams.values():
                self._outbox.widen_stream(stream, more)
        except StreamFaultError as error:
            raise ConnectionFaultError(error.code, "a window is too wide") from error

    def _read_promise(self, flags: int, number: int, body: bytes) -> None:
        raise ConnectionFaultError(frames.PROTOCOL_ERROR, "clients push nothing")

    def _read_ping(self, flags: int, number: int, body: bytes) -> None:
        if number:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "a ping of a stream")
        if len(body) != 8:
            raise ConnectionFaultError(frames.FRAME_SIZE_ERROR, "a ping has eight bytes")
        self._patience.spend(1, "pings")
        if flags & frames.ACK:
            if body == _LEAVE and self._stage == _LEAVING:
                self._leave_now()
            return
        self._outbox.put(frame(frames.PING, frames.ACK, 0, body))
        self._watch.check_ping()

    def _read_goaway(self, flags: int, number: int, body: bytes) -> None:
        if number:
            raise ConnectionFaultError(frames.PROTOCOL_ERROR, "a goaway of a stream")
        if len(body) < 8:
            raise ConnectionFaultError(frames.FRAME_SIZE_ERROR, "a goaway has eight bytes")
        self._patience.spend(1, "goaways")

    def _read_window(self, flags: int, number: int, body: bytes) -> None:
        if len(body) != 4:
            raise ConnectionFaultError(frames.FRAME_SIZE_ERROR, "a window has four bytes")
        more = int.from_bytes(body, "big") & frames.LARGEST_WINDOW
        self._patience.spend(1, "windows")
        if not number:
            self._outbox.widen(more)
            return
        self._check_known(number)
        if not more:
            raise StreamFaultError(number, frames.PROTOCOL_ERROR, "a window is wider by none")
        stream = self._streams.get(number)
        if stream is not None:
            self._outbox.widen_stream(stream, more)

    # What is sent.

    def send_head(self, stream: Stream, block: bytes) -> None:
        """Send headers before a body."""
        if not stream.is_closed:
            self._watch.note_sent()
            self._outbox.put(frame(frames.HEADERS, frames.END_HEADERS, stream.number, block))

    def send_data(self, stream: Stream, *pieces: bytes | memoryview) -> None:
        """Send bytes of a body, or keep them until the client takes them. `Stream.sent` tells of it."""
        if stream.is_closed:
            return
        stream.queue.extend(memoryview(piece) for piece in pieces if len(piece))
        self._outbox.send(stream)

    def send_last(self, stream: Stream, block: bytes) -> None:
        """Send headers behind the body, once it is sent, and end the stream."""
        if stream.is_closed:
            return
        if stream.queue:
            stream.last_block = block
        else:
            self._end_answer(stream, block)

    def send_answer(
        self, stream: Stream, head: bytes, pieces: tuple[bytes, ...], last: bytes
    ) -> bool:
        """Send a whole answer. Return whether the socket has got all of it: `Stream.sent` tells of the others.

        Args:
            stream: The stream.
            head: The block of headers before the body.
            pieces: The body.
            last: The block of headers behind it.
        """
        if stream.is_closed:
            return True
        self._watch.note_sent()
        if self._outbox.send_at_once(stream, head, pieces, last):
            self._note_answered(stream)
            return True
        self.send_head(stream, head)
        self.send_data(stream, *pieces)
        self.send_last(stream, last)
        return False

    def send_window(self, number: int, more: int) -> None:
        """Let the client send more bytes."""
        self._outbox.put(frames.window_update(number, more))

    def reset(self, number: int, code: int) -> None:
        """End a stream at once. The client may not know it yet."""
        self._outbox.put(frames.rst_stream(number, code))
        self._reset[number] = None
        if len(self._reset) > _MOST_RESET:
            del self._reset[next(iter(self._reset))]
        stream = self._streams.get(number)
        if stream is not None:
            self._close(stream)
            if not stream.is_answered:
                stream.lost()

    def leave(self) -> None:
        """Ask the client to connect anew for what it asks next, and end once it has all its answers."""
        if self._stage < _LEAVING:
            self._stage = _LEAVING
            self._outbox.put(frames.goaway(frames.LARGEST_WINDOW, frames.NO_ERROR))
            self._outbox.put(frame(frames.PING, 0, 0, _LEAVE))

    def close(self, text: str = "") -> None:
        """End now, after what was given to the connection, and tell the client why."""
        self._fail(ConnectionFaultError(frames.NO_ERROR, text))

    def _leave_now(self) -> None:
        """Answer no stream that comes from now on: the client has heard that it is to leave."""
        self._stage = _LAST
        self._outbox.put(frames.goaway(self._last, frames.NO_ERROR))
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._stage == _LAST and not self._streams:
            self._end()

    def _end_answer(self, stream: Stream, block: bytes) -> None:
        flags = frames.END_HEADERS | frames.END_STREAM
        self._outbox.put(frame(frames.HEADERS, flags, stream.number, block))
        self._patience.earn(4)
        self._note_answered(stream)

    def _note_answered(self, stream: Stream) -> None:
        stream.is_answered = True
        if stream.is_received:
            self._close(stream)
        else:  # what the client has not sent is not needed
            self.reset(stream.number, frames.NO_ERROR)

    def _close(self, stream: Stream) -> None:
        stream.is_closed = True
        self._outbox.forget(stream)
        self._streams.pop(stream.number, None)
        self._end_if_done()

    # Its end.

    def _fail(self, error: ConnectionFaultError) -> None:
        if self._stage != _OVER:
            self._outbox.put(frames.goaway(self._last, error.code, error.text))
            self._end()

    def _end(self) -> None:
        """Write what is there, and close once the client does. Who does not is cut off.

        To close while bytes come would reset the connection, and the client would lose what was written last.
        """
        self._outbox.end()
        self._stage = _OVER
        self._begun.clear()
        self._lose_streams()
        self._watch.after("end", _LAST_S, self.transport.abort)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _lose_streams(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.is_closed = True
            stream.queue.clear()
            stream.lost()


def _check_setting(key: int, value: int) -> None:
    if key == _INITIAL_WINDOW and value > frames.LARGEST_WINDOW:
        raise ConnectionFaultError(frames.FLOW_CONTROL_ERROR, "a window is too large")
    if key == _FRAME_SIZE and not frames.FRAME_BYTES <= value < 1 << 24:
        raise ConnectionFaultError(frames.PROTOCOL_ERROR, "no size of a frame")
    if key == _PUSH and value > 1:
        raise ConnectionFaultError(frames.PROTOCOL_ERROR, "push is 0 or 1")


def _unpadded(body: bytes) -> bytes:
    """Return the content of a frame with padding."""
    if not body or body[0] >= len(body):
        raise ConnectionFaultError(frames.PROTOCOL_ERROR, "more padding than bytes")
    return body[1 : len(body) - body[0]]
