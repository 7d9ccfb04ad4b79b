"""The errors that the server itself raises, and the status, code and text that a client gets for any error.

| outcome | REST | gRPC |
|---|---|---|
| malformed request, InputError, BatchRangeError of a request above ``max`` | 400 | INVALID_ARGUMENT |
| unknown model or version | 404 | NOT_FOUND |
| body too large | 413 | RESOURCE_EXHAUSTED |
| a coding or a media type of a body that is not read | 415 | INVALID_ARGUMENT |
| not received in time | 408 | DEADLINE_EXCEEDED |
| a field of a body of JSON | 422 | |
| OverloadedError | 429 | RESOURCE_EXHAUSTED |
| closed, draining, InstanceLostError, BatchRangeError of a batch that found too little company | 503 | UNAVAILABLE |
| deadline | 504 | DEADLINE_EXCEEDED |
| no key, or a wrong one | 401 | UNAUTHENTICATED |
| not allowed | 403 | PERMISSION_DENIED |
| a part of the protocol that is not here | 501 | UNIMPLEMENTED |
| every other error | 500 | INTERNAL |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from headrace.errors import (
    BatchRangeError,
    ClosedError,
    ConfigError,
    DeadlineExceededError,
    HeadraceError,
    InputError,
    InstanceLostError,
    OverloadedError,
    PluginError,
    SetupError,
    among,
    code_of,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "NO_REGIONS",
    "BodyTooLargeError", "CodingError", "DisconnectedError", "FieldError",
    "ItemError", "MediaTypeError", "NotAllowedError", "NotBuiltError", "NotJsonError",
    "NotReceivedError", "Refusal", "RelayedError", "ServeError", "UnauthenticatedError",
    "UnavailableError", "UnknownModelError", "UnsupportedError", "error_json",
    "lacks_company", "refusal", "unknown_parameter", "unsupported",
]  # fmt: skip


NO_REGIONS = "this server takes no shared memory: send the tensors, or run the model in the client's process by `headrace.pipe`"
"""The words of errors for clients of Triton's shared memory."""

_LONGEST_NAME = 256
"""The most characters of a name in the text of an error."""

_LONGEST_TEXT = 10_000
"""The most characters of the text of an error: a wrong name in it may be as long as a body."""


class ServeError(HeadraceError):
    """Root of the errors that the server itself raises. Clients get their whole text.

    Attributes:
        what: The text, which states the problem and what to do.
    """

    code = "serve"

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


class DisconnectedError(Exception):
    """The client went away, so no answer is sent."""


class UnknownModelError(ServeError):
    """No model of this name, or no such version of it, is served.

    The text begins like Triton's, because clients look for those words, also in ``doing``, which is before it. It lists the
    names in ``served``, which is empty if a client without a key must not see them.
    """

    code = "unknown_model"

    def __init__(
        self, name: str, version: str = "", served: Iterable[str] = (), doing: str = ""
    ) -> None:
        self.name = name
        self.version = version
        known = sorted(served, key=int if version else None)
        near = None if version else nearest(name, known)
        short, version = name[:_LONGEST_NAME], version[:_LONGEST_NAME]
        what = f"{short!r} has no version {version!r}" if version else f"{short!r} is not found"
        if version and not version.isdecimal():
            what = f"failed to get model version from specified version string {version!r}: {what}"
        if near is not None:
            what += f"; did you mean {near!r}?"
        elif known:
            what += f"; {'it has' if version else 'served are:'} {', '.join(known)}"
        super().__init__(f"{doing}Request for unknown model: {what}")


class BodyTooLargeError(ServeError):
    """The body of a request is larger than `Limits.max_body_bytes`, as sent or decompressed."""

    code = "body_too_large"


class CodingError(ServeError):
    """The body of a request has a ``Content-Encoding`` that this server does not have."""

    code = "content_encoding"


class MediaTypeError(ServeError):
    """The body of a request has a ``Content-Type`` that the model does not take."""

    code = "content_type"


class FieldError(ServeError):
    """A field of a body of JSON is missing, unknown, or of another type than the model's request has there."""

    code = "field"


class NotReceivedError(ServeError):
    """A request has not arrived whole within `Limits.receive_timeout_s`."""

    code = "receive_timeout"


class UnauthenticatedError(ServeError):
    """The request has no key, or one that is not in the file of keys."""

    code = "unauthenticated"


class NotAllowedError(ServeError):
    """The server can do this, but this request is not allowed to ask for it.

    The server was started without the ``--allow`` that the request needs, the key lacks the right, or the
    request brings a configuration or files, which are code.
    """

    code = "not_allowed"


class UnavailableError(ServeError):
    """The server is about to shut down, or the model is not loaded."""

    code = "closed"


class NotBuiltError(UnavailableError):
    """A model that a request builds takes no requests yet.

    Attributes:
        name, version: The model.
        retry_after_s: The seconds after which the same request may succeed.
    """

    def __init__(
        self, name: str, version: str, why: str = "is being built", retry_after_s: int = 1
    ) -> None:
        self.name, self.version, self.retry_after_s = name, version, retry_after_s
        super().__init__(f"model {name!r} {why}")


class UnsupportedError(ServeError):
    """A part of the protocol that this server does not have."""

    code = "unsupported"


class NotJsonError(ServeError):
    """A result has to be written as JSON or text, and holds NaN, infinity, one name twice, or text that is not Unicode."""

    code = "contract"


