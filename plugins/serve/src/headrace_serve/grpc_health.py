"""The health of server and models, as ``grpc.health.v1`` tells it: asked for once, or watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc

from headrace_serve.errors import UnknownModelError
from headrace_serve.grpc_messages import message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace_serve.service import Service

__all__ = ["health_methods"]

_SERVER: Final = ("", "inference.GRPCInferenceService")
_REQUEST: Final = message("grpc.health.v1.HealthCheckRequest")
_RESPONSE: Final = message("grpc.health.v1.HealthCheckResponse")


def health_methods(service: Service) -> dict[str, Any]:
    """Give the handlers: of the server for ``""`` and the protocol's name, else of the model of that name."""

    def status_of(name: str) -> str:
        if name in _SERVER:
            return "SERVING" if service.ready else "NOT_SERVING"
        try:
            model = service.models.find(name)
        except UnknownModelError:
            return "SERVICE_UNKNOWN"
        return "SERVING" if service.is_ready(model) else "NOT_SERVING"

    async def check(request: Any, context: Any) -> Any:
        status = status_of(request.service)
        if status == "SERVICE_UNKNOWN":
            text = f"there is no model {request.service!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return _RESPONSE(status=status)

    async def watch(request: Any, context: Any) -> AsyncIterator[Any]:
        told = None
        while not service.draining:
            now = status_of(request.service)
            if now != told:
                told = now
                yield _RESPONSE(status=now)
            await service.changes.wait()
        if told != "NOT_SERVING":
            yield _RESPONSE(status="NOT_SERVING")

    codec = (_REQUEST.FromString, _RESPONSE.SerializeToString)
    return {
        "Check": grpc.unary_unary_rpc_method_handler(check, *codec),
        "Watch": grpc.unary_stream_rpc_method_handler(watch, *codec),
    }
