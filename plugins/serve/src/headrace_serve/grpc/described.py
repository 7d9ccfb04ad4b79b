"""The gRPC calls that describe server and models; they answer with the same dicts as REST."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.json_format import ParseDict

from headrace.errors import InputError
from headrace_serve.errors import NotBuiltError, UnknownModelError
from headrace_serve.grpc.messages import message
from headrace_serve.models import described

if TYPE_CHECKING:
    from headrace_serve.grpc.calls import Calls
    from headrace_serve.grpc.context import Context, Method
    from headrace_serve.service import Service

__all__ = ["describing_methods"]

_OPEN: Final = ("ServerLive", "ServerReady", "ModelReady")
"""Calls that need no key, because orchestrators ask for health, and have none."""


def describing_methods(service: Service, calls: Calls) -> dict[str, Method]:
    """Return the methods by the names of the calls."""
    return {name: _method(name, service, calls, answer) for name, answer in _ANSWERS.items()}


def _method(name: str, service: Service, calls: Calls, answer: Any) -> Method:
    asked, answered = message(f"inference.{name}Request"), message(f"inference.{name}Response")

    async def respond(request: Any, context: Context, line: Any) -> bytes:
        try:
            fields = answer(service, request)
        except NotBuiltError as error:
            left_s = context.left_s()
            until_s = None if left_s is None else time.monotonic() + left_s
            await service.updates.wait(error.name, error.version, until_s=until_s)
            fields = answer(service, request)
        parsed = ParseDict(fields, answered(), ignore_unknown_fields=True)
        response: bytes = parsed.SerializeToString()
        return response

    return calls.unary(name, asked.FromString, respond, None if name in _OPEN else "describe")


def _live(service: Service, request: Any) -> dict[str, Any]:
    return {"live": service.models.live}


def _ready(service: Service, request: Any) -> dict[str, Any]:
    return {"ready": service.ready}


def _model_ready(service: Service, request: Any) -> dict[str, Any]:
    try:
        return {"ready": service.takes_requests(request.name, request.version)}
    except UnknownModelError:  # as Triton answers
        return {"ready": False}


def _server(service: Service, request: Any) -> dict[str, Any]:
    return described.server_metadata(service)


def _metadata(service: Service, request: Any) -> dict[str, Any]:
    model = service.described(request.name, request.version)
    metadata = described.model_metadata(service.models, model)
    for port in metadata["inputs"]:
        port.pop("parameters", None)  # the configuration has a field for them, this has none
    return metadata


def _config(service: Service, request: Any) -> dict[str, Any]:
    return {"config": described.config(service.described(request.name, request.version))}


def _statistics(service: Service, request: Any) -> dict[str, Any]:
    if not request.name:
        return described.statistics(service.models)
    return described.statistics(service.models.named(*service.named(request.name, request.version)))


def _index(service: Service, request: Any) -> dict[str, Any]:
    if request.repository_name:
        raise InputError("there is one repository, which has no name")
    return {"models": described.index(service, only_ready=request.ready)}


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
