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
from headrace_serve.http.heads import HeadError, check_head, too_large, without_upgrade
from headrace_serve.http.plans import LONGEST_HEAD
from headrace_serve.inference.steps import Steps

if TYPE_CHECKING:
    import asyncio

    from headrace_serve.admission.limits import Limits
    from headrace_serve.http.plans import Plan, Plans
    from headrace_serve.monitoring.counters import Counters
    from headrace_serve.service import Service

__all__ = ["protocol_class"]

logger = logging.getLogger("headrace.serve")

_TRAILERS: Any = deque(maxlen=0)
"""Drops the headers behind a body, which nobody reads."""

_MOST_PIPELINED = 64
"""So many requests wait behind the one that is answered, with so few bytes of bodies that reading does not pause."""

_CROWDED = (503, "too many connections", "overloaded")
"""The answer for a connection beyond the limit."""

_MOST_REFUSED = 64
"""So many clients beyond the limit of connections may still send and read, so that they get their answer. Others are cut off."""

_REFUSED_S = 1.0
"""Seconds for a client to send the request that is refused, and again to read the answer and close."""


def protocol_class(service: Service, plans: Plans) -> type[HttpToolsProtocol]:
    """Return the class of connections with these plans.

    They count the requests that they refuse themselves, and the bytes of answers that wait for their clients.
    """
    limits = service.limits

    class Protocol(_LimitedProtocol):
        _refused: ClassVar[set[_LimitedProtocol]] = set()
        _limits = limits
        _counters = service.counters
        _service = service
        _plans = plans
        _longest_head = min(LONGEST_HEAD, limits.max_header_bytes)

    return Protocol


