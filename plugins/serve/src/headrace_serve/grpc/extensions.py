"""The gRPC calls that ``--allow`` turns on: loading and unloading of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError
from headrace_serve.grpc.messages import message

if TYPE_CHECKING:
    from headrace_serve.grpc.calls import Calls
    from headrace_serve.keys import Right
    from headrace_serve.service import Service

__all__ = ["extension_methods"]


def extension_methods(service: Service, calls: Calls) -> dict[str, Any]:
    """Return the handlers by the names of the calls."""
    return {
        name: _method(name, service, calls, answer, right)
        for name, (answer, right) in _ANSWERS.items()
    }


def _method(name: str, service: Service, calls: Calls, answer: Any, right: Right) -> Any:
    asked, answered = message(f"inference.{name}Request"), message(f"inference.{name}Response")

    async def respond(request: Any, context: Any, line: Any) -> bytes:
        response: bytes = answered(**await answer(service, request)).SerializeToString()
        return response

    return calls.unary(name, asked.FromString, respond, right)


async def _load(service: Service, request: Any) -> dict[str, Any]:
    return await _change(service, "load", request)


async def _unload(service: Service, request: Any) -> dict[str, Any]:
    return await _change(service, "unload", request)


async def _change(service: Service, change: str, request: Any) -> dict[str, Any]:
    service.allowed_repository()
    if request.repository_name:
        raise InputError("there is one repository, which has no name")
    given = {name: parameter.string_param for name, parameter in request.parameters.items()}
    await service.change(change, request.model_name, parameters=given)
    return {}


_ANSWERS: Final[dict[str, tuple[Any, Right]]] = {
    "RepositoryModelLoad": (_load, "repository"),
    "RepositoryModelUnload": (_unload, "repository"),
}
