"""The health of server and models by ``grpc.health.v1``: asked for once, or watched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace_serve.errors import UnknownModelError
from headrace_serve.grpc.calls import parsed
from headrace_serve.grpc.context import Method
from headrace_serve.grpc.messages import message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace_serve.grpc.calls import Calls
    from headrace_serve.grpc.context import Context
    from headrace_serve.monitoring.access_log import AccessLine
    from headrace_serve.service import Service

__all__ = ["health_methods"]

_SERVER: Final = ("", "inference.GRPCInferenceService")
_REQUEST: Final = message("grpc.health.v1.HealthCheckRequest")
_RESPONSE: Final = message("grpc.health.v1.HealthCheckResponse")


def health_methods(service: Service, calls: Calls) -> dict[str, Method]:
    """Return the methods: of the server for ``""`` and the protocol's name, else of the model of that name."""

    async def check(request: Any, context: Context, line: AccessLine) -> bytes:
        status = _status_of(service, request.service)
        if status == "SERVICE_UNKNOWN":
            # The error does not list the served models, because this call needs no key and would reveal them to
            # everybody.
            raise UnknownModelError(request.service)
        return _encoded(status)

    async def watch(context: Context) -> AsyncIterator[bytes]:
        data: bytes | None = None
        try:
            calls.authenticate(context, None)
            data = await context.read()
            request = parsed(_REQUEST.FromString, data)
        except HeadraceError as error:
            raise calls.refused("HealthWatch", context, error) from None
        finally:
            calls.release(data)
        sent = None
        while not service.draining:
            now = _status_of(service, request.service)
            if now != sent:
                sent = now
                yield _encoded(now)
            await service.changes.wait()
        if sent != "NOT_SERVING":
            yield _encoded("NOT_SERVING")

    return {
        "Check": calls.unary("HealthCheck", _REQUEST.FromString, check, None),
        "Watch": Method(watch, streams=True),
    }


def _status_of(service: Service, name: str) -> str:
    if name in _SERVER:
        return "SERVING" if service.ready else "NOT_SERVING"
    try:
        return "SERVING" if service.takes_requests(name) else "NOT_SERVING"
    except UnknownModelError:
        return "SERVICE_UNKNOWN"


def _encoded(status: str) -> bytes:
    response: bytes = _RESPONSE(status=status).SerializeToString()
    return response
