"""One gRPC call: receives its message in time, checks its key, turns errors into statuses, counts and logs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from headrace.errors import InputError
from headrace_formats import joined_headers
from headrace_serve.errors import (
    BodyTooLargeError,
    NotReceivedError,
    UnavailableError,
    UnknownModelError,
    refusal,
)
from headrace_serve.grpc.messages import message
from headrace_serve.monitoring.access_log import AccessLine, request_id_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from headrace_serve.admission.keys import Right
    from headrace_serve.errors import Refusal
    from headrace_serve.service import Service

__all__ = ["Calls", "headers_of"]

logger = logging.getLogger("headrace.serve")

_REQUEST_ID = "x-request-id"
_LONGEST_TEXT_BYTES = 1500
"""The most bytes of an error's text in the metadata of an answer, because clients limit its size."""


class _Receiving:
    """Cancels the tasks of calls whose messages do not arrive in time.

    All calls have the same time limit, so the one that began first is due first. One timer watches that one alone,
    because a timer for each call would cost the event loop one more turn.

    Args:
        seconds: The time.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due: dict[asyncio.Task[Any], float] = {}
        self._late: set[asyncio.Task[Any]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[Any]) -> None:
        """Start the time of a task; `end` stops it."""
        loop = task.get_loop()
        self._due[task] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look, loop)

    def is_late(self, task: asyncio.Task[Any]) -> bool:
        """Return whether the task was cancelled here."""
        return task in self._late

    def end(self, task: asyncio.Task[Any]) -> None:
        """Stop the time of a task."""
        self._due.pop(task, None)
        self._late.discard(task)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for task, due in list(self._due.items()):
            left = due - loop.time()
            if left > 0.001:
                self._timer = loop.call_later(left, self._look, loop)
                return
            del self._due[task]
            self._late.add(task)
            task.cancel()


class Calls:
    """Makes handlers of calls for a service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._receiving = _Receiving(service.limits.receive_timeout_s)

    def unary(
        self,
        name: str,
        read: Callable[[bytes], Any],
        answer: Callable[[Any, Any, AccessLine], Awaitable[bytes]],
        right: Right | None = "describe",
        *,
        first: Callable[[], None] | None = None,
    ) -> Any:
        """Give the handler of a call with one request and one response.

        The handler is registered with grpcio as one for a stream of requests, but reads only the first. So the
        arrival of the request has a deadline, and a request that cannot be parsed is answered with INVALID_ARGUMENT.

        Args:
            name: The name of the call.
            read: Parses the bytes of the request.
            answer: Gives the bytes of the response, for the request, the context of the call and its line
                of the access log.
            right: The right that the key must have. None: no key is needed.
            first: Called before the message is read. An error that it raises becomes the answer.
        """

        async def respond(requests: AsyncIterator[bytes], context: Any) -> bytes | None:
            line = self.line(name, context)
            request: Any = None
            try:
                self.authenticate(context, right)
                if first is not None:
                    first()
                data = await self._received(context)
                line.received(len(data))
                self.check_size(data)
                request = parsed(read, data)
                line.key = self.check_key(context, right, request)
                answered = await answer(request, context, line)
            except asyncio.CancelledError:
                if not self._service.draining or context.cancelled():
                    line.status = "CANCELLED"
                    self.end(line, request)
                    raise
                text = "the request was cut off: the server has shut down"
                error: Exception = UnavailableError(text)
            except Exception as raised:  # noqa: BLE001 - every error is an answer
                error = raised
            else:
                line.answered("OK")
                line.sent_bytes = len(answered)
                self.end(line, request)
                self._keep(len(answered))
                return answered
            await self.abort(context, error, request, line)
            return None

        return grpc.stream_unary_rpc_method_handler(respond)

    def line(self, name: str, context: Any) -> AccessLine:
        """Return the line of the access log for a call; an id in the metadata goes back behind the answer."""
        line = AccessLine(name, self._service.counters.begin("grpc"))
        line.peer = context.peer
        if identifier := request_id_of(headers_of(context).get(_REQUEST_ID, "")):
            line.request_id = identifier
            context.set_trailing_metadata(((_REQUEST_ID, identifier),))
        return line

    def _keep(self, size: int) -> None:
        """Count the bytes of an answer until the client has taken them or gone away: then the task of the call ends.

        A callback of the context would do the same, and leave a cycle of references, from the context to itself.
        """
        service, task = self._service, asyncio.current_task()

        def taken(_: Any) -> None:
            service.note_unsent(-size)

        service.note_unsent(size)
        task.add_done_callback(taken)  # type: ignore[union-attr]

    async def _received(self, context: Any) -> bytes:
        """Return the one message of a call.

        The message is read from the context, not from the iterator of requests. That is an asynchronous generator,
        and asyncio would start a task to close it, because it is left before its end.

        Raises:
            NotReceivedError: The message has not arrived in time.
            InputError: The call has no message.
        """
        task: Any = asyncio.current_task()
        self._receiving.begin(task)
        try:
            data = await context.read()
        except asyncio.CancelledError:
            if not self._receiving.is_late(task):
                raise
            if hasattr(task, "uncancel"):  # from Python 3.11 on a task counts its cancellations
                task.uncancel()
            seconds = self._service.limits.receive_timeout_s
            raise NotReceivedError(f"the request was not received within {seconds:g} s") from None
        finally:
            self._receiving.end(task)
        if data is grpc.aio.EOF:
            raise InputError("the call has no message")
        received: bytes = data
        return received

    def check_size(self, data: bytes) -> None:
        """Check the size of a message before it is parsed.

        Raises:
            BodyTooLargeError: The message has too many bytes.
        """
        most = self._service.limits.max_body_bytes
        if len(data) > most:
            raise BodyTooLargeError(f"the message has {len(data)} bytes, the limit is {most}")

    def authenticate(self, context: Any, right: Right | None) -> None:
        """Ask the gate, and check that a call has a key, before any message of it is read.

        Raises:
            NotAllowedError: The gate refuses the call.
            UnauthenticatedError: The call has no key, or an unknown one.
        """
        keys = self._service.keys
        self._service.gate.check_call(headers_of(context).get("host", ""), keyed=keys is not None)
        if keys is not None and right is not None:
            keys.find(headers_of(context))

    def check_key(self, context: Any, right: Right | None, request: Any) -> str:
        """Check that the key of a call has the right, and covers the model; give the key's name, ``""`` without keys.

        Raises:
            UnauthenticatedError: The call has no key, or an unknown one.
            NotAllowedError: The key lacks the right, or does not cover the model.
        """
        keys = self._service.keys
        if keys is None or right is None:
            return ""
        return keys.check(headers_of(context), right, _model_of(request) or None)

    async def abort(self, context: Any, error: Exception, request: Any, line: AccessLine) -> None:
        """End a call with the status of an error; code and node are in the trailing metadata."""
        refused = self.refusal_of(error, line)
        self.end(line, request)
        status = getattr(grpc.StatusCode, refused.grpc)
        text = _cut(refused.text)
        trailing: list[tuple[str, str | bytes]] = [("code", refused.code)]
        if identifier := request_id_of(line.request_id):  # gRPC drops the error with another one
            trailing.append((_REQUEST_ID, identifier))
        if refused.node is not None:
            trailing.append(("node", refused.node))
        if refused.retry:
            model = None
            with contextlib.suppress(UnknownModelError, UnavailableError):
                model = self._service.models.find(_model_of(request))
            seconds = self._service.retry_after_s(model, error)
            details = _retry_details(status.value[0], text, seconds)
            trailing.append(("grpc-status-details-bin", details))
        await context.abort(status, text, trailing_metadata=tuple(trailing))

    async def refuse(self, name: str, context: Any, error: Exception) -> None:
        """End a streaming call with the status of an error that belongs to none of its requests."""
        await self.abort(context, error, None, self.line(name, context))

    def refusal_of(self, error: Exception, line: AccessLine) -> Refusal:
        """Return the answer for an error, and note its status and code in the line of the access log."""
        refused = refusal(error, debug=self._service.debug_errors)
        if refused.code == "backend" and refused.node is None:
            logger.error("a call failed in the server", exc_info=error)
        line.answered(refused.grpc)
        line.code = refused.code
        return refused

    def end(self, line: AccessLine, request: Any) -> None:
        """Count a call and log it."""
        name = _model_of(request)
        line.model_name = name if self._service.models.has(name) else ""
        self._service.counters.end("grpc", line)
        line.log(getattr(request, "id", ""))


