"""The protocol over gRPC, in the event loop that serves REST."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.json_format import ParseDict

from headrace.errors import ClosedError, InputError
from headrace_serve import described
from headrace_serve.access_log import AccessLine
from headrace_serve.access_log import logger as access_logger
from headrace_serve.errors import NotAllowedError, UnsupportedError, refusal
from headrace_serve.grpc_messages import message
from headrace_serve.grpc_reflection import reflection
from headrace_serve.grpc_tensors import (
    RESPONSE,
    Received,
    as_streamed,
    read_message,
    read_request,
    write_response,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from headrace_serve.keys import Right
    from headrace_serve.service import Service

__all__ = ["add_services"]

logger = logging.getLogger("headrace.serve")

_INFERENCE: Final = "inference.GRPCInferenceService"
_STREAMED: Final = 64
"""Requests of one stream that run at a time."""

_OPEN: Final = ("ServerLive", "ServerReady", "ModelReady")
"""Calls that need no key: orchestrators ask them."""

_UNSUPPORTED: Final = (
    "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
    "TraceSetting", "LogSettings",
)  # fmt: skip


def add_services(server: Any, service: Service) -> None:
    """Give a ``grpc.aio`` server the services of protocol, health and reflection."""
    front = _Front(service)
    methods: dict[str, Any] = {
        name: _unary(name, service, front, answer) for name, answer in _ANSWERS.items()
    }
    methods["ModelInfer"] = grpc.unary_unary_rpc_method_handler(
        front.guarded("ModelInfer", front.infer, "infer"), read_message
    )
    methods["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(front.stream, read_message)
    for name in _UNSUPPORTED:
        methods[name] = grpc.unary_unary_rpc_method_handler(front.guarded(name, _unsupported(name)))
    for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
        methods[name] = grpc.unary_unary_rpc_method_handler(front.guarded(name, _not_allowed))
    health = message("grpc.health.v1.HealthCheckRequest")
    status = message("grpc.health.v1.HealthCheckResponse")
    checks = {
        "Check": grpc.unary_unary_rpc_method_handler(
            front.check, health.FromString, status.SerializeToString
        )
    }
    handlers = [
        grpc.method_handlers_generic_handler(_INFERENCE, methods),
        grpc.method_handlers_generic_handler("grpc.health.v1.Health", checks),
    ]
    for version in ("v1", "v1alpha"):
        package = f"grpc.reflection.{version}"
        asked = message(f"{package}.ServerReflectionRequest")
        answered = message(f"{package}.ServerReflectionResponse")
        info = grpc.stream_stream_rpc_method_handler(
            reflection(answered), asked.FromString, answered.SerializeToString
        )
        handlers.append(
            grpc.method_handlers_generic_handler(
                f"{package}.ServerReflection", {"ServerReflectionInfo": info}
            )
        )
    server.add_generic_rpc_handlers(tuple(handlers))


def _unary(name: str, service: Service, front: _Front, answer: Any) -> Any:
    asked, answered = message(f"inference.{name}Request"), message(f"inference.{name}Response")

    async def respond(request: Any, context: Any) -> Any:
        return ParseDict(answer(service, request), answered())

    return grpc.unary_unary_rpc_method_handler(
        front.guarded(name, respond, None if name in _OPEN else "describe"),
        asked.FromString,
        answered.SerializeToString,
    )


def _unsupported(name: str) -> Any:
    async def refuse(request: bytes, context: Any) -> bytes:
        raise UnsupportedError(f"{name} is not supported by this server")

    return refuse


async def _not_allowed(request: bytes, context: Any) -> bytes:
    raise NotAllowedError("models are loaded when the server starts, not by requests")


class _Front:
    """Answers the calls of gRPC for a service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def guarded(
        self,
        name: str,
        answer: Callable[[Any, Any], Awaitable[Any]],
        right: Right | None = "describe",
    ) -> Any:
        """Give a handler that checks the key, turns every error into a status, and logs."""

        async def respond(request: Any, context: Any) -> Any:
            line = AccessLine(name)
            try:
                self._check_key(context, right, request)
                answered = await answer(request, context)
            except asyncio.CancelledError:
                if not self._service.draining or context.cancelled():
                    line.status = "CANCELLED"
                    _log(line, request)
                    raise
                error: Exception = ClosedError("the server is shutting down")
            except Exception as raised:  # noqa: BLE001 - every error is an answer
                error = raised
            else:
                line.status = "OK"
                _log(line, request)
                return answered
            await self._abort(context, error, request, line)
            raise error

        return respond

    def _check_key(self, context: Any, right: Right | None, request: Any) -> None:
        keys = self._service.keys
        if keys is None or right is None:
            return
        headers = {k: v for k, v in context.invocation_metadata() or () if isinstance(v, str)}
        keys.check(headers, right, _model_of(request) or None)

    async def _abort(self, context: Any, error: Exception, request: Any, line: AccessLine) -> None:
        service = self._service
        name = _model_of(request)
        told = refusal(error, debug=service.debug_errors)
        if told.code == "backend" and told.node is None:
            logger.error("a call failed in the server", exc_info=error)
        status = getattr(grpc.StatusCode, told.grpc)
        line.status, line.code = told.grpc, told.code
        _log(line, request)
        trailing: list[tuple[str, str | bytes]] = [("code", told.code)]
        if told.node is not None:
            trailing.append(("node", told.node))
        if told.retry:
            model = None
            with contextlib.suppress(Exception):
                model = service.models.find(name)
            details = _retry_details(status.value[0], told.text, service.retry_after_s(model))
            trailing.append(("grpc-status-details-bin", details))
        await context.abort(status, told.text, trailing_metadata=tuple(trailing))

    async def infer(self, request: Any, context: Any) -> Any:
        """Answer ModelInfer."""
        return await self._infer(request, context.time_remaining(), _traceparent(context))

    async def _infer(self, received: Received, timeout_s: float | None, traceparent: str) -> bytes:
        service = self._service
        model = service.find(received.model_name, received.message.model_version)
        held = service.hold(0, received.size)
        try:
            asked = read_request(received, timeout_s)
            if traceparent:
                asked.parameters.setdefault("traceparent", traceparent)
            return write_response(await service.infer(model, asked))
        finally:
            service.release(held)

    async def stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer ModelStreamInfer: each request once, in their order; several run at a time."""
        made = message("inference.ModelStreamInferResponse")
        traceparent = _traceparent(context)
        running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(_STREAMED)
        tasks: set[asyncio.Task[Any]] = set()

        async def one(request: Any) -> Any:
            line = AccessLine("ModelStreamInfer")
            try:
                self._check_key(context, "infer", request)
                answer = await self._infer(request, context.time_remaining(), traceparent)
                line.status = "OK"
                return as_streamed(answer)
            except Exception as error:  # noqa: BLE001 - every error is an answer
                told = refusal(error, debug=self._service.debug_errors)
                line.status, line.code = told.grpc, told.code
                failed = RESPONSE(model_name=request.model_name, id=request.id)
                return made(error_message=told.text, infer_response=failed).SerializeToString()
            finally:
                _log(line, request)

        async def read() -> None:
            async for request in requests:
                task = asyncio.create_task(one(request))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                await running.put(task)
            await running.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await running.get()) is not None:
                yield await task
        finally:
            for left in (reader, *tasks):
                left.cancel()

    async def check(self, request: Any, context: Any) -> Any:
        """Answer a check of health: of all for ``""`` and the protocol's name, else of a model."""
        made = message("grpc.health.v1.HealthCheckResponse")
        service = self._service
        if request.service in ("", _INFERENCE):
            return made(status="SERVING" if service.ready else "NOT_SERVING")
        try:
            model = service.models.find(request.service)
        except Exception as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise
        ready = model.pipe.ready and not service.draining
        return made(status="SERVING" if ready else "NOT_SERVING")