class _LimitedProtocol(HttpToolsProtocol):
    """Adds bounds to uvicorn's protocol for which uvicorn has no setting, with three timers.

    The first watches receiving. It runs while a request is incomplete after a read, and from the start of a
    connection to its first byte, and ends a connection whose request is late or whose body comes too slowly. If a
    request is answered before its body is complete, the rest is read and dropped. Closing a connection with unread
    bytes would reset it, and a client that still sends would lose its answer.

    The second watches sending. It runs while the buffer of the connection is full, or is not empty after the last
    byte of an answer: a client that receives nothing would otherwise hold the buffer for ever.

    The third ends an idle connection. No answer restarts it. When it is due, it checks when the last answer was.

    Reads that contain neither the end of a head nor any of a body are also counted, because the parser keeps an
    incomplete header and copies it with each read.
    """

    _refused: ClassVar[set[_LimitedProtocol]]
    _limits: Limits
    _counters: Counters
    _service: Service
    _plans: Plans
    _longest_head: int
    _unsent = _unsent_parts = 0
    _left = 0
    _next: Cycle | None = None
    _new: Plan | None = None
    _receiving: asyncio.TimerHandle | None = None
    _sending: asyncio.TimerHandle | None = None
    _idle: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _ends = 0.0
    _body_bytes = 0
    _head_bytes = 0
    _is_silent = False
    _incomplete = False
    _in_body = False
    _was_in_body = False
    _ignores = False
    _upgrade = False
    _answered: Cycle | None = None
    _last: asyncio.Future[None] | None = None
    _tells: Cycle | None = None
    _is_ended = False
    pipeline: deque[Any]  # of cycles alone

    def is_fresh(self, since: float) -> bool:
        """Return whether a request is being received, or the connection is newer than ``since`` and has had none."""
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        return self._incomplete or (self.cycle is None and self._idle_since >= since)

    def is_used(self, since: float) -> bool:
        """Return whether a request is being answered, or the last answer was given after ``since``, a time of the loop."""
        if self.cycle is None or not self.cycle.response_complete:
            return self.cycle is not None
        return not self._incomplete and self._idle_since >= since

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
        self._idle_since = self.loop.time()
        if len(self.connections) - len(self._refused) <= self._limits.max_connections:
            self._start_receiving()
        elif len(self._refused) < _MOST_REFUSED:
            self._refused.add(self)
            self._idle = self.loop.call_later(_REFUSED_S, self._refuse, *_CROWDED)
        else:
            self._refuse(*_CROWDED)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._note_unsent(0, 0)
        self._stop_receiving()
        self._stop_sending()
        if self._idle is not None:
            self._idle.cancel()
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
        while data and not self._ignores:
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
                    end += self._begin_known(*known, data, end)
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
        if self._incomplete and not self._ignores and self._receiving is None:
            self._start_receiving()
        if self._next is not None:
            cycle, self._next = self._next, None
            self._start(cycle)

    def _begin_known(
        self, plan: Plan, varying: dict[bytes, bytes], length: int, data: bytes, place: int
    ) -> int:
        """Begin a request whose head was seen before. Return how many bytes of its body, from a place on, are there."""
        if self._receiving is not None:
            self._stop_receiving()
        cycle = Cycle(self, plan, varying, keep_alive=True, expects=False)
        here = min(length, len(data) - place)
        if here:
            cycle.pieces.append(data[place : place + here])
            cycle.size = here
        self._head_bytes, self._body_bytes, self._left = 0, here, length - here
        self._in_body, self._was_in_body = length > 0, False
        self._incomplete = cycle.more_body = self._left > 0
        before = self.cycle
        ended = before is None or (before.response_complete and before.keep_alive)
        if ended and self._last is None:
            self.cycle = self._answered = self._next = cycle
        else:
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
            if self._head_bytes > self._limits.max_header_bytes:
                self._refuse_rest(*too_large(self._limits.max_header_bytes))

    def _refuse_unparsed(self, error: httptools.HttpParserError) -> None:
        if isinstance(error.__context__, HeadError):
            self._refuse_rest(*error.__context__.args)
            return
        logger.debug("a client of %s sent bytes that are no HTTP", self.client)
        self._refuse_rest(400, f"this is no request of HTTP: {error}", "http")

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

    def _refuse_rest(self, status: int, text: str, code: str) -> None:
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
        self._head_bytes = self._body_bytes = 0
        self._in_body = self._was_in_body = self._is_silent = False
        self._incomplete = True
        if self._receiving is not None:
            self._stop_receiving()

    def on_headers_complete(self) -> None:
        """Start the application for the request, or queue it behind the one before on this connection."""
        parser = self.parser
        if self in self._refused:
            raise HeadError(*_CROWDED)
        version = check_head(parser, self.url, self.headers, self._limits.max_header_bytes)
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
        plan, varying = self._plans.made(self.scope, self.headers)
        self.headers = _TRAILERS
        expects = self.expect_100_continue and version != "1.0"
        keep_alive = version != "1.0" and parser.should_keep_alive()
        self._new = plan if version != "1.0" and keep_alive and url.host is None else None
        self._begin(Cycle(self, plan, varying, keep_alive=keep_alive, expects=expects))

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
        route = cycle.plan.route
        cycle.task = steps = Steps(route.answer(cycle), self.tasks, self.loop)
        if route.is_task:
            steps.become_task()
        else:
            steps.go_on()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body; drop it if the request is answered already."""
        self._in_body = True
        self._is_silent = False
        self._head_bytes = 0
        size = len(body)
        self._body_bytes += size
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
        if self._receiving is not None:
            self._stop_receiving()
        if self._last is not None:
            self._settle_last()
        cycle: Any = self.cycle
        if cycle is not None:
            cycle.more_body = False
            if cycle.response_complete and not cycle.keep_alive:
                self.transport.close()
            cycle.set()

    def _count_unsent(self) -> None:
        """Count the bytes that wait in the buffer of the connection, all as the answer that has come last."""
        now = 0 if self.transport.is_closing() else self.transport.get_write_buffer_size()
        is_in_parts = self._answered is not None and self._answered.is_in_parts
        self._note_unsent(now, now if is_in_parts else 0)

    def _note_unsent(self, now: int, parts: int) -> None:
        more_parts = parts - self._unsent_parts
        self._service.note_unsent(now - self._unsent - more_parts, more_parts)
        self._unsent, self._unsent_parts = now, parts

    @property
    def _is_behind(self) -> bool:
        """Whether its client has so much to receive that no further request of it is answered."""
        return self._unsent > self._limits.max_inflight_bytes // 8

    def on_response_complete(self) -> None:
        """End an answer: begin the next request that waits, or be idle."""
        if self.transport.is_closing():
            return
        if self._unsent or self.transport.get_write_buffer_size():
            self._count_unsent()
            if self.pipeline and self._is_behind:
                return  # `resume_writing` goes on
        if (
            self.pipeline
            or self.flow.read_paused
            or self._idle is None
            or self._sending is not None
        ):
            self._go_on()
        else:
            self._idle_since = self.loop.time()

    def _go_on(self) -> None:
        """Begin the next request that waits, or be idle."""
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            self._start(self.pipeline.pop())
        else:
            self._idle_since = self.loop.time()
            if self._idle is None:
                self._idle = self.loop.call_later(self._limits.keep_alive_s, self._look_at_idle)
        if self._sending is None and self.transport.get_write_buffer_size():
            self._start_sending()

    def _look_at_idle(self) -> None:
        """End the connection if it has been idle for too long; during a request the next answer sets the timer."""
        self._idle = None
        if self._incomplete or self.cycle is None or not self.cycle.response_complete:
            return
        left_s = self._idle_since + self._limits.keep_alive_s - self.loop.time()
        if left_s <= 0.001:
            self.transport.close()
        else:
            self._idle = self.loop.call_later(left_s, self._look_at_idle)

    def pause_writing(self) -> None:
        """Pause sending, because the connection's buffer is full, and watch how fast the client empties it."""
        super().pause_writing()
        self._count_unsent()
        if self._sending is None:
            self._start_sending()

    def resume_writing(self) -> None:
        """Go on sending, because the connection's buffer has room again."""
        super().resume_writing()
        self._stop_sending()
        was_behind = self._is_behind
        self._count_unsent()
        cycle = self._answered
        if was_behind and cycle is not None and cycle.response_complete and cycle.keep_alive:
            self._go_on()

    def _start_receiving(self) -> None:
        self._ends = self.loop.time() + self._limits.receive_timeout_s
        self._look_later(self._limits.receive_timeout_s)

    def _look_later(self, left_s: float) -> None:
        self._body_bytes = 0
        looks_s = min(left_s, self._limits.rate_window_s)
        self._receiving = self.loop.call_later(looks_s, self._look_at_receiving)

    def _stop_receiving(self) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def _look_at_receiving(self) -> None:
        """End a connection whose request is late, or whose body comes too slowly."""
        self._receiving = None
        if self.pipeline:  # the request waits behind another one, and reading is paused meanwhile
            self._start_receiving()
            return
        left_s = self._ends - self.loop.time()
        least = self._limits.min_rate_bytes_s * self._limits.rate_window_s
        slow = self._was_in_body and self._body_bytes < least
        self._was_in_body = self._in_body
        if left_s > 0.001 and not slow:
            self._look_later(left_s)
            return
        text = f"the request was not received within {self._limits.receive_timeout_s:g} s"
        if left_s > 0.001:
            text = f"the body came slower than {self._limits.min_rate_bytes_s} bytes per second"
        self._refuse_rest(408, text, "receive_timeout")

    def _start_sending(self) -> None:
        look_s, size = self._limits.rate_window_s, self.transport.get_write_buffer_size()
        self._sending = self.loop.call_later(look_s, self._look_at_sending, size)

    def _stop_sending(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _look_at_sending(self, before: int) -> None:
        """End a connection whose client takes its answer too slowly."""
        self._sending = None
        self._count_unsent()
        size = self.transport.get_write_buffer_size()
        least = self._limits.min_rate_bytes_s * self._limits.rate_window_s
        if size and 0 <= before - size < min(before, least):
            self.transport.abort()
        elif size:
            self._start_sending()

    def _refuse(self, status: int, text: str, code: str) -> None:
        """Answer without the application, and close once the client has, which would lose the answer otherwise (RFC 9112, 9.6)."""
        if self._ignores:
            return
        self._ignores = True
        self._stop_receiving()
        head, body = refusal_bytes(status, text, code)
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            self._counters.note_unread(str(status), code, len(body))
        else:
            cycle.refusal = str(status), code, len(body)
        self.transport.write(head + body)
        if self not in self._refused and len(self._refused) >= _MOST_REFUSED:
            self.transport.close()
            return
        self._refused.add(self)
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(_REFUSED_S, self.transport.close)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
