"""One HTTP request and its answer: the body within the limits, compression, clients that go away."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import time
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.errors import HeadraceError
from headrace_formats.page import guarded
from headrace_serve.admission.codings import WINDOWS, codings_of, pack, unpack
from headrace_serve.client_input import loads
from headrace_serve.errors import (
    BodyTooLargeError,
    CodingError,
    DisconnectedError,
    Refusal,
    UnavailableError,
    UnsupportedError,
    error_json,
    refusal,
)
from headrace_serve.inference.parameters import TRACED
from headrace_serve.monitoring.access_log import AccessLine, request_id_of
from headrace_serve.monitoring.access_log import logger as access_log
from headrace_serve.monitoring.observe_probes import server_timing, times_for
from headrace_serve.threads import MANY, Pool, call_by_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from headrace_serve.http.plans import Head, Plan
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["SMALL_JSON_BYTES", "Exchange", "Reply", "Wire", "error_body", "head_text"]

T = TypeVar("T")

logger = logging.getLogger("headrace.serve")

_UNPACKING = Pool("unpacking", 4)
_SMALL_BYTES = 8 << 10
_AT_ONCE_BYTES = 256 << 10
"""A body of so few bytes that becomes at most so many is decompressed at once: it takes less time than a turn in the queue."""

_SEPARATORS = (b"[", b"{", b",", b":")
_SEPARATOR_BYTES = 56
"""What an element of JSON takes as an object of Python beside its own bytes: about an empty list, or a float and its place."""
_ELEMENT_BYTES = 16
"""About as many bytes of JSON take as long to read, or to compress, as one element of BYTES."""
_COUNTED_BYTES = 256
"""In as many bytes separators are counted while one element of BYTES is read."""

SMALL_JSON_BYTES = _ELEMENT_BYTES * MANY
"""Longer JSON is read in another thread."""

_WORTH_BYTES = 1024
_MOST_PIECES = 256
_LARGE_BYTES = 64 << 10
"""Smaller answers are sent whatever waits for clients already."""
_REQUEST_ID = b"x-request-id"
_TIMING = b"x-timing"


def _separators_in(text: bytes) -> int:
    """Return how many separators a text of JSON has, at the speed of ``memchr``; those inside of texts count, too."""
    return sum(map(text.count, _SEPARATORS))


@lru_cache(maxsize=256)
def _head(
    status: int, content_type: str, compressible: bool, *headers: tuple[str, str]
) -> bytes | None:
    """Return status line and headers of an answer as they are sent before the number of its bytes, None where one cannot be."""
    given = {name.lower(): value for name, value in headers}
    lines = guarded({**given, "content-type": content_type})
    if compressible:
        lines["vary"] = "Accept-Encoding" + (f", {given['vary']}" if "vary" in given else "")
    text = head_text(lines)
    return None if text is None else STATUS_LINE[status] + text + b"content-length: "


def head_text(lines: Mapping[str, str]) -> bytes | None:
    """Return headers as they are sent, None where one has a character that would begin another."""
    text = "".join([f"{name.lower()}: {value}\r\n" for name, value in lines.items()])
    if len(text.split("\n")) != len(lines) + 1 or text.count("\r") != len(lines) or "\0" in text:
        return None
    return text.encode("latin-1")


class Reply:
    """An answer of HTTP.

    Attributes:
        status, content_type, headers: The HTTP status, and the headers that are sent.
        parts: The body, in pieces that are sent one after the other.
        compressible: Whether the body may be compressed. Only answers of inferences are, because Triton's client for
            asyncio accepts gzip in every request, but decompresses only these answers. Pictures are compressed already.
    """

    def __init__(
        self,
        status: int,
        parts: Sequence[bytes | memoryview],
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        *,
        compressible: bool = False,
    ) -> None:
        self.status = status
        self.parts = parts
        self.content_type = content_type
        self.headers = headers or {}
        self.compressible = compressible

    @classmethod
    def of_inference(
        cls,
        parts: Sequence[bytes | memoryview],
        content_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        """Return the answer of an inference."""
        compressible = not content_type.startswith("image/")
        return cls(200, parts, content_type, headers, compressible=compressible)

    @classmethod
    def json(cls, value: Any, status: int = 200) -> Reply:
        """Return an answer of JSON."""
        return cls(status, [orjson.dumps(value)])

    @classmethod
    def refused(cls, why: Refusal, identifier: str, retry_after_s: int) -> Reply:
        """Return the answer for an error; tritonclient reads ``error``."""
        headers = {"retry-after": str(retry_after_s)} if why.retry else {}
        if why.status == 401:
            headers["www-authenticate"] = "Bearer"
        if why.code == CodingError.code:
            headers["accept-encoding"] = ", ".join(WINDOWS)
        return cls(why.status, [error_body(why, identifier)], headers=headers)


def error_body(why: Refusal, identifier: str) -> bytes:
    """Return the JSON of an error, for the request with this id."""
    return error_json(why.text, why.code, why.node, identifier)


class Exchange(AccessLine):
    """A request of HTTP that is being answered: all that is known of it, from its head to the last byte of its answer.

    What carries it is a subclass: `headrace_serve.http.cycle.Cycle` on a connection of ours, `Wire` in another server's
    application.

    Attributes:
        service: The service that answers.
        plan: What the head of the request means.
        varying: The headers that differ for each request with such a head.
        identifier: The id of the request, ``""`` until the body is read.
        header_id: What the client has sent as ``X-Request-Id``, which the answer repeats. ``""`` without it.
        model: The model that the request is for, None until the path is read.
        limits: The limits of the server, and those of the model where they are smaller.
        parameters: Those of the request, where it is one of the pipeline.
        form: What it shares with an earlier request, as its route keeps it.
        document: The JSON of its body, where that was read before what answers it. None: it was not.
        pieces, size: What has come of its body, and was not taken; so many bytes.
        more_body: Whether more of the body is to come.
        wanted: So many bytes of the body who answers has room for, and waits for. 0: for any.
        task: What answers it. None before the first wait.
        disconnected: Whether the client has gone.
        has_ended: Whether the client has ended its side of the connection. It may still wait for the answer.
        on_ended: Called then.
        is_in_parts: Whether the answer comes in parts, which the account of memory counts by themselves.
        is_watched: Whether what answers is cancelled when the client goes away.
        refusal: Status, code and bytes of an answer that the connection has given itself. None for none.
    """

    service: Service
    plan: Plan
    varying: dict[bytes, bytes]
    identifier = header_id = ""
    began_s = 0.0
    began_ns = size = wanted = 0
    model: Any = None
    task: Any = None
    form: Any = None
    document: Any = None
    parameters: Mapping[str, Any] = MappingProxyType({})
    refusal: tuple[str, str, int] | None = None
    on_ended: Callable[[], object] | None = None
    more_body = True
    disconnected = has_ended = is_in_parts = is_watched = False
    pieces: list[bytes]
    _held = 0
    _admitted: Model | None = None
    _received = False

    def begin(self, service: Service, plan: Plan) -> None:
        """Note that the request is answered from now on."""
        counters = service.counters
        self.route, self.limits = plan.route.name, service.limits
        self.began_s = counters.began_s["http"] = time.monotonic()
        counters.in_flight["http"] += 1  # as `Counters.begin`, for each request
        if plan.without_body:
            self.nothing_to_receive()
        if _REQUEST_ID in self.varying:
            self.request_id = self.header_id = request_id_of(self.header(_REQUEST_ID))

    @property
    def scope(self) -> Any:
        """The scope of ASGI for such a head."""
        return self.plan.scope

    @property
    def path(self) -> Mapping[str, str]:
        """The values of the names in the path."""
        return self.plan.path

    @property
    def _headers(self) -> dict[bytes, bytes]:
        return {**self.plan.headers, **self.varying}

    def header(self, name: bytes) -> str:
        """Return the value of a header, by its name in lower case: several lines are one list. ``""`` where there is none."""
        value = self.varying.get(name)
        return (self.plan.headers.get(name, b"") if value is None else value).decode("latin-1")

    @property
    def headers(self) -> dict[str, str]:
        """All headers, names in lower case."""
        return {k.decode("latin-1"): v.decode("latin-1") for k, v in self._headers.items()}

    @property
    def traced(self) -> dict[str, str]:
        """The headers that say to which trace the request belongs."""
        varying = self.varying
        if TRACED.isdisjoint(varying):
            return {}
        return {k.decode(): varying[k].decode("latin-1") for k in TRACED if k in varying}

    def share_key(self) -> str:
        """Return the text by which the shares of an alias choose, ``""`` if the client sends none."""
        return self.header(b"x-share-key")

    def admit(self, model: Model) -> Model:
        """Take a place in the queue of a model, before the body is received, and return it. `end` gives the place back.

        Raises:
            OverloadedError: The queue is full.
            InputError, NotAllowedError: The client asks for times, and there are none, or not for its key.
        """
        self.model = model
        if self.service.unsent_bytes:
            self.service.check_unsent()
        if model.limits:
            self.limits = self.service.limits.narrowed(model.limits)
        if _TIMING in self.varying:
            self.timing = times_for(model, self.service.keys, self.headers)
        if model.inside >= model.queue_size:
            self.service.check_queue(model)
        model.receiving += not self._received
        self.take_place(model)
        return model

    def take_place(self, model: Model) -> None:
        """Take a place in the queue of a model, which has room. The body was received, or ``receiving`` counts it."""
        model.inside += 1
        model.use.last_use = self.began_s
        self._admitted = model

    def give_place_back(self) -> None:
        """Give the place in the queue of a model back, if there is one."""
        if self._admitted is not None:
            self._admitted.inside -= 1
            self._admitted.receiving -= not self._received
            self._admitted = None

    def enter(self) -> Model | None:
        """Find the model in the path, and take a place in its queue; as `find` and `admit`."""
        model = self.find()
        return None if model is None else self.admit(model)

    def find(self) -> Model | None:
        """Find the model in the path, as `Service.find` does. None: `headrace_serve.http.waiting.wait` brings it."""
        service, plan = self.service, self.plan
        model: Model | None = plan.model
        if model is None or plan.catalogue is not service.models or model.unloaded:
            name, version = self.path["model"], self.path.get("version", "")
            model = service.find(name, version, self.share_key)
            if version or service.models.has(name):  # an alias chooses each time
                plan.model, plan.catalogue = model, service.models
        return model

    def again(self) -> Model | None:
        """As `enter` once the body was received: another model may have the place of the first one."""
        version = self.path.get("version", "")
        model = self.service.find(self.path["model"], version, self.share_key)
        if model is None or model is self._admitted:
            return model
        self.give_place_back()
        return self.admit(model)

    def hold(self, more: int) -> None:
        """Count ``more`` bytes against `Limits.max_inflight_bytes`, until the end of the request.

        Raises:
            OverloadedError: The bodies in flight would have too many bytes.
        """
        self._held = self.service.hold(self._held, more)

    async def parsed(self, text: bytes, read: Callable[[bytes], T] = loads) -> T:
        """Parse JSON as `parsed_now` does, a large text in another thread."""
        if len(text) <= SMALL_JSON_BYTES:
            return self.parsed_now(text, read)
        size, separators = len(text), 0
        if size <= self.limits.max_json_bytes:
            separators = await call_by_size(size // _COUNTED_BYTES, _separators_in, text)
        self._hold_objects(size, separators)
        return await call_by_size(size // _ELEMENT_BYTES, read, text.removeprefix(codecs.BOM_UTF8))

    def parsed_now(self, text: bytes, read: Callable[[bytes], T] = loads) -> T:
        """Parse JSON, whose objects count against `Limits.max_inflight_bytes` until the end of the request.

        A small text may become many objects, and parsing keeps all other Python code waiting. So it is priced before.

        Args:
            text: The text.
            read: Parses it.

        Raises:
            BodyTooLargeError: The text is too large, or would become too many objects.
            OverloadedError: The bodies in flight would have too many bytes.
            InputError: The text is no JSON.
        """
        text = text.removeprefix(codecs.BOM_UTF8)
        self._hold_objects(len(text), _separators_in(text))
        return read(text)

    def _hold_objects(self, size: int, separators: int) -> None:
        most = self.limits.max_json_bytes
        if size + separators * _SEPARATOR_BYTES > most:
            raise BodyTooLargeError(
                f"the JSON has {size} bytes, and {separators} of '[', '{{', ',' and ':', which count {_SEPARATOR_BYTES}"
                f" bytes each; the limit is {most}. Send tensors as binary data, and files as they are. Whoever runs the"
                " server can raise the limit by --max-json-bytes."
            )
        self.hold(separators * _SEPARATOR_BYTES)

    def note_identifier(self, document: Any) -> None:
        """Note the id of a request of the protocol, for its answer."""
        identifier = document.get("id") if isinstance(document, dict) else None
        if isinstance(identifier, str):
            self.identifier = identifier

    def whole(self, most: int | None = None) -> bytes | None:
        """Return the body if all of it is there, within the limits and not compressed; else None, and `body` receives it, or raises."""
        if self.more_body or len(self.pieces) > 1 or self.plan.is_coded:
            return None
        body: bytes = self.pieces[0] if self.pieces else b""
        size = len(body)
        if size > self.limits.max_body_bytes or (most is not None and size > most):
            return None
        if not self._received:
            self.hold(size)
            self.note_received(size)
        return body

    def note_answered(self, inferences: int) -> None:
        """Count the request as one that the model has answered, with so many rows."""
        self.model.counts.note(time.perf_counter_ns() - self.began_ns, inferences, 1)

    def note_received(self, size: int) -> None:
        """Note that the body, of so many bytes as transferred, is there."""
        if self._admitted is not None and not self._received:
            self._admitted.receiving -= 1
        self._received = True
        self.received_bytes, self.received_s = size, time.monotonic()

    async def body(self, most: int | None = None) -> bytes:
        """Receive the body, and decompress it. One that comes in pieces is copied once.

        Args:
            most: The most bytes that it may have, if that is fewer than all bodies may have.

        Raises:
            BodyTooLargeError: The body is larger than the limit.
            UnsupportedError: The body has another ``Transfer-Encoding`` than chunked.
            OverloadedError: The bodies in flight would have too many bytes.
            CodingError: ``Content-Encoding`` names a coding that this server has not.
            InputError: The body is not compressed as ``Content-Encoding`` says.
            DisconnectedError: The client went away.
        """
        whole = self.whole(most)
        if whole is not None:
            return whole
        limit = self.limits.max_body_bytes
        if most is not None:
            limit = min(limit, most)
        headers = self._headers
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            raise UnsupportedError("transfer-encoding: this server supports only chunked")
        body = await self._whole(limit)
        self.note_received(len(body))
        if b"content-encoding" not in headers:
            return body
        for coding in reversed(codings_of(self.header(b"content-encoding"))):
            body = await self._decompressed(body, coding, limit)
        return body

    async def _whole(self, limit: int) -> bytes:
        """Receive a body of at most ``limit`` bytes as it is sent; the errors are those of `body`."""
        declared = self.varying.get(b"content-length", b"0")
        length = int(declared) if declared.isdigit() else 0
        if length > limit:
            raise BodyTooLargeError(f"the body has {length} bytes, the limit is {limit}")
        self.hold(length)
        self.wanted = length  # there is room for all of it
        received: list[bytes] = []
        small, size = bytearray(), 0
        while True:
            await self.more()
            if self.disconnected:
                raise DisconnectedError
            pieces, self.pieces, self.size = self.pieces, [], 0
            size += sum(map(len, pieces))
            if size > limit:
                raise BodyTooLargeError(f"the body has more than {limit} bytes, the limit")
            if size > self._held:
                self.hold(size - self._held)
            received += pieces
            if not self.more_body:
                whole = len(received) == 1 and not small
                return received[0] if whole else b"".join([small, *received])
            if len(received) > _MOST_PIECES:  # each of a few bytes takes many times as much
                small += b"".join(received)
                received.clear()

    async def _decompressed(self, body: bytes, coding: str, limit: int) -> bytes:
        if len(body) <= _SMALL_BYTES:
            with contextlib.suppress(BodyTooLargeError):
                unpacked = unpack(body, coding, min(limit, _AT_ONCE_BYTES))
                self.hold(len(unpacked))
                return unpacked
        client = self.key or self.client.rpartition(":")[0]
        async with self.service.unpacking.turn(client):
            room = min(limit, self.service.room)
            self.hold(room)
            try:
                unpacked = await _UNPACKING.run(unpack, body, coding, room)
            except BodyTooLargeError:
                self.hold(limit - room)  # raises, unless the limit of bodies was the smaller one
                raise
            finally:
                self.service.release(room)
                self._held -= room
            self.hold(len(unpacked))
        return unpacked

    async def while_connected(self, work: Awaitable[T]) -> T:
        """Await work, and cancel it at once if the client goes away.

        Raises:
            DisconnectedError: The client went away.
        """
        if self.disconnected and asyncio.iscoroutine(work):
            work.close()
        self.watch()
        try:
            return await work
        except asyncio.CancelledError:
            if self.disconnected:
                raise DisconnectedError from None
            raise
        finally:
            self.is_watched = False

    def check_connected(self) -> None:
        """Raise DisconnectedError if the client has gone."""
        self.is_watched = False
        if self.disconnected:
            raise DisconnectedError

    def watch(self) -> None:
        """Have the task that answers cancelled once the client goes away, until `is_watched` is taken back."""
        if self.disconnected:
            raise DisconnectedError
        self.is_watched = True

    def reply_now(self, reply: Reply) -> bool:
        """Send an answer at once; False, and `reply` sends it, where that needs more than one write."""
        length = 0
        for part in reply.parts:
            length += len(part)
        if length > _LARGE_BYTES:
            self.service.check_answer(length)
        if reply.compressible and length >= _WORTH_BYTES and self.plan.coding:
            return False
        headers = (*reply.headers.items(), *self.plan.added.items())
        head = _head(reply.status, reply.content_type, reply.compressible, *headers)
        if head is None:
            return False
        head = b"%b%d\r\n" % (head, length)
        if self.header_id:
            head += b"x-request-id: %b\r\n" % self.header_id.encode()
        if self.timing:
            head += b"server-timing: %b\r\n" % server_timing(self.timing).encode()
        self.status = "200" if reply.status == 200 else str(reply.status)
        self.answered_s, self.sent_bytes = time.monotonic(), length
        return self.answer(head, reply.parts)

    async def reply(self, reply: Reply) -> None:
        """Send an answer; it is compressed if the client accepts that and the body has 1024 bytes or more."""
        parts = reply.parts
        length = sum(map(len, parts))
        headers = dict(reply.headers)
        if length > _LARGE_BYTES:
            self.service.check_answer(length)
        self.answered(str(reply.status))
        if reply.compressible:
            headers["vary"] = "Accept-Encoding"
            if length >= _WORTH_BYTES and (encoding := self.plan.coding):
                parts = [
                    await call_by_size(length // _ELEMENT_BYTES, pack, b"".join(parts), encoding)
                ]
                length = len(parts[0])
                headers["content-encoding"] = encoding
        self.sent_bytes = length
        headers["content-length"] = str(length)
        await self.send_head(reply.status, reply.content_type, headers)
        await self.write(b"".join(parts), more=False)

    async def send_head(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        """Send the head of an answer, with the headers that every one has."""
        headers = guarded({**headers, **self.plan.added, "content-type": content_type})
        if self.header_id:
            headers["x-request-id"] = self.header_id
        if self.timing:
            headers["server-timing"] = server_timing(self.timing)
        await self.start(status, {name.lower(): value for name, value in headers.items()})

    def refused(self, error: BaseException) -> Refusal:
        """Return the answer for an error, and note its code in the line of the access log.

        A cancellation is raised again, except while the server drains: then the server has cancelled the request
        itself, and the client waits for an answer.
        """
        if isinstance(error, asyncio.CancelledError):
            if not self.service.draining:
                raise error
            error = UnavailableError("the server is shutting down")
        elif not isinstance(error, HeadraceError):
            logger.error("a request of %s failed in the server", self.scope["path"], exc_info=error)
        refused = refusal(error, debug=self.service.debug_errors)
        self.code = refused.code
        return refused

    def end(self) -> None:
        """Give back the body's bytes and the place in the queue; count the request and log it."""
        service, model = self.service, self.model
        if model is not None:
            self.model_name = model.name
        elif (name := self.path.get("model", "")) and service.models.has(name):
            self.model_name = name
        if self.refusal is not None:
            status, self.code, self.sent_bytes = self.refusal
            self.answered(status)
        service.counters.end("http", self)
        if access_log.isEnabledFor(logging.INFO):
            self.log(self.identifier)
        if self._held:
            service.release(self._held)
            self._held = 0
        if self._admitted is not None:
            self.give_place_back()
        self.task = None

    # What carries it.

    async def more(self) -> None:
        """Wait for what is wanted of the body, or its end; see `disconnected`."""

    def answer(self, head: bytes, parts: Sequence[bytes | memoryview]) -> bool:
        """Send a whole answer at once. False where `start` and `write` are needed, which know more cases.

        Args:
            head: Status line and headers, with the length of the body, but those that every answer has.
            parts: The body.
        """
        del head, parts
        return False

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of an answer, names of headers in lower case. Without a length its parts are sent as they come."""

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body; with ``more`` others follow."""

    def abort(self) -> None:
        """End the connection, because the answer cannot be sent."""


class Wire(Exchange):
    """A request in another server's application, which tells no end of the client's side of the connection."""

    def __init__(
        self, service: Service, head: Head, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.service, self.plan, self.varying = service, head.plan, head.varying
        self.pieces, self.peer = [], scope.get("client")
        self._receive, self._send = receive, send
        self._watcher: asyncio.Task[None] | None = None
        self.begin(service, head.plan)

    async def more(self) -> None:
        """Wait for a piece of the body, or its end."""
        message: Message = await self._receive()
        if message["type"] == "http.disconnect":
            self.disconnected = True
        elif piece := message.get("body", b""):
            self.pieces.append(piece)
        self.more_body = bool(message.get("more_body", False))

    @property
    def is_watched(self) -> bool:
        """Whether the task that answers is cancelled when the client goes away."""
        return self._watcher is not None

    @is_watched.setter
    def is_watched(self, is_watched: bool) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        self._watcher = (
            asyncio.create_task(self._watch(asyncio.current_task())) if is_watched else None
        )

    async def _watch(self, task: Any) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnected = True
        task.cancel()

    async def start(self, status: int, headers: dict[str, str]) -> None:
        """Send the head of an answer."""
        raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a part of the body."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
