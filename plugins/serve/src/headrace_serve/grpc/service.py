"""The protocol over gRPC; it runs in the event loop that also serves REST."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import grpc

from headrace_serve.aside import apart
from headrace_serve.errors import (
    BodyTooLargeError,
    UnauthenticatedError,
    UnavailableError,
    UnsupportedError,
)
from headrace_serve.grpc.calls import Calls, share_key_of, traceparent_of
from headrace_serve.grpc.described import describing_methods
from headrace_serve.grpc.extensions import extension_methods
from headrace_serve.grpc.health import health_methods
from headrace_serve.grpc.reflection import reflection
from headrace_serve.grpc.streams import InferStream
from headrace_serve.grpc.tensors import (
    Received,
    read_message,
    read_request,
    write_response,
)
from headrace_serve.inference.tensors import elements_in, place_outputs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from headrace_serve.access_log import AccessLine
    from headrace_serve.inference.messages import Asked
    from headrace_serve.models.model import Model
    from headrace_serve.service import Service
    from headrace_serve.shared_memory import Access

__all__ = ["add_services"]

_INFERENCE: Final = "inference.GRPCInferenceService"
_UNSUPPORTED: Final = (
    "CudaSharedMemoryRegister",
    "TraceSetting", "LogSettings",
)  # fmt: skip


def add_services(server: Any, service: Service) -> None:
    """Add the services of the protocol, of health and of reflection to a ``grpc.aio`` server."""
    calls = Calls(service)
    front = Front(service, calls)
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


class Front:
    """Answers the calls of inference."""

    def __init__(self, service: Service, calls: Calls) -> None:
        self._service = service
        self._calls = calls

    async def infer(self, received: Received, context: Any, line: AccessLine) -> bytes:
        """Answer ModelInfer."""
        return await self.infer_with(self.find(received, context), received, context, line)

    def find(self, received: Received, context: Any) -> Model:
        """Return the model that a request names."""
        name, version = received.model_name, received.message.model_version
        return self._service.find(name, version, lambda: share_key_of(context))

    async def infer_with(
        self, model: Model, received: Received, context: Any, line: AccessLine
    ) -> bytes:
        """Answer one request with a model."""
        with self.admitted(model, received, context, line) as (asked, access):
            answer = await self._service.infer(model, asked, line)
            if asked.places:
                await place_outputs(answer, asked.places, access)
            return await apart(elements_in(answer.outputs), write_response, answer)

    @contextlib.contextmanager
    def admitted(
        self, model: Model, received: Received, context: Any, line: AccessLine
    ) -> Iterator[tuple[Asked, Access]]:
        """Read a request, which has its place in the model's queue and its bytes until the block ends."""
        timeout_s, traceparent = context.time_remaining(), traceparent_of(context)
        service = self._service
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
            yield asked, access
        finally:
            service.release(held)
            model.inside -= admitted

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Answer ModelStreamInfer; see `headrace_serve.grpc.streams`."""
        try:
            self._calls.authenticate(context, "infer")
        except UnauthenticatedError as error:
            await self._calls.refuse("ModelStreamInfer", context, error)
        stream = InferStream(self, self._calls, self._service, context)
        async with contextlib.aclosing(stream.answers(requests)) as answers:
            async for answer in answers:
                yield answer
        if self._service.draining:
            why = UnavailableError("the server is shutting down")
            await self._calls.refuse("ModelStreamInfer", context, why)
