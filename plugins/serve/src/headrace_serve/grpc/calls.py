"""One gRPC call: checks its key, turns errors into statuses, counts and logs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from headrace.errors import InputError
from headrace_serve.errors import (
    UnavailableError,
    UnknownModelError,
    refusal,
)
from headrace_serve.grpc.context import STATUSES, CallError, Method
from headrace_serve.grpc.messages import message
from headrace_serve.grpc.pricing import SMALL_BYTES, price_of
from headrace_serve.monitoring.access_log import AccessLine, request_id_of
from headrace_serve.threads import MANY, call_by_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace_serve.admission.keys import Right
    from headrace_serve.errors import Refusal
    from headrace_serve.grpc.context import Context
    from headrace_serve.service import Service

__all__ = ["Calls", "parsed"]

logger = logging.getLogger("headrace.serve")

_REQUEST_ID = "x-request-id"
_LONGEST_TEXT_BYTES = 1500
"""The most bytes of an error's text in the metadata of an answer, because clients limit its size."""


class Calls:
    """Makes methods for a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def unary(
        self,
        name: str,
        read: Callable[[bytes], Any],
        answer: Callable[[Any, Context, AccessLine], Awaitable[bytes]],
        right: Right | None = "describe",
        *,
        first: Callable[[], None] | None = None,
    ) -> Method:
        """Give the method of a call with one request and one response.

        Args:
            name: The name of the call.
            read: Parses the bytes of the request.
            answer: Gives the bytes of the response, for the request, the context of the call and its line
                of the access log.
            right: The right that the key must have. None: no key is needed.
            first: Called before the message is read. An error that it raises becomes the answer.
        """

        async def respond(context: Context) -> bytes:
            line = self.line(name, context)
            request: Any = None
            data: bytes | None = None
            price = 0
            try:
                self.authenticate(context, right)
                if first is not None:
                    first()
                data = await context.read()
                line.received(len(data or b""))
                price = 0 if data is None else await self.price(data)
                request = parsed(read, data)
                line.key = self.check_key(context, right, request)
                answered = await answer(request, context, line)
            except asyncio.CancelledError:
                if not self._service.draining or context.is_cancelled:
                    line.status = "CANCELLED"
                    self.end(line, request)
                    raise
                text = "the request was cut off: the server has shut down"
                raise self.failed(UnavailableError(text), request, line) from None
            except Exception as error:  # noqa: BLE001 - every error is an answer
                raise self.failed(error, request, line) from None
            finally:
                self.release(data, price)
            line.answered("OK")
            line.sent_bytes = len(answered)
            self.end(line, request)
            return answered

        return Method(respond)

    def line(self, name: str, context: Context) -> AccessLine:
        """Return the line of the access log for a call; an id in the metadata goes back behind the answer."""
        line = AccessLine(name, self._service.counters.begin("grpc"))
        line.peer = context.peer
        if identifier := request_id_of(context.headers.get(_REQUEST_ID, "")):
            line.request_id = identifier
            context.trailing = ((_REQUEST_ID, identifier),)
        return line

    async def price(self, data: bytes) -> int:
        """Count the bytes that a message becomes, beside its own, before it is parsed. `release` gives them back.

        Raises:
            BodyTooLargeError: It becomes more than a body of JSON may.
            InputError: It has too many fields.
            OverloadedError: There is no room for it.
        """
        if len(data) <= SMALL_BYTES:
            return 0
        most = self._service.limits.max_json_bytes
        price = price_of(data, most, MANY)
        if price is None:
            price = await call_by_size(MANY + 1, price_of, data, most, None) or 0
        return self._service.hold(0, price)

    def release(self, data: bytes | None, price: int = 0) -> None:
        """Give back the bytes of a message that was read, and those that it became."""
        self._service.release(len(data or b"") + price)

    def authenticate(self, context: Context, right: Right | None) -> None:
        """Ask the gate, and check that a call has a key, before any message of it is read.

        Raises:
            NotAllowedError: The gate refuses the call.
            UnauthenticatedError: The call has no key, or an unknown one.
        """
        keys = self._service.keys
        self._service.gate.check_call(context.headers.get("host", ""), keyed=keys is not None)
        if keys is not None and right is not None:
            keys.find(context.headers)

    def check_key(self, context: Context, right: Right | None, request: Any) -> str:
        """Check that the key of a call has the right, and covers the model; give the key's name, ``""`` without keys.

        Raises:
            UnauthenticatedError: The call has no key, or an unknown one.
            NotAllowedError: The key lacks the right, or does not cover the model.
        """
        keys = self._service.keys
        if keys is None or right is None:
            return ""
        return keys.check(context.headers, right, _model_of(request) or None)

    def failed(self, error: Exception, request: Any, line: AccessLine) -> CallError:
        """Count and log a call that ends with an error; code and node are in its trailing metadata."""
        refused = self.refusal_of(error, line)
        self.end(line, request)
        text = _cut(refused.text)
        trailing: list[tuple[str, str | bytes]] = [("code", refused.code)]
        if identifier := request_id_of(line.request_id):  # clients drop the error with another one
            trailing.append((_REQUEST_ID, identifier))
        if refused.node is not None:
            trailing.append(("node", refused.node))
        if refused.retry:
            model = None
            with contextlib.suppress(UnknownModelError, UnavailableError):
                model = self._service.models.find(_model_of(request))
            seconds = self._service.retry_after_s(model, error)
            details = _retry_details(STATUSES.index(refused.grpc), text, seconds)
            trailing.append(("grpc-status-details-bin", details))
        return CallError(refused.grpc, text, trailing)

    def refused(self, name: str, context: Context, error: Exception) -> CallError:
        """Count and log a streaming call that ends with an error that belongs to none of its requests."""
        return self.failed(error, None, self.line(name, context))

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


def parsed(read: Callable[[bytes], Any], data: bytes | None) -> Any:
    """Parse the bytes of a message with ``read``.

    Raises:
        InputError: The bytes are not such a message, or None: there is no message.
    """
    if data is None:
        raise InputError("the call has no message")
    try:
        return read(data)
    except DecodeError as error:
        raise InputError(f"the message cannot be read: {error}") from None


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
