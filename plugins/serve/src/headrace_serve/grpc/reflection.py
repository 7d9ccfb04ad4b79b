"""gRPC reflection: reports the server's services and messages to tools such as grpcurl."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace_serve.grpc.calls import parsed
from headrace_serve.grpc.context import STATUSES
from headrace_serve.grpc.messages import FILES, SERVICES, message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from headrace_serve.grpc.calls import Calls
    from headrace_serve.grpc.context import Context

__all__ = ["reflection"]

_BY_NAME: Final = {file.name: file.SerializeToString() for file in FILES}
_BY_SYMBOL: Final = {
    f"{file.package}.{described.name}": file.name
    for file in FILES
    for kind in (file.message_type, file.enum_type, file.service)
    for described in kind
}


def _file_with(symbol: str) -> bytes | None:
    """Return the file that defines a symbol: a message, an enum, a service, or a member of one."""
    while symbol and symbol not in _BY_SYMBOL:
        symbol = symbol.rpartition(".")[0]
    return _BY_NAME[_BY_SYMBOL[symbol]] if symbol else None


def reflection(package: str, calls: Calls) -> Callable[[Context], AsyncIterator[bytes]]:
    """Return what answers a stream of questions.

    Args:
        package: The package of one version of the reflection service.
        calls: Refuses questions that cannot be parsed.
    """
    asked = message(f"{package}.ServerReflectionRequest")
    answered = message(f"{package}.ServerReflectionResponse")

    async def respond(context: Context) -> AsyncIterator[bytes]:
        while True:
            data: bytes | None = b""
            try:
                calls.authenticate(context, None)
                data = await context.read()
                if data is None:
                    return
                request = parsed(asked.FromString, data)
            except HeadraceError as error:
                raise calls.refused("ServerReflectionInfo", context, error) from None
            finally:
                calls.release(data)
            response = answered(valid_host=request.host, original_request=request)
            _fill(response, request)
            yield response.SerializeToString()

    return respond


def _fill(response: Any, request: Any) -> None:
    """Write the answer to one question."""
    which = request.WhichOneof("message_request")
    if which == "list_services":
        for name in SERVICES:
            response.list_services_response.service.add(name=name)
        return
    file = None
    if which == "file_by_filename":
        file = _BY_NAME.get(request.file_by_filename)
    elif which == "file_containing_symbol":
        file = _file_with(request.file_containing_symbol)
    if file is not None:
        response.file_descriptor_response.file_descriptor_proto.append(file)
        return
    response.error_response.error_code = STATUSES.index("NOT_FOUND")
    response.error_response.error_message = "there is no such file or symbol"
