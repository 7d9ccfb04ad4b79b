"""The protocol over gRPC; it runs in the event loop that also serves REST."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import grpc

from headrace_serve.access_log import AccessLine
from headrace_serve.aside import apart
from headrace_serve.errors import (
    BodyTooLargeError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from headrace_serve.grpc.calls import Calls, parsed, share_key_of, traceparent_of
from headrace_serve.grpc.described import describing_methods
from headrace_serve.grpc.extensions import extension_methods
from headrace_serve.grpc.health import health_methods
from headrace_serve.grpc.messages import message
from headrace_serve.grpc.reflection import reflection
from headrace_serve.grpc.tensors import (
    RESPONSE,
    Received,
    as_streamed,
    read_message,
    read_request,
    write_response,
)
from headrace_serve.inference.tensors import elements_in, place_outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace_serve.service import Service

__all__ = ["add_services"]

_INFERENCE: Final = "inference.GRPCInferenceService"
_STREAMED: Final = 64
"""The most requests of one stream that run at a time."""

_STREAMED_ANSWER: Final = message("inference.ModelStreamInferResponse")

_UNSUPPORTED: Final = (
    "CudaSharedMemoryRegister",
    "TraceSetting", "LogSettings",
)  # fmt: skip


def add_services(server: Any, service: Service) -> None:
    """Add the services of the protocol, of health and of reflection to a ``grpc.aio`` server."""
    calls = Calls(service)
    front = _Front(service, calls)
    methods = describing_methods(service, calls)
    methods["ModelInfer"] = calls.unary(
        "ModelInfer", read_message, front.infer, "infer", first=service.check_room
    )
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(front.stream)
    for name in _UNSUPPORTED:
        methods[name] = calls.unary(name, bytes, _unsupported(name))
    methods.update(extension_methods(service, calls))
    handlers = [
        grpc.method_handlers_generic_handler(_INFERENCE, methods),
        grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health", health_methods(service, calls)
        ),
    ]
    for version in ("v1", "v1alpha"):
        package = f"grpc.reflection.{version}"
        info = grpc.stream_stream_rpc_method_handler(reflection(package, calls))
        handlers.append(
            grpc.method_handlers_generic_handler(
                f"{package}.ServerReflection", {"ServerReflectionInfo": info}
            )
        )
    server.add_generic_rpc_handlers(tuple(handlers))


def _unsupported(name: str) -> Any:
    async def refuse(request: bytes, context: Any, line: Any) -> bytes:
        raise UnsupportedError(f"{name} is not supported by this server")

    return refuse


class _Unsent:
    """Counts the bytes of a stream's answers until the client has taken them or gone away.

    Args:
        service: Has the sum of all streams and calls.
    """

    def __init__(self, service: Service) -> None:
        self._service: Service | None = service
        self._bytes = 0

    def keep(self, size: int) -> None:
        """Count an answer, unless the stream has ended."""
        if self._service is not None:
            self._service.unsent_bytes += size
            self._bytes += size

    def taken(self, size: int) -> None:
        """Note that an answer was sent."""
        self.keep(-size)

    def end(self) -> None:
        """Record that the stream has ended, even if answers are left."""
        self.keep(-self._bytes)
        self._service = None


class _Front:
    """Answers the calls of inference."""

    def __init__(self, service: Service, calls: Calls) -> None:
        self._service = service
        self._calls = calls

    async def infer(self, received: Received, context: Any, line: AccessLine) -> bytes:
        """Answer ModelInfer, or one request of a stream."""
        timeout_s, traceparent = context.time_remaining(), traceparent_of(context)
        service = self._service
        name, version = received.model_name, received.message.model_version
        model = service.find(name, version, lambda: share_key_of(context))
        limits = service.limits.narrowed(model.limits)
        most = limits.max_body_bytes
        if received.size > most:
            raise BodyTooLargeError(f"the message has {received.size} bytes, the limit is {most}")
        held = service.hold(0, received.size)
        admitted = False

        def hold(more: int) -> None:
            nonlocal held
            held = service.hold(held, more)

        try:
            service.admit(model)
            admitted = True
            access = service.access(hold)
            asked = read_request(received, timeout_s, access, model, limits.max_items)
            asked.request_id = line.request_id
            if traceparent:
                asked.parameters.setdefault("traceparent", traceparent)
            line.note_ids(asked.id, asked.parameters)
            answer = await service.infer(model, asked, line)
            if asked.places:
                await place_outputs(answer, asked.places, access)
            return await apart(elements_in(answer.outputs), write_response, answer)
        finally:
            service.release(held)
            model.inside -= admitted

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer ModelStreamInfer: one answer per request, in the requests' order; several run at a time."""
        try:
            self._calls.authenticate(context, "infer")
        except UnauthenticatedError as error:
            await self._calls.refuse("ModelStreamInfer", context, error)
        running: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue(_STREAMED)
        tasks: set[asyncio.Task[bytes]] = set()
        unsent = _Unsent(self._service)

        async def read() -> None:
            async for data in requests:
                task = asyncio.create_task(self._streamed(data, context, unsent))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await running.put(task)
            await running.put(None)

        async def end() -> None:
            await self._service.ending.wait()
            reader.cancel()
            await running.put(None)

        reader, ender = asyncio.create_task(read()), asyncio.create_task(end())
        try:
            while (task := await running.get()) is not None:
                answer = await task
                yield answer
                unsent.taken(len(answer))
        finally:
            unsent.end()
            for left in (reader, ender, *tasks):
                left.cancel()
        if self._service.draining:
            why = UnavailableError("the server is shutting down")
            await self._calls.refuse("ModelStreamInfer", context, why)

    async def _streamed(self, data: bytes, context: Any, unsent: _Unsent) -> bytes:
        """Answer one request of a stream; an error becomes an answer, and the stream goes on."""
        line = AccessLine("ModelStreamInfer", self._service.counters.begin("grpc"))
        line.peer = context.peer
        line.received(len(data))
        request: Any = None
        response = b""
        try:
            self._calls.check_size(data)
            request = parsed(read_message, data)
            line.key = self._calls.check_key(context, "infer", request)
            self._service.check_unsent()
            answer = await self.infer(request, context, line)
            line.answered("OK")
            response = as_streamed(answer)
        except Exception as error:  # noqa: BLE001 - every error is an answer
            refused = self._calls.refusal_of(error, line)
            name, identifier = ("", "") if request is None else (request.model_name, request.id)
            failed = RESPONSE(model_name=name, id=identifier)
            for key, value in (("code", refused.code), ("node", refused.node)):
                if value is not None:
                    failed.parameters[key].string_param = value
            made = _STREAMED_ANSWER(error_message=refused.text, infer_response=failed)
            response = made.SerializeToString()
        finally:
            line.status = line.status or "CANCELLED"
            line.sent_bytes = len(response)
            unsent.keep(len(response))
            self._calls.end(line, request)
        return response