class ItemError(HeadraceError):
    """One element of an input of items failed, and the request with it.

    Attributes:
        index: The element that failed, from 0.
        error: The error of that element.
    """

    code = "item"

    def __init__(self, index: int, error: BaseException) -> None:
        self.index = index
        self.error = error
        super().__init__(f"item {index}: {error}")


@dataclass(frozen=True)
class Refusal:
    """The answer that a client gets for an error.

    Attributes:
        status: The HTTP status.
        grpc: The name of the gRPC status code.
        code: The stable code of the error.
        node: The node of the pipeline that failed, or None.
        text: The message.
        retry: Whether the same request may succeed later.
    """

    status: int
    grpc: str
    code: str
    node: str | None
    text: str
    retry: bool = False


class RelayedError(HeadraceError):
    """A change failed in another worker process, which has sent the answer for the client.

    Attributes:
        refusal: The answer.
    """

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.text)


_TABLE: tuple[tuple[tuple[type[BaseException], ...], int, str], ...] = (
    ((InputError, BatchRangeError), 400, "INVALID_ARGUMENT"),
    ((UnauthenticatedError,), 401, "UNAUTHENTICATED"),
    ((NotAllowedError,), 403, "PERMISSION_DENIED"),
    ((UnknownModelError,), 404, "NOT_FOUND"),
    ((NotReceivedError,), 408, "DEADLINE_EXCEEDED"),
    ((BodyTooLargeError,), 413, "RESOURCE_EXHAUSTED"),
    ((CodingError, MediaTypeError), 415, "INVALID_ARGUMENT"),
    ((FieldError,), 422, "INVALID_ARGUMENT"),
    ((OverloadedError,), 429, "RESOURCE_EXHAUSTED"),
    ((UnsupportedError,), 501, "UNIMPLEMENTED"),
    ((ClosedError, InstanceLostError, UnavailableError), 503, "UNAVAILABLE"),
    ((DeadlineExceededError,), 504, "DEADLINE_EXCEEDED"),
)
_SHOWN = (InputError, BatchRangeError, OverloadedError, DeadlineExceededError, ServeError)
"""Errors whose whole text a client may see, because it reveals nothing about how the pipeline is made."""

_BRIEF = (OverloadedError, DeadlineExceededError)
"""Of these only the first line: the next says what the pipeline's caller, or who operates it, should do."""

_RETRIED = (429, 503)


def lacks_company(error: BaseException) -> bool:
    """Return whether a request, right in itself, found too few others for the ``min`` or ``batch_sizes`` of its node.

    Who operates the server can change this, and its sender cannot. Where the weight is unknown, as in an answer of
    another server, this is False.
    """
    if not isinstance(error, BatchRangeError) or error.weight == 0:
        return False
    return error.max is None or error.weight <= error.max


def refusal(error: BaseException, *, debug: bool = False) -> Refusal:
    """Return the answer that a client gets for an error.

    Args:
        error: The error that was raised.
        debug: Whether the client gets the text of every error. If False, the answer for an error inside the
            pipeline names only node, backend and code.
    """
    if isinstance(error, RelayedError):
        return error.refusal
    if isinstance(error, ItemError):
        inner = refusal(error.error, debug=debug)
        text = f"item {error.index}: {inner.text}"
        return Refusal(inner.status, inner.grpc, inner.code, inner.node, text, inner.retry)
    status, name = 500, "INTERNAL"
    for classes, number, grpc in _TABLE:
        if isinstance(error, classes):
            status, name = number, grpc
            break
    alone = lacks_company(error)
    if alone:
        status, name = 503, "UNAVAILABLE"
    node: Any = getattr(error, "node", None)
    # A metadatum of gRPC is ASCII, but a user's class may have any code.
    code = ascii(code_of(error))[1:-1]
    if debug or isinstance(error, _SHOWN):
        text = str(error)
        if not debug and (alone or isinstance(error, _BRIEF)):
            text = text.partition("\n")[0]
    else:
        backend = getattr(error, "backend", None)
        places = [("node", node), ("backend", backend)]
        where = ", ".join(f"{kind} {value!r}" for kind, value in places if value is not None)
        problem = "the request failed"
        if isinstance(error, (ConfigError, PluginError, SetupError)):
            problem = "the model could not be loaded; the server's messages say why"
        text = f"{problem} [{f'{where}, ' if where else ''}code {code!r}]"
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]} ..."
    # Half of a surrogate pair, as in some file names, is not valid UTF-8, so JSON and gRPC could not send the text.
    text = text.encode("utf-8", "backslashreplace").decode()
    return Refusal(status, name, code, node, text, status in _RETRIED)


def error_json(text: str, code: str, node: str | None = None, identifier: str = "") -> bytes:
    """Return the JSON of an error, as every answer of HTTP that is one has it; tritonclient reads ``error``."""
    return orjson.dumps({"error": text, "code": code, "node": node, "id": identifier})


def unsupported(name: str) -> UnsupportedError:
    """Return the error for a path or call of the protocol that this server does not have."""
    cure = f"; {NO_REGIONS}" if "sharedmemory" in name.lower() else ""
    return UnsupportedError(f"{name} is not supported by this server{cure}")


def unknown_parameter(name: str, where: str, known: Iterable[str]) -> InputError:
    """Return the error for a parameter that the server does not know."""
    return InputError(
        f"{where} has a parameter {name!r}, which this server does not have",
        hint=among(name, sorted(known)),
    )
