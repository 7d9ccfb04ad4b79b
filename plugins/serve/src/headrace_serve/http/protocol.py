"""An HTTP connection with bounds: on the size of heads, on how long and how slowly a client sends and receives."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace_serve.http.cycle import Cycle, refusal_bytes
from headrace_serve.http.deadlines import Deadlines
from headrace_serve.http.heads import HeadError, check_head, too_large, without_upgrade
from headrace_serve.http.plans import LONGEST_HEAD

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace_serve.http.plans import Head, Plan, Plans
    from headrace_serve.service import Service

__all__ = ["protocol_class"]

logger = logging.getLogger("headrace.serve")

_TRAILERS: Any = deque(maxlen=0)
"""Drops the headers behind a body, which nobody reads."""

_OF_HTTP2 = b"PRI * HTTP/2"
"""How a client begins that speaks HTTP/2 at once (RFC 9113, 3.4)."""

_MOST_PIPELINED = 64
"""So many requests wait behind the one that is answered, with so few bytes of bodies that reading does not pause."""

_CROWDED = (503, "too many connections", "overloaded")
"""The answer for a connection beyond the limit."""

_MOST_REFUSED = 64
"""So many clients beyond the limit of connections may still send and read, so that they get their answer. Others are cut off."""

_REFUSED_S = 1.0
"""Seconds for a client to send the request that is refused, and again to read the answer and close."""


def protocol_class(
    service: Service, plans: Plans, http2: Callable[[], asyncio.Protocol] | None
) -> type[HttpToolsProtocol]:
    """Return the class of connections with these plans.

    They count the requests that they refuse themselves, and the bytes of answers that wait for their clients.

    Args:
        service: What is served.
        plans: What known heads mean.
        http2: Gives the protocol of a client that begins with the preface of HTTP/2. None: such clients are refused.
    """

    class Protocol(_LimitedProtocol):
        _refused: ClassVar[set[_LimitedProtocol]] = set()
        _plans = plans
        _http2 = staticmethod(http2) if http2 is not None else None
        _longest_head = min(LONGEST_HEAD, service.limits.max_header_bytes)

    Protocol.service = service
    return Protocol


class _LimitedProtocol(HttpToolsProtocol):
    """Adds bounds to uvicorn's protocol for which uvicorn has no setting. Its `Deadlines` are the timers.

    If a request is answered before its body is complete, the rest is read and dropped. Closing a connection with unread
    bytes would reset it, and a client that still sends would lose its answer.

    Reads that contain neither the end of a head nor any of a body are also counted, because the parser keeps an
    incomplete header and copies it with each read.

    Attributes:
        deadlines: The timers.
    """

    _refused: ClassVar[set[_LimitedProtocol]]
    service: Service
    _plans: Plans
    _http2: Callable[[], asyncio.Protocol] | None
    _longest_head: int
    _unsent = _unsent_parts = 0
    _left = 0
    _next: Cycle | None = None
    _new: Plan | None = None
    deadlines: Deadlines
    _head_bytes = 0
    _is_silent = False
    _incomplete = False
    _ignores = False
    _upgrade = False
    _answered: Cycle | None = None
    _last: asyncio.Future[None] | None = None
    _tells: Cycle | None = None
    _is_ended = False
    pipeline: deque[Any]  # of cycles alone
    cycle: Any

    def is_fresh(self, since: float) -> bool:
        """Return whether a request is being received, or the connection is newer than ``since`` and has had none."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        return self._incomplete or (self.cycle is None and self.deadlines.idle_since >= since)

    def is_idle(self) -> bool:
        """Return whether the connection has answered a request, and receives no other one."""
        cycle = self.cycle
        return not self._incomplete and cycle is not None and cycle.response_complete

    def is_used(self, since: float) -> bool:
        """Return whether a request is being answered, or the last answer was given after ``since``, a time of the loop."""
        if self.cycle is None or not self.cycle.response_complete:
            return self.cycle is not None
        return not self._incomplete and self.deadlines.idle_since >= since

    def last_request(self) -> asyncio.Future[None]:
        """End the connection with its next answer. Give a future that is done once the request is received.

        If a request is being answered, its answer is the last one, unless another request is read before.
        """
        self._last = self.loop.create_future()
        if self.transport.is_closing():
            self._last.set_result(None)
            return self._last
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not self._begins_next():
                self._tell_by(cycle)
            if self.pipeline and len(self.pipeline) < _MOST_PIPELINED:
                self.flow.resume_reading()
        return self._last

    def _begins_next(self) -> bool:
        """Return whether a part of the head of the next request has come."""
        return self._incomplete and not self.cycle.more_body

    def _tell_by(self, cycle: Any) -> None:
        """Let the answer of a request say that the connection ends, if the answer has not begun."""
        if cycle.keep_alive and not cycle.response_started:
            cycle.keep_alive = False
            self._tells = cycle

    def shutdown(self) -> None:
        """Read no further request. End the connection now if it is idle, else with the answer of the last request.

        If an answer has begun without saying so, its client may send one more request.
        """
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()
            return
        self._is_ended = True
        self._tell_by(cycle)
        if not cycle.keep_alive and not cycle.more_body:
            self._ignores = True  # read and drop: unread bytes would reset the connection
            self.flow.resume_reading()

    def _settle_last(self) -> None:
        if self._last is not None and not self._last.done():
            self._last.set_result(None)

    def connection_made(self, transport: Any) -> None:
        """Accept a connection, or refuse its request if there are too many."""
        super().connection_made(transport)
        self.deadlines = Deadlines(self, self.service.limits)
        if len(self.connections) - len(self._refused) <= self.service.limits.max_connections:
            self.deadlines.start_receiving()
        elif len(self._refused) < _MOST_REFUSED:
            self._refused.add(self)
            self.deadlines.end_after(_REFUSED_S, self._refuse, *_CROWDED)
        else:
            self._refuse(*_CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._note_unsent(0, 0)
        self.deadlines.stop()
        super().connection_lost(exc)
        self._refused.discard(self)
        cycle = self._answered
        if cycle is not None and not cycle.response_complete:
            cycle.lost()  # uvicorn tells only the last request, and this one may be before it
        self._settle_last()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer the requests that were received whole: who ends its side of a connection may still wait (RFC 9112, 9.6).

        With TLS asyncio ends the whole connection.
        """
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete or cycle.disconnected or self.scheme == "https":
            return False
        if cycle.more_body and self.pipeline:  # the rest of its body never comes
            self.pipeline.popleft()
            cycle = self.pipeline[0] if self.pipeline else self._answered
            self.cycle = cycle
        if not cycle.more_body and not cycle.response_complete:
            cycle.keep_alive = False
            self._ignores = True
            if self._answered is not None:
                self._answered.probe()
        return self._ignores

    def data_received(self, data: bytes) -> None:
        """Read bytes of the client, then begin to answer; drop them if the connection is about to end.

        A head that is there whole is looked up. One that is not known, and a body in chunks, are parsed.
        """
        while data and not self._ignores and not self._speaks_http2(data):
            if self._left:
                piece, data = data[: self._left], data[self._left :]
                self._left -= len(piece)
                self.on_body(piece)
                if not self._left:
                    self.on_message_complete()
            elif self._incomplete or self in self._refused:
                self._parse(data)
                data = b""
            else:
                end = data.find(b"\r\n\r\n", 0, self._longest_head) + 4
                known = self._plans.find(data[:end]) if end > 4 else None
                if known is not None:
                    end += self._begin_known(known, data, end)
                elif end > 4:
                    self._new = None
                    self._parse(data[:end])
                    new, self._new = self._new, None
                    if new is not None:
                        self._plans.note(new, data[:end])
                else:
                    self._parse(data)
                    end = len(data)
                data = data[end:]
        if self._incomplete and not self._ignores and self.deadlines.receiving is None:
            self.deadlines.start_receiving()
        if self._next is not None:
            cycle, self._next = self._next, None
            self._start(cycle)

    def _speaks_http2(self, data: bytes) -> bool:
        """Leave the connection to another protocol if its first bytes say so. Return whether they do."""
        is_first = self.cycle is None and not self._incomplete
        if not is_first or self._http2 is None or not data.startswith(_OF_HTTP2):
            return False
        self.deadlines.stop()
        self.connections.discard(self)
        self._refused.discard(self)
        other = self._http2()
        self.transport.set_protocol(other)
        other.connection_made(self.transport)
        other.data_received(data)
        return True

    def _begin_known(self, head: Head, data: bytes, place: int) -> int:
        """Begin a request whose head was seen before. Return how many bytes of its body, from a place on, are there."""
        deadlines = self.deadlines
        if deadlines.receiving is not None:
            deadlines.stop_receiving()
        cycle, length = Cycle(self, head, keep_alive=True, expects=False), head.length
        here = min(length, len(data) - place)
        if here:
            cycle.pieces.append(data[place : place + here])
            cycle.size = here
        self._head_bytes, deadlines.body_bytes, self._left = 0, here, length - here
        deadlines.in_body, deadlines.was_in_body = length > 0, False
        self._incomplete = cycle.more_body = self._left > 0
        self._begin(cycle)
        if not self._left and self._last is not None:
            self._settle_last()
        return here

    def _parse(self, data: bytes) -> None:
        """Parse bytes, and refuse what is no HTTP, or a head that is too large."""
        self._is_silent = True
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse_unparsed(error)
            return
        except httptools.HttpParserUpgrade as raised:
            if self._upgrade:
                self._read_again(data[raised.args[0] :])
                return
        if self._incomplete and self._is_silent and not self._ignores:
            self._head_bytes += len(data)
            if self._head_bytes > self.service.limits.max_header_bytes:
                self.refuse_rest(*too_large(self.service.limits.max_header_bytes))

    def _refuse_unparsed(self, error: httptools.HttpParserError) -> None:
        if isinstance(error.__context__, HeadError):
            self.refuse_rest(*error.__context__.args)
            return
        logger.debug("a client of %s sent bytes that are no HTTP", self.client)
        self.refuse_rest(400, f"this is no request of HTTP: {error}", "http")

    def _read_again(self, rest: bytes) -> None:
        """Parse a request that asks for another protocol again without those headers. A server may ignore them.

        Behind such a head the parser expects the other protocol, and would lose the body. HTTP/2 clients that try
        an upgrade without TLS send such heads, with bodies.
        """
        self._upgrade = False
        head = without_upgrade(self.parser, self.url, self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._parse(head + rest)

    def refuse_rest(self, status: int, text: str, code: str) -> None:
        """Refuse a request that cannot be parsed or comes too late, and close.

        If it follows a whole request that is not answered yet, it is ignored, so that this request keeps its
        answer. The connection ends with that answer. A request that has its answer gets no second one.
        """
        self._incomplete = False
        cycle: Any = self.cycle
        if cycle is not None and cycle.response_complete and cycle.more_body:
            self._ignores = True
            self.transport.close()
            return
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:
                cycle.keep_alive = False
                self._ignores = True
                return
            cycle.disconnected = True  # the rest of its body cannot be parsed
            cycle.waiting_for_100_continue = False
            cycle.set()
        self._refuse(status, text, code)

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        deadlines = self.deadlines
        self._head_bytes = deadlines.body_bytes = 0
        deadlines.in_body = deadlines.was_in_body = self._is_silent = False
        self._incomplete = True
        if deadlines.receiving is not None:
            deadlines.stop_receiving()

    def on_headers_complete(self) -> None:
        """Start the application for the request, or queue it behind the one before on this connection."""
        parser = self.parser
        if self in self._refused:
            raise HeadError(*_CROWDED)
        version = check_head(parser, self.url, self.headers, self.service.limits.max_header_bytes)
        self._is_silent = False
        if parser.should_upgrade():
            self._upgrade = True
            return
        url = httptools.parse_url(self.url)
        if url.host is not None:  # RFC 9112, 3.2.2: it says the host, whatever the header says
            host = b"[%b]" % url.host if b":" in url.host else url.host
            own = (b"host", host if url.port is None else b"%b:%d" % (host, url.port))
            self.headers = [own, *(header for header in self.headers if header[0] != b"host")]
        raw_path = url.path or b"/"  # a whole URL may have none
        path = raw_path.decode("ascii")
        self.scope |= {
            "headers": self.headers,
            "http_version": version,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": url.query or b"",
        }
        head = self._plans.made(self.scope, self.headers)
        self.headers = _TRAILERS
        expects = self.expect_100_continue and version != "1.0"
        keep_alive = version != "1.0" and parser.should_keep_alive()
        self._new = head.plan if version != "1.0" and keep_alive and url.host is None else None
        self._begin(Cycle(self, head, keep_alive=keep_alive, expects=expects))

    def _begin(self, cycle: Cycle) -> None:
        """Let a request be answered, after those before it on this connection."""
        before: Any = self.cycle
        self.cycle = cycle
        if before is None or (before.response_complete and before.keep_alive):
            self._answered = self._next = cycle
        elif not before.response_complete:
            tells = self._tells
            if before is tells and not tells.response_started and not self._is_ended:
                tells.keep_alive = True  # the answer of this request says it now
            self.pipeline.appendleft(cycle)
            self._bound_pipeline()
        if self._last is not None:
            self._tell_by(cycle)

    def _bound_pipeline(self) -> None:
        """Pause reading where much waits behind the request that is answered. Else the end of the connection is noticed."""
        waiting = sum(cycle.size for cycle in self.pipeline)
        if len(self.pipeline) >= _MOST_PIPELINED or waiting > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def _start(self, cycle: Any) -> None:
        self._answered = cycle
        cycle.plan.route.begin(cycle)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; drop it if the request is answered already."""
        self._is_silent = False
        self._head_bytes = 0
        self.deadlines.in_body = True
        self.deadlines.body_bytes += len(body)
        cycle: Any = self.cycle
        if not cycle.response_complete:
            cycle.take(body)
            if self.pipeline:
                self._bound_pipeline()

    def on_message_complete(self) -> None:
        """End a request."""
        if self._upgrade:
            return
        self._incomplete = False
        if self.deadlines.receiving is not None:
            self.deadlines.stop_receiving()
        if self._last is not None:
            self._settle_last()
        cycle: Any = self.cycle
        if cycle is not None:
            cycle.more_body = False
            if cycle.response_complete and not cycle.keep_alive:
                self.transport.close()
            cycle.set()

    def count_unsent(self) -> None:
        """Count the bytes that wait in the buffer of the connection, all as the answer that has come last."""
        now = 0 if self.transport.is_closing() else self.transport.get_write_buffer_size()
        is_in_parts = self._answered is not None and self._answered.is_in_parts
        self._note_unsent(now, now if is_in_parts else 0)

    def _note_unsent(self, now: int, parts: int) -> None:
        more_parts = parts - self._unsent_parts
        self.service.note_unsent(now - self._unsent - more_parts, more_parts)
        self._unsent, self._unsent_parts = now, parts

    @property
    def _is_behind(self) -> bool:
        """Whether its client has so much to receive that no further request of it is answered."""
        return self._unsent > self.service.limits.max_inflight_bytes // 8

    def on_response_complete(self) -> None:
        """End an answer: begin the next request that waits, or be idle."""
        if self.transport.is_closing():
            return
        if self._unsent or self.transport.get_write_buffer_size():
            self.count_unsent()
            if self.pipeline and self._is_behind:
                return  # `resume_writing` goes on
        deadlines = self.deadlines
        if (
            self.pipeline
            or self.flow.read_paused
            or deadlines.idle is None
            or deadlines.sending is not None
        ):
            self._go_on()
        else:
            deadlines.idle_since = self.loop.time()

    def _go_on(self) -> None:
        """Begin the next request that waits, or be idle."""
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start(self.pipeline.pop())
        else:
            self.deadlines.idle_since = self.loop.time()
            self.deadlines.start_idle()
        if self.deadlines.sending is None and self.transport.get_write_buffer_size():
            self.deadlines.start_sending()

    def pause_writing(self) -> None:
        """Pause sending, because the connection's buffer is full, and watch how fast the client empties it."""
        super().pause_writing()
        self.count_unsent()
        if self.deadlines.sending is None:
            self.deadlines.start_sending()

    def resume_writing(self) -> None:
        """Go on sending, because the connection's buffer has room again."""
        super().resume_writing()
        self.deadlines.stop_sending()
        was_behind = self._is_behind
        self.count_unsent()
        cycle = self._answered
        if was_behind and cycle is not None and cycle.response_complete and cycle.keep_alive:
            self._go_on()

    def _refuse(self, status: int, text: str, code: str) -> None:
        """Answer without the application, and close once the client has, which would lose the answer otherwise (RFC 9112, 9.6)."""
        if self._ignores:
            return
        self._ignores = True
        self.deadlines.stop_receiving()
        head, body = refusal_bytes(status, text, code)
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self.service.counters.note_unread(str(status), code, len(body))
        else:
            cycle.refusal = str(status), code, len(body)
        self.transport.write(head + body)
        if self not in self._refused and len(self._refused) >= _MOST_REFUSED:
            self.transport.close()
            return
        self._refused.add(self)
        self.deadlines.end_after(_REFUSED_S, self.transport.close)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