def _model_of(request: Any) -> str:
    """Give the name of the model that a request is for, ``""`` without one."""
    name: str = getattr(request, "model_name", "") or getattr(request, "name", "")
    return name


def _size_of(request: Any) -> int:
    if isinstance(request, Received):
        return request.size
    size: int = request.ByteSize() if hasattr(request, "ByteSize") else len(request)
    return size


def _log(line: AccessLine, request: Any) -> None:
    line.mark("pipeline")
    if access_logger.isEnabledFor(logging.INFO):
        line.model = _model_of(request)
        line.identifier = getattr(request, "id", "")
        line.received_bytes = _size_of(request)
        line.write()


def _live(service: Service, request: Any) -> dict[str, Any]:
    return {"live": True}


def _ready(service: Service, request: Any) -> dict[str, Any]:
    return {"ready": service.ready}


def _model_ready(service: Service, request: Any) -> dict[str, Any]:
    model = service.models.find(request.name, request.version)
    return {"ready": model.pipe.ready and not service.draining}


def _server(service: Service, request: Any) -> dict[str, Any]:
    return described.server_metadata()


def _metadata(service: Service, request: Any) -> dict[str, Any]:
    model = service.models.find(request.name, request.version)
    return described.model_metadata(service.models, model)


def _config(service: Service, request: Any) -> dict[str, Any]:
    return {"config": described.config(service.models.find(request.name, request.version))}


def _statistics(service: Service, request: Any) -> dict[str, Any]:
    if not request.name:
        return described.statistics(service.models)
    return described.statistics([service.models.find(request.name, request.version)])


def _index(service: Service, request: Any) -> dict[str, Any]:
    if request.repository_name:
        raise InputError("there is one repository, which has no name")
    return {"models": described.index(service.models, only_ready=request.ready)}


_ANSWERS: Final = {
    "ServerLive": _live,
    "ServerReady": _ready,
    "ModelReady": _model_ready,
    "ServerMetadata": _server,
    "ModelMetadata": _metadata,
    "ModelConfig": _config,
    "ModelStatistics": _statistics,
    "RepositoryIndex": _index,
}
"""What answers each call about server and models: as a dict, like that of REST."""


def _traceparent(context: Any) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "traceparent":
            return str(value)
    return ""


def _retry_details(code: int, text: str, seconds: int) -> bytes:
    """Give ``google.rpc.Status`` with a ``RetryInfo``."""
    info = message("google.rpc.RetryInfo")(retry_delay={"seconds": seconds})
    detail = {
        "type_url": "type.googleapis.com/google.rpc.RetryInfo",
        "value": info.SerializeToString(),
    }
    made = message("google.rpc.Status")(code=code, message=text, details=[detail])
    raw: bytes = made.SerializeToString()
    return raw
