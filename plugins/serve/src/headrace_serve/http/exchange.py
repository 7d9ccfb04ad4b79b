"""One HTTP request and its answer: places in queues, compression, clients that go away."""

from __future__ import annotations

import asyncio
import logging
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.errors import HeadraceError
from headrace_formats.page import guarded
from headrace_serve.admission.codings import pack
from headrace_serve.errors import (
    DisconnectedError,
    Refusal,
    UnavailableError,
    refusal,
)
from headrace_serve.http.bodies import ELEMENT_BYTES, Incoming
from headrace_serve.http.replies import Reply, head_of
from headrace_serve.monitoring.access_log import logger as access_log
from headrace_serve.monitoring.access_log import request_id_of
from headrace_serve.monitoring.observe_probes import server_timing, times_for
from headrace_serve.threads import call_by_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from headrace_serve.http.plans import Head, Plan
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service

__all__ = ["Exchange", "Wire"]

T = TypeVar("T")

logger = logging.getLogger("headrace.serve")

_WORTH_BYTES = 1024
_LARGE_BYTES = 64 << 10
"""Smaller answers are sent whatever waits for clients already."""
_REQUEST_ID = b"x-request-id"
_TIMING = b"x-timing"


class Exchange(Incoming):
    """A request of HTTP that is being answered: all that is known of it, from its head to the last byte of its answer.

    What carries it is a subclass: `headrace_serve.http.cycle.Cycle` on a connection of ours, `Wire` in another server's
    application.

    Attributes:
        header_id: What the client has sent as ``X-Request-Id``, which the answer repeats. ``""`` without it.
        parameters: Those of the request, where it is one of the pipeline.
        task: What answers it. None before the first wait.
        has_ended: Whether the client has ended its side of the connection. It may still wait for the answer.
        on_ended: Called then.
        is_in_parts: Whether the answer comes in parts, which the account of memory counts by themselves.
        is_watched: Whether what answers is cancelled when the client goes away.
        refusal: Status, code and bytes of an answer that the connection has given itself. None for none.
    """

    header_id = ""
    began_s = 0.0
    began_ns = 0
    task: Any = None
    parameters: Mapping[str, Any] = MappingProxyType({})
    refusal: tuple[str, str, int] | None = None
    on_ended: Callable[[], object] | None = None
    has_ended = is_in_parts = is_watched = False

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

    def note_answered(self, inferences: int) -> None:
        """Count the request as one that the model has answered, with so many rows."""
        self.model.counts.note(time.perf_counter_ns() - self.began_ns, inferences, 1)

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
        head = head_of(reply.status, reply.content_type, reply.compressible, *headers)
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
                    await call_by_size(length // ELEMENT_BYTES, pack, b"".join(parts), encoding)
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
        self.let_go()

    # What carries it.

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
