"""The gRPC calls that ``--allow`` turns on: loading and unloading of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import InputError
from headrace_serve.grpc.messages import message

if TYPE_CHECKING:
    from headrace_serve.grpc.calls import Calls
    from headrace_serve.grpc.context import Context, Method
    from headrace_serve.service import Service

__all__ = ["extension_methods"]


def extension_methods(service: Service, calls: Calls) -> dict[str, Method]:
    """Return the methods by the names of the calls."""
    changes = {"RepositoryModelLoad": "load", "RepositoryModelUnload": "unload"}
    return {name: _method(name, change, service, calls) for name, change in changes.items()}


def _method(name: str, change: str, service: Service, calls: Calls) -> Method:
    async def respond(request: Any, context: Context, line: Any) -> bytes:
        service.allowed_repository()
        if request.repository_name:
            raise InputError("there is one repository, which has no name")
        given = {name: parameter.string_param for name, parameter in request.parameters.items()}
        await service.change(change, request.model_name, parameters=given)
        return b""  # the message of the answer has no fields

    asked = message(f"inference.{name}Request")
    return calls.unary(name, asked.FromString, respond, "repository")