def _cut(text: str) -> str:
    """Cut a text so that it fits into the metadata of an answer. Clients accept 8 KiB of metadata.

    The metadata hold the text at most twice: percent-encoded, with up to three characters per byte, and in base64.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= _LONGEST_TEXT_BYTES:
        return text
    return raw[:_LONGEST_TEXT_BYTES].decode("utf-8", "ignore") + " ..."


def parsed(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Parse the bytes of a message with ``read``.

    Raises:
        InputError: The bytes are not such a message.
    """
    try:
        return read(data)
    except DecodeError as error:
        raise InputError(f"the message cannot be read: {error}") from None


def headers_of(context: Any) -> dict[str, str]:
    """Return the metadata of a call that are text: several of one name are one list, as in HTTP."""
    metadata = context.invocation_metadata() or ()
    return joined_headers((key, value) for key, value in metadata if isinstance(value, str))


def _model_of(request: Any) -> str:
    """Return the name of the model that a request is for, ``""`` if it names none."""
    # The requests of inference, of description and of health.
    for source in ("model_name", "name", "service"):
        name: str = getattr(request, source, "")
        if name:
            return name
    return ""


def _retry_details(code: int, text: str, seconds: int) -> bytes:
    """Return ``google.rpc.Status`` with a ``RetryInfo``."""
    info = message("google.rpc.RetryInfo")(retry_delay={"seconds": seconds})
    detail = {
        "type_url": "type.googleapis.com/google.rpc.RetryInfo",
        "value": info.SerializeToString(),
    }
    status = message("google.rpc.Status")(code=code, message=text, details=[detail])
    raw: bytes = status.SerializeToString()
    return raw
