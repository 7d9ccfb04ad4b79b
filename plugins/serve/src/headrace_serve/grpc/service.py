"""The protocol over gRPC; it runs in the event loop that also serves REST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace_serve.errors import unsupported
from headrace_serve.grpc.calls import Calls
from headrace_serve.grpc.context import Method
from headrace_serve.grpc.described import describing_methods
from headrace_serve.grpc.extensions import extension_methods
from headrace_serve.grpc.front import Front
from headrace_serve.grpc.health import health_methods
from headrace_serve.grpc.reflection import reflection
from headrace_serve.grpc.streams import stream_of_inferences
from headrace_serve.grpc.tensors import read_message

if TYPE_CHECKING:
    from headrace_serve.service import Service

__all__ = ["methods_of"]

_INFERENCE: Final = "inference.GRPCInferenceService"
_REGIONS: Final = [
    f"{kind}SharedMemory{action}"
    for kind in ("System", "Cuda")
    for action in ("Status", "Register", "Unregister")
]
_UNSUPPORTED: Final = (*_REGIONS, "TraceSetting", "LogSettings")


def methods_of(service: Service) -> dict[str, dict[str, Method]]:
    """Return the methods of the protocol, of health and of reflection, by the names of their services and their own."""
    calls = Calls(service)
    front = Front(service)
    methods = describing_methods(service, calls)
    methods["ModelInfer"] = calls.unary(
        "ModelInfer", read_message, front.infer, "infer", first=service.check_room
    )
    streamed = stream_of_inferences(front, calls, service)
    methods["ModelStreamInfer"] = Method(streamed, streams=True)
    for name in _UNSUPPORTED:
        methods[name] = calls.unary(name, bytes, _unsupported(name))
    methods.update(extension_methods(service, calls))
    named = {_INFERENCE: methods, "grpc.health.v1.Health": health_methods(service, calls)}
    for version in ("v1", "v1alpha"):
        package = f"grpc.reflection.{version}"
        info = Method(reflection(package, calls), streams=True)
        named[f"{package}.ServerReflection"] = {"ServerReflectionInfo": info}
    return named


def _unsupported(name: str) -> Any:
    async def refuse(request: bytes, context: Any, line: Any) -> bytes:
        raise unsupported(name)

    return refuse
