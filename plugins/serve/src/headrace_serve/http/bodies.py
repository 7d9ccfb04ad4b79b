"""What comes of an HTTP request: its headers, and its body within the limits, decompressed."""

from __future__ import annotations

import codecs
import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_serve.admission.codings import codings_of, unpack
from headrace_serve.client_input import loads
from headrace_serve.errors import BodyTooLargeError, DisconnectedError, UnsupportedError
from headrace_serve.inference.parameters import TRACED
from headrace_serve.monitoring.access_log import AccessLine
from headrace_serve.threads import MANY, Pool, call_by_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace_serve.admission.limits import Limits
    from headrace_serve.http.plans import Plan
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["ELEMENT_BYTES", "SMALL_JSON_BYTES", "Incoming"]

T = TypeVar("T")

_UNPACKING = Pool("unpacking", 4)
_SMALL_BYTES = 8 << 10
_AT_ONCE_BYTES = 256 << 10
"""A body of so few bytes that becomes at most so many is decompressed at once: it takes less time than a turn in the queue."""

_SEPARATORS = (b"[", b"{", b",", b":")
_SEPARATOR_BYTES = 56
"""What an element of JSON takes as an object of Python beside its own bytes: about an empty list, or a float and its place."""
ELEMENT_BYTES = 16
"""About as many bytes of JSON take as long to read, or to compress, as one element of BYTES."""
_COUNTED_BYTES = 256
"""In as many bytes separators are counted while one element of BYTES is read."""

SMALL_JSON_BYTES = ELEMENT_BYTES * MANY
"""Longer JSON is read in another thread."""

_MOST_PIECES = 256


def _separators_in(text: bytes) -> int:
    """Return how many separators a text of JSON has, at the speed of ``memchr``; those inside of texts count, too."""
    return sum(map(text.count, _SEPARATORS))


class Incoming(AccessLine):
    """A request as it comes.

    Attributes:
        service: The service that answers.
        plan: What the head of the request means.
        varying: The headers that differ for each request with such a head.
        limits: The limits of the server, and those of the model where they are smaller.
        pieces, size: What has come of its body, and was not taken; so many bytes.
        more_body: Whether more of the body is to come.
        wanted: So many bytes of the body who answers has room for, and waits for. 0: for any.
        disconnected: Whether the client has gone.
        model: The model that the request is for, None until the path is read.
        identifier: The id of the request, ``""`` until the body is read.
        form: What it shares with an earlier request, as its route keeps it.
        document: The JSON of its body, where that was read before what answers it. None: it was not.
    """

    service: Service
    plan: Plan
    varying: dict[bytes, bytes]
    limits: Limits
    pieces: list[bytes]
    model: Any = None
    identifier = ""
    form: Any = None
    document: Any = None
    size = wanted = 0
    more_body = True
    disconnected = False
    _held = 0
    _admitted: Model | None = None
    _received = False

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
        return await call_by_size(size // ELEMENT_BYTES, read, text.removeprefix(codecs.BOM_UTF8))

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

    async def more(self) -> None:
        """Wait for what is wanted of the body, or its end; see `disconnected`."""

    def let_go(self) -> None:
        """Hold nothing of the request any more: its connection has this until the next one comes."""
        self.model = self.form = self.document = None
        self.pieces = []
