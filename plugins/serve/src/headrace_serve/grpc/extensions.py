"""The gRPC calls that ``--allow`` turns on: system shared memory, loading and unloading of models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import InputError
from headrace_serve.grpc.messages import message
from headrace_serve.shared_memory import allowed, no_cuda_region

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
        made: bytes = answered(**await answer(service, request)).SerializeToString()
        return made

    return calls.unary(name, asked.FromString, respond, right)


async def _status(service: Service, request: Any) -> dict[str, Any]:
    rows = allowed(service.regions).status(request.name)
    region = message("inference.SystemSharedMemoryStatusResponse.RegionStatus")
    return {
        "regions": {row["name"]: region(**row) for row in rows}
    }  # protobuf 5 takes no dict in a map


async def _register(service: Service, request: Any) -> dict[str, Any]:
    allowed(service.regions)
    size = request.byte_size
    await service.change(
        "register", request.name, key=request.key, offset=request.offset, byte_size=size
    )
    return {}


async def _unregister(service: Service, request: Any) -> dict[str, Any]:
    allowed(service.regions)
    await service.change("unregister", request.name)
    return {}


async def _cuda_status(service: Service, request: Any) -> dict[str, Any]:
    if request.name:
        raise no_cuda_region(request.name)
    return {}


async def _cuda_unregister(service: Service, request: Any) -> dict[str, Any]:
    return {}


async def _load(service: Service, request: Any) -> dict[str, Any]:
    return await _change(service, "load", request)


async def _unload(service: Service, request: Any) -> dict[str, Any]:
    return await _change(service, "unload", request)


async def _change(service: Service, what: str, request: Any) -> dict[str, Any]:
    service.allowed_repository()
    if request.repository_name:
        raise InputError("there is one repository, which has no name")
    given = {name: one.string_param for name, one in request.parameters.items()}
    await service.change(what, request.model_name, parameters=given)
    return {}


_ANSWERS: Final[dict[str, tuple[Any, Right]]] = {
    "SystemSharedMemoryStatus": (_status, "infer"),
    "SystemSharedMemoryRegister": (_register, "infer"),
    "SystemSharedMemoryUnregister": (_unregister, "infer"),
    "CudaSharedMemoryStatus": (_cuda_status, "infer"),
    "CudaSharedMemoryUnregister": (_cuda_unregister, "infer"),
    "RepositoryModelLoad": (_load, "repository"),
    "RepositoryModelUnload": (_unload, "repository"),
}
