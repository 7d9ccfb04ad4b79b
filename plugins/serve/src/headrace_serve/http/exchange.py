"""One HTTP request and its answer: the body within the limits, compression, clients that go away."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from headrace.errors import HeadraceError
from headrace_formats import joined_headers
from headrace_page import guarded
from headrace_serve.access_log import AccessLine, request_id_of
from headrace_serve.aside import apart
from headrace_serve.codings import WINDOWS, coding_for, codings_of, pack, unpack
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
from headrace_serve.reading import loads
from headrace_serve.remembered import server_timing, times_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from headrace_serve.limits import Limits
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["REFUSED", "Exchange", "Reply", "error_body"]

T = TypeVar("T")

logger = logging.getLogger("headrace.serve")

REFUSED = "headrace_serve.refused"
"""The key of the state of a scope under which the connection puts status, code and bytes of an answer that it gave itself."""

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
_STATUSES = frozenset(HTTPStatus)
_REQUEST_ID = b"x-request-id"
_TIMING = b"x-timing"
_WITHOUT_BODY = ("GET", "HEAD", "OPTIONS")


def _separators_in(text: bytes) -> int:
    """Return how many separators a text of JSON has, at the speed of ``memchr``; those inside of texts count, too."""
    return sum(map(text.count, _SEPARATORS))


@lru_cache(maxsize=256)
def _head(status: int, content_type: str, headers: tuple[tuple[str, str], ...]) -> bytes | None:
    """Return status line and headers of an answer as they are sent, None where one cannot be."""
    lines = guarded({**dict(headers), "content-type": content_type})
    text = "".join([f"{name.lower()}: {value}\r\n" for name, value in lines.items()])
    if len(text.split("\n")) != len(lines) + 1 or text.count("\r") != len(lines) or "\0" in text:
        return None
    phrase = HTTPStatus(status).phrase if status in _STATUSES else ""
    return f"HTTP/1.1 {status} {phrase}\r\n{text}".encode("latin-1")


class Reply:
    """An answer of HTTP.

    Attributes:
        status, content_type, headers: The HTTP status, and the headers that are sent.
        parts: The body, in pieces that are sent one after the other.
        compressible: Whether the body may be compressed. Only answers of inferences are, because Triton's client for
            asyncio accepts gzip in every request, but decompresses only these answers. Pictures are compressed already.
    """

    compressible = False

    def __init__(
        self,
        status: int,
        parts: Sequence[bytes | memoryview],
        content_type: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.parts = parts
        self.content_type = content_type
        self.headers = headers or {}

    @classmethod
    def of_inference(
        cls, parts: Sequence[bytes | memoryview], content_type: str, **headers: str
    ) -> Reply:
        """Return the answer of an inference."""
        made = cls(200, parts, content_type, headers)
        made.compressible = not content_type.startswith("image/")
        return made

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


class Exchange:
    """A request of HTTP that is being answered.

    Attributes:
        service: The service that answers.
        scope: The scope of ASGI.
        identifier: The id of the request, ``""`` until the body is read.
        request_id: What the client has sent as ``X-Request-Id``, which the answer repeats. ``""`` without it.
        model: The model that the request is for, None until the path is read.
        line: The line of the access log.
        send: Sends a message of ASGI.
    """

    identifier = request_id = ""
    model: Any = None
    _held = 0
    _admitted: Model | None = None
    _received = False

    def __init__(
        self, service: Service, route: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.line = AccessLine(route, service.counters.begin("http"))
        self.service = service
        self.scope = scope
        self._headers: dict[bytes, bytes] = joined_headers(scope["headers"])
        self._receive = receive
        self.send = send
        self.line.peer = scope.get("client")
        if scope["method"] in _WITHOUT_BODY:
            self.line.nothing_to_receive()
        if _REQUEST_ID in self._headers:
            self.line.request_id = self.request_id = request_id_of(self.header(_REQUEST_ID))

    @property
    def _cycle(self) -> Any:
        """What answers on a connection of our own server, None on another's, or behind middleware."""
        found = getattr(self.send, "__self__", None)
        return found if hasattr(found, "watch") else None

    @property
    def path(self) -> dict[str, str]:
        """The parameters that the route found in the path."""
        found: dict[str, str] = self.scope.get("path_params", {})
        return found

    def header(self, name: bytes) -> str:
        """Return the value of a header, by its name in lower case: several lines are one list. ``""`` where there is none."""
        return self._headers.get(name, b"").decode("latin-1")

    @property
    def headers(self) -> dict[str, str]:
        """All headers, names in lower case."""
        return {k.decode("latin-1"): v.decode("latin-1") for k, v in self._headers.items()}

    def share_key(self) -> str:
        """Return the text by which the shares of an alias choose, ``""`` if the client sends none."""
        return self.header(b"x-share-key")

    def admit(self, model: Model) -> None:
        """Take a place in the queue of a model, before the body is received. `end` gives it back.

        Raises:
            OverloadedError: The queue is full.
            InputError, NotAllowedError: The client asks for times, and there are none, or not for its key.
        """
        self.model = model
        if _TIMING in self._headers:
            self.line.timing = times_for(model, self.service.keys, self.headers)
        self.service.admit(model)
        model.receiving += not self._received
        self._admitted = model

    async def for_model(self, *, is_json: bool) -> tuple[Model, bytes]:
        """Receive the body of a request for the model in the path; the errors are those of `admit` and `body`."""
        service, name, version = self.service, self.path["model"], self.path.get("version", "")
        self.admit(service.find(name, version, self.share_key))
        body = await (self.json_body() if is_json else self.body())
        # A reload or a load may have replaced the model while the body was received.
        return service.again(name, version, self.share_key), body

    def hold(self, more: int) -> None:
        """Count ``more`` bytes against `Limits.max_inflight_bytes`, until the end of the request.

        Raises:
            OverloadedError: The bodies in flight would have too many bytes.
        """
        self._held = self.service.hold(self._held, more)

    @property
    def _limits(self) -> Limits:
        """The limits of the server, and those of the model where they are smaller."""
        limits = self.service.limits
        return limits if self.model is None else limits.narrowed(self.model.limits)

    async def json_body(self) -> bytes:
        """Receive a body that is JSON; the errors are those of `body`."""
        return await self.body(self._limits.max_json_bytes)

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
        most = self._limits.max_json_bytes
        text = text.removeprefix(codecs.BOM_UTF8)
        size = len(text)
        separators = 0
        if size <= most:
            separators = await apart(size // _COUNTED_BYTES, _separators_in, text)
        if size + separators * _SEPARATOR_BYTES > most:
            raise BodyTooLargeError(
                f"the JSON has {size} bytes, and {separators} of '[', '{{', ',' and ':', which count {_SEPARATOR_BYTES}"
                f" bytes each; the limit is {most}. Send tensors as binary data, and files as they are. Whoever runs the"
                " server can raise the limit by --max-json-bytes."
            )
        self.hold(separators * _SEPARATOR_BYTES)
        return await apart(size // _ELEMENT_BYTES, read, text)

    def note_identifier(self, document: Any) -> None:
        """Note the id of a request of the protocol, for its answer."""
        identifier = document.get("id") if isinstance(document, dict) else None
        if isinstance(identifier, str):
            self.identifier = identifier

    async def body(self, most: int | None = None) -> bytes:
        """Receive the body, and decompress it.

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
        limit = self._limits.max_body_bytes
        if most is not None:
            limit = min(limit, most)
        headers = self._headers
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            raise UnsupportedError("transfer-encoding: this server supports only chunked")
        body = await self._whole(limit)
        if self._admitted is not None:
            self._admitted.receiving -= 1
        self._received = True
        self.line.received(len(body))
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
        found = bytearray()  # pieces of a few bytes would each take many times as much
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            piece: bytes = message.get("body", b"")
            size = len(found) + len(piece)
            if size > limit:
                raise BodyTooLargeError(f"the body has more than {limit} bytes, the limit")
            if size > self._held:
                self.hold(size - self._held)
            if not found and not message.get("more_body", False):
                return piece
            found += piece
            if not message.get("more_body", False):
                return bytes(found)

    async def _decompressed(self, body: bytes, coding: str, limit: int) -> bytes:
        if len(body) <= _SMALL_BYTES:
            with contextlib.suppress(BodyTooLargeError):
                found = unpack(body, coding, min(limit, _AT_ONCE_BYTES))
                self.hold(len(found))
                return found
        async with self.service.unpacking.turn(
            self.line.key or self.line.client.rpartition(":")[0]
        ):
            room = min(limit, self.service.room)
            self.hold(room)
            try:
                found = await asyncio.to_thread(unpack, body, coding, room)
            except BodyTooLargeError:
                self.hold(limit - room)  # raises, unless the limit of bodies was the smaller one
                raise
            finally:
                self.service.release(room)
                self._held -= room
            self.hold(len(found))
        return found

    async def while_connected(self, work: Awaitable[T]) -> T:
        """Await work, and cancel it at once if the client goes away.

        Raises:
            DisconnectedError: The client went away.
        """
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        gone = False

        def leave() -> None:
            nonlocal gone
            gone = True
            task.cancel()

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            leave()

        cycle = self._cycle
        watcher = asyncio.create_task(watch()) if cycle is None else cycle.watch(leave)
        try:
            return await work
        except asyncio.CancelledError:
            if gone:
                raise DisconnectedError from None
            raise
        finally:
            if cycle is None:
                watcher.cancel()
            else:
                cycle.watch(None)

    async def reply(self, reply: Reply) -> None:
        """Send an answer; it is compressed if the client accepts that and the body has 1024 bytes or more."""
        parts = reply.parts
        length = sum(map(len, parts))
        headers = reply.headers
        self.line.answered(str(reply.status))
        if reply.compressible:
            headers["vary"] = "Accept-Encoding"
            accepted = self.header(b"accept-encoding") if length >= _WORTH_BYTES else ""
            if encoding := coding_for(accepted):
                parts = [await apart(length // _ELEMENT_BYTES, pack, b"".join(parts), encoding)]
                length = len(parts[0])
                headers["content-encoding"] = encoding
        self.line.sent_bytes = length
        headers["content-length"] = str(length)
        if self._cycle is not None and not (self.request_id or self.line.timing):
            head = _head(reply.status, reply.content_type, tuple(headers.items()))
            if head is not None and self._cycle.answer(head, [*parts]):
                return
        await self.send_head(reply.status, reply.content_type, headers)
        await self.send({"type": "http.response.body", "body": b"".join(parts)})

    async def send_head(self, status: int, content_type: str, headers: dict[str, str]) -> None:
        """Send the head of an answer, with the headers that every one has."""
        headers = guarded({**headers, "content-type": content_type})
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
        found = refusal(error, debug=self.service.debug_errors)
        self.line.code = found.code
        return found

    def end(self) -> None:
        """Give back the body's bytes and the place in the queue; count the request and log it."""
        line = self.line
        name = self.path.get("model", "") if self.model is None else self.model.name
        if self.model is not None or (name and self.service.models.has(name)):
            line.model = name
        if REFUSED in self.scope.get("state", ()):
            status, line.code, line.sent_bytes = self.scope["state"][REFUSED]
            line.answered(status)
        self.service.counters.end("http", line)
        line.log(self.identifier)
        self.service.release(self._held)
        self._held = 0
        if self._admitted is not None:
            self._admitted.inside -= 1
            self._admitted.receiving -= not self._received
            self._admitted = None
