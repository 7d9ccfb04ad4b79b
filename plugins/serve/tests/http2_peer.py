"""A connection of HTTP/2 in memory, whose streams give back what comes, and a client that reads its frames."""

from __future__ import annotations

import heapq
import itertools
import struct

import hpack
import hyperframe.frame

from headrace_serve.http2.connection import Bounds, Connection
from headrace_serve.http2.frames import PREFACE, frame
from headrace_serve.http2.heads import block_of
from headrace_serve.http2.stream import Stream

BOUNDS = Bounds(60.0, 100, 16384, 300.0, 256, None, 20.0, None)
SETTINGS = frame(4, 0, 0)
REQUEST = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]


class Loop:
    """A loop whose time goes on when `pass_time` says so."""

    def __init__(self):
        self.now, self._calls, self._order = 1000.0, [], itertools.count()

    def time(self):
        return self.now

    def call_later(self, seconds, call, *args):
        return self.call_at(self.now + seconds, call, *args)

    def call_at(self, when, call, *args):
        handle = Handle(call, args)
        heapq.heappush(self._calls, (when, next(self._order), handle))
        return handle

    def call_soon(self, call, *args):
        return self.call_at(self.now, call, *args)

    def pass_time(self, seconds=0.0):
        """Make the calls that are due."""
        self.now += seconds
        while self._calls and self._calls[0][0] <= self.now:
            heapq.heappop(self._calls)[2].run()


class Handle:
    def __init__(self, call, args):
        self._call, self._args = call, args

    def cancel(self):
        self._call = None

    def run(self):
        if self._call is not None:
            self._call(*self._args)


class Transport:
    """Keeps what is written. While ``is_full`` it takes it into its buffer, and says so."""

    def __init__(self):
        self.written, self.buffer = bytearray(), b""
        self.is_closed, self.is_reading = False, True
        self.is_full, self.protocol = False, None

    def write(self, data):
        assert not self.is_closed
        if not self.is_full:
            self.written += data
            return
        was, self.buffer = len(self.buffer), self.buffer + data
        if was <= 65536 < len(self.buffer):
            self.protocol.pause_writing()

    def drain(self):
        self.is_full = False
        was, self.buffer = self.buffer, b""
        self.written += was
        if len(was) > 65536:
            self.protocol.resume_writing()

    def get_write_buffer_size(self):
        return len(self.buffer)

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True

    def get_extra_info(self, name):
        return {"peername": ("127.0.0.1", 1)}[name]

    def is_closing(self):
        return self.is_closed

    def can_write_eof(self):
        return True

    def close(self):
        self.is_closed = True

    abort = write_eof = close


class Echo(Stream):
    """Answers with the body of the request, once that is whole, and says its size behind it."""

    __slots__ = ("body", "events")

    def __init__(self, *given):
        super().__init__(*given)
        self.body, self.events = b"", []

    def receive(self, data):
        self.body += data
        self.allow(len(data))

    def end(self):
        self.connection.send_head(self, block_of([(b":status", b"200")]))
        self.connection.send_data(self, self.body)
        size = str(len(self.body)).encode()
        self.connection.send_last(self, block_of([(b"x-size", size)]))

    def lost(self):
        self.events.append("lost")


class Served:
    """One connection, and what its client hears."""

    def __init__(self, bounds=BOUNDS, stream=Echo, *, greet=True):
        self.loop, self.transport = Loop(), Transport()
        self.streams, self.connections, self.buffered = [], set(), 0

        self._stream = stream
        self.connection = Connection(self.loop, bounds, self)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self.encoder, self._decoder, self._read = hpack.Encoder(), hpack.Decoder(), 0
        if greet:
            self.send(PREFACE + SETTINGS)

    def open_stream(self, *given):
        self.streams.append(self._stream(*given))
        return self.streams[-1]

    def note_buffered(self, more):
        self.buffered += more

    def send(self, data):
        """Let the server read bytes, unless it has closed."""
        if not self.transport.is_closed:
            self.connection.data_received(data)
        self.loop.pass_time()

    def frames(self):
        """Return the frames that have come since the last look, each whole."""
        data, found = bytes(self.transport.written[self._read :]), []
        self._read += len(data)
        view = memoryview(data)
        while view:
            one, size = hyperframe.frame.Frame.parse_frame_header(view[:9])
            one.parse_body(view[9 : 9 + size])
            view = view[9 + size :]
            if isinstance(one, hyperframe.frame.HeadersFrame):
                one.headers = dict(self._decoder.decode(one.data, raw=True))
            found.append(one)
        return found

    def request(self, number, body=b"", more=(), flags=0):
        """Return the frames of a request."""
        block = self.encoder.encode([*REQUEST, *more])
        head = frame(1, 4 | flags | (not body), number, block)
        return head + (frame(0, 1, number, body) if body else b"")

    def answer(self, number, frames=None):
        """Return status, body and what is behind it, from frames."""
        mine = [one for one in (frames or self.frames()) if one.stream_id == number]
        heads = [one.headers for one in mine if hasattr(one, "headers")]
        body = b"".join(one.data for one in mine if isinstance(one, hyperframe.frame.DataFrame))
        return heads[0][b":status"], body, heads[1][b"x-size"]

    def ended_with(self):
        """Return the code and the text of the frame that ends the connection. None: it is open."""
        last = [one for one in self.frames() if isinstance(one, hyperframe.frame.GoAwayFrame)]
        assert self.transport.is_closed is bool(last)
        return (last[-1].error_code, last[-1].additional_data) if last else None


def window(number, more):
    """Return a frame that widens a window."""
    return frame(8, 0, number, struct.pack(">I", more))


def settings(*pairs):
    """Return a frame of settings."""
    return frame(4, 0, 0, b"".join(struct.pack(">HI", *pair) for pair in pairs))
