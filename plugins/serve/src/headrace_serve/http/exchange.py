"""One HTTP request and its answer: the body within the limits, compression, clients that go away."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from headrace.errors import HeadraceError
from headrace_formats.page import guarded
from headrace_serve.admission.codings import WINDOWS, coding_for, codings_of, pack, unpack
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
from headrace_serve.threads import Pool, call_by_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from headrace_serve.http.plans import Plan
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["Exchange", "Reply", "Wire", "error_body"]

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

_WORTH_BYTES = 1024
_MOST_PIECES = 256
_LARGE_BYTES = 64 << 10
"""Smaller answers are sent whatever waits for clients already."""
_CODED = frozenset((b"content-encoding", b"transfer-encoding"))
_REQUEST_ID = b"x-request-id"
_TIMING = b"x-timing"


def _separators_in(text: bytes) -> int:
    """Return how many separators a text of JSON has, at the speed of ``memchr``; those inside of texts count, too."""
    return sum(map(text.count, _SEPARATORS))


@lru_cache(maxsize=256)
def _head(
    status: int, content_type: str, length: int, compressible: bool, *headers: tuple[str, str]
) -> bytes | None:
    """Return status line and headers of an answer as they are sent, None where one cannot be."""
    given = {name.lower(): value for name, value in headers}
    lines = guarded({**given, "content-type": content_type, "content-length": str(length)})
    if compressible:
        lines["vary"] = "Accept-Encoding" + (f", {given['vary']}" if "vary" in given else "")
    text = "".join([f"{name.lower()}: {value}\r\n" for name, value in lines.items()])
    if len(text.split("\n")) != len(lines) + 1 or text.count("\r") != len(lines) or "\0" in text:
        return None
    return STATUS_LINE[status] + text.encode("latin-1")


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


class Wire:
    """What carries a request in another server's application. In our own it is a `headrace_serve.http.cycle.Cycle`.

    Attributes:
        plan, varying, pieces, more_body, wanted, refusal: As a `Cycle` has them.
        has_ended, on_ended, is_in_parts: The same. The other server tells no end of the client's side of the connection.
    """

    refusal: tuple[str, str, int] | None = None
    wanted = size = 0
    disconnected = has_ended = is_in_parts = False
    on_ended: Callable[[], object] | None = None
    more_body = True

    def __init__(
        self, plan: Plan, varying: dict[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.plan, self.varying, self.peer = plan, varying, scope.get("client")
        self._receive, self.send = receive, send
        self.pieces: list[bytes] = []
        self._watcher: asyncio.Task[None] | None = None

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

    def abort(self) -> None:
        """Leave it to the server, which sees an answer without an end."""

    def answer(self, head: bytes, parts: list[bytes | memoryview]) -> bool:
        """Send nothing: messages of ASGI are needed."""
        return False


class Exchange:
    """A request of HTTP that is being answered.

    Attributes:
        service: The service that answers.
        plan: What the head of the request means.
        scope: The scope of ASGI for such a head.
        path: The values of the names in the path.
        identifier: The id of the request, ``""`` until the body is read.
        request_id: What the client has sent as ``X-Request-Id``, which the answer repeats. ``""`` without it.
        model: The model that the request is for, None until the path is read.
        limits: The limits of the server, and those of the model where they are smaller.
        line: The line of the access log.
        wire: Brings its bytes, and carries the answer.
        send: Sends a message of ASGI.
    """

    identifier = request_id = ""
    model: Any = None
    _held = 0
    _admitted: Model | None = None
    _received = False

    def __init__(self, service: Service, wire: Any) -> None:
        plan = wire.plan
        counters, began_s = service.counters, time.monotonic()
        counters.in_flight["http"] += 1  # as `Counters.begin`, for each request
        counters.began_s["http"] = began_s
        self.line = AccessLine(plan.route.name, began_s)
        self.service, self.plan, self.wire = service, plan, wire
        self.scope, self.path, self.send = plan.scope, plan.path, wire.send
        self._headers: dict[bytes, bytes] = {**plan.headers, **wire.varying}
        self.line.peer = wire.peer
        self.limits = service.limits
        if plan.without_body:
            self.line.nothing_to_receive()
        if _REQUEST_ID in wire.varying:
            self.line.request_id = self.request_id = request_id_of(self.header(_REQUEST_ID))

    def header(self, name: bytes) -> str:
        """Return the value of a header, by its name in lower case: several lines are one list. ``""`` where there is none."""
        return self._headers.get(name, b"").decode("latin-1")

    @property
    def headers(self) -> dict[str, str]:
        """All headers, names in lower case."""
        return {k.decode("latin-1"): v.decode("latin-1") for k, v in self._headers.items()}

    @property
    def traced(self) -> dict[str, str]:
        """The headers that say to which trace the request belongs."""
        varying = self.wire.varying
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
        if _TIMING in self.wire.varying:
            self.line.timing = times_for(model, self.service.keys, self.headers)
        if model.inside >= model.queue_size:
            self.service.check_queue(model)
        model.inside += 1
        model.receiving += not self._received
        model.use.last_use = self.line.began_s
        self._admitted = model
        return model

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

    async def json_body(self) -> bytes:
        """Receive a body that is JSON; the errors are those of `body`."""
        body = self.whole(self.limits.max_json_bytes)
        return await self.body(self.limits.max_json_bytes) if body is None else body

    async def parsed(self, text: bytes, read: Callable[[bytes], T] = loads) -> T:
        """Parse JSON, whose objects count against `Limits.max_inflight_bytes` until the end of the request.

        A small text may become many objects, and parsing keeps all other Python code waiting. So it is priced before.

        Args:
            text: The text.
            read: Parses it. A large one in another thread.

        Raises:
            BodyTooLargeError: The text is too large, or would become too many objects.
            OverloadedError: The bodies in flight would have too many bytes.
            InputError: The text is no JSON.
        """
        most = self.limits.max_json_bytes
        text = text.removeprefix(codecs.BOM_UTF8)
        size = len(text)
        separators = 0
        if size <= most:
            separators = await call_by_size(size // _COUNTED_BYTES, _separators_in, text)
        if size + separators * _SEPARATOR_BYTES > most:
            raise BodyTooLargeError(
                f"the JSON has {size} bytes, and {separators} of '[', '{{', ',' and ':', which count {_SEPARATOR_BYTES}"
                f" bytes each; the limit is {most}. Send tensors as binary data, and files as they are. Whoever runs the"
                " server can raise the limit by --max-json-bytes."
            )
        self.hold(separators * _SEPARATOR_BYTES)
        return await call_by_size(size // _ELEMENT_BYTES, read, text)

    def note_identifier(self, document: Any) -> None:
        """Note the id of a request of the protocol, for its answer."""
        identifier = document.get("id") if isinstance(document, dict) else None
        if isinstance(identifier, str):
            self.identifier = identifier

    def whole(self, most: int | None = None) -> bytes | None:
        """Return the body if all of it is there, within the limits and not compressed; else None, and `body` gives it, or raises."""
        wire = self.wire
        if wire.more_body or len(wire.pieces) > 1 or not _CODED.isdisjoint(self._headers):
            return None
        body: bytes = wire.pieces[0] if wire.pieces else b""
        size = len(body)
        if size > self.limits.max_body_bytes or (most is not None and size > most):
            return None
        self._held = self.service.hold(self._held, size)
        if self._admitted is not None and not self._received:
            self._admitted.receiving -= 1
        self._received = True
        line = self.line
        line.received_bytes, line.received_s = size, time.monotonic()
        return body

    def _note_received(self, size: int) -> None:
        if self._admitted is not None and not self._received:
            self._admitted.receiving -= 1
        self._received = True
        self.line.received(size)

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
        limit = self.limits.max_body_bytes
        if most is not None:
            limit = min(limit, most)
        headers = self._headers
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            raise UnsupportedError("transfer-encoding: this server supports only chunked")
        body = await self._whole(limit)
        self._note_received(len(body))
        if b"content-encoding" not in headers:
            return body
        for coding in reversed(codings_of(self.header(b"content-encoding"))):
            body = await self._decompressed(body, coding, limit)
        return body

    async def _whole(self, limit: int) -> bytes:
        """Receive a body of at most ``limit`` bytes as it is sent; the errors are those of `body`."""
        declared = self._headers.get(b"content-length", b"0")
        length = int(declared) if declared.isdigit() else 0
        if length > limit:
            raise BodyTooLargeError(f"the body has {length} bytes, the limit is {limit}")
        self.hold(length)
        wire = self.wire
        wire.wanted = length  # there is room for all of it
        received: list[bytes] = []
        small, size = bytearray(), 0
        while True:
            await wire.more()
            if wire.disconnected:
                raise DisconnectedError
            pieces, wire.pieces, wire.size = wire.pieces, [], 0
            size += sum(map(len, pieces))
            if size > limit:
                raise BodyTooLargeError(f"the body has more than {limit} bytes, the limit")
            if size > self._held:
                self.hold(size - self._held)
            received += pieces
            if not wire.more_body:
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
        client = self.line.key or self.line.client.rpartition(":")[0]
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
        self.watch()
        try:
            return await work
        except asyncio.CancelledError:
            if self.wire.disconnected:
                raise DisconnectedError from None
            raise
        finally:
            self.wire.is_watched = False

    def check_connected(self) -> None:
        """Raise DisconnectedError if the client has gone."""
        self.wire.is_watched = False
        if self.wire.disconnected:
            raise DisconnectedError

    def watch(self) -> None:
        """Have the task that answers cancelled once the client goes away, until ``is_watched`` of the wire is taken back."""
        if self.wire.disconnected:
            raise DisconnectedError
        self.wire.is_watched = True

    def reply_now(self, reply: Reply) -> bool:
        """Send an answer at once; False, and `reply` sends it, where that needs more than one write."""
        length = 0
        for part in reply.parts:
            length += len(part)
        line = self.line
        if length > _LARGE_BYTES:
            self.service.check_answer(length)
        if (
            self.request_id
            or line.timing
            or (reply.compressible and length >= _WORTH_BYTES and self._coding)
        ):
            return False
        line.status, line.answered_s, line.sent_bytes = str(reply.status), time.monotonic(), length
        head = _head(
            reply.status,
            reply.content_type,
            length,
            reply.compressible,
            *reply.headers.items(),
            *self.plan.added.items(),
        )
        return head is not None and self.wire.answer(head, reply.parts)

    @property
    def _coding(self) -> str:
        accepted = self._headers.get(b"accept-encoding")
        return "" if accepted is None else coding_for(accepted.decode("latin-1"))

    async def reply(self, reply: Reply) -> None:
        """Send an answer; it is compressed if the client accepts that and the body has 1024 bytes or more."""
        parts = reply.parts
        length = sum(map(len, parts))
        headers = dict(reply.headers)
        if length > _LARGE_BYTES:
            self.service.check_answer(length)
        self.line.answered(str(reply.status))
        if reply.compressible:
            headers["vary"] = "Accept-Encoding"
            if length >= _WORTH_BYTES and (encoding := self._coding):
                parts = [
                    await call_by_size(length // _ELEMENT_BYTES, pack, b"".join(parts), encoding)
                ]
                length = len(parts[0])
                headers["content-encoding"] = encoding
        self.line.sent_bytes = length
        headers["content-length"] = str(length)
        await self.send_head(reply.status, reply.content_type, headers)
        await self.send({"type": "http.response.body", "body": b"".join(parts)})

    async def send_head(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        """Send the head of an answer, with the headers that every one has."""
        headers = guarded({**headers, **self.plan.added, "content-type": content_type})
        if self.request_id:
            headers["x-request-id"] = self.request_id
        if self.line.timing:
            headers["server-timing"] = server_timing(self.line.timing)
        raw = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

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
        self.line.code = refused.code
        return refused

    def end(self) -> None:
        """Give back the body's bytes and the place in the queue; count the request and log it."""
        line = self.line
        name = self.path.get("model", "") if self.model is None else self.model.name
        if self.model is not None or (name and self.service.models.has(name)):
            line.model = name
        if self.wire.refusal is not None:
            status, line.code, line.sent_bytes = self.wire.refusal
            line.answered(status)
        self.service.counters.end("http", line)
        if access_log.isEnabledFor(logging.INFO):
            line.log(self.identifier)
        if self._held:
            self.service.release(self._held)
            self._held = 0
        if self._admitted is not None:  # as `give_place_back`, for each request
            self._admitted.inside -= 1
            self._admitted.receiving -= not self._received
            self._admitted = None
