"""The errors of `Remote` beside those of core, and the error that an answer of a server stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from headrace.errors import (
    BackendError,
    BatchRangeError,
    ContractError,
    DeadlineExceededError,
    InputError,
    LimitError,
    NoMemoryError,
    NoResultError,
    OverloadedError,
    RequestError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ConnectionLostError", "ServersAwayError", "error_of", "is_refusal", "never_sent"]


class ServersAwayError(BackendError):
    """No server could be reached, so the request was sent to none."""

    code = "servers_away"


class ConnectionLostError(BackendError):
    """The connection broke after the request was sent: the server may have run it."""

    code = "connection_lost"


_BY_CODE: Final[Mapping[str, type[RequestError]]] = {
    "backend": BackendError,
    "batch_range": BatchRangeError,
    "body_too_large": InputError,
    "contract": ContractError,
    "deadline": DeadlineExceededError,
    "input": InputError,
    "limit": LimitError,
    "memory": NoMemoryError,
    "no_result": NoResultError,
    "overloaded": OverloadedError,
    "receive_timeout": DeadlineExceededError,
}
"""The classes by the codes that ``headrace serve`` sends in the trailing metadata of an answer.

``instance_lost`` is not here: it is an instance of the server that is lost, not the one that has sent the request.
"""

_BY_STATUS: Final[dict[str, type[RequestError]]] = {
    "INVALID_ARGUMENT": InputError,
    "OUT_OF_RANGE": InputError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "DEADLINE_EXCEEDED": DeadlineExceededError,
}
"""The classes by the status of gRPC, for servers that send no code."""

_TRITON_FULL: Final = "Exceeds maximum queue size"
"""In the text with which the queue of Triton's dynamic batcher refuses, with the status UNAVAILABLE."""

_TRITON_LATE: Final = "Request timeout expired"
"""In the text with which that queue drops a request, with the status UNAVAILABLE."""

_TOO_LARGE: Final = re.compile(r"(Sent|Received|SERVER: Received|CLIENT: Sent) message larger than")
"""The text with which gRPC itself refuses a message, with the status RESOURCE_EXHAUSTED."""

_TOO_LONG: Final = re.compile(r"(CLIENT: Received|Decompressed) message larger than max")
"""The text with which gRPC refuses an answer here, with that status; nothing that is sent is compressed."""

_NEVER_SENT: Final = (
    "failed to connect to all addresses",
    "connections to all backends failing",
    "DNS resolution failed",
    "Domain name not found",
    "empty address list",
)
"""How the texts begin with which gRPC says that it had no connection on which to send a call."""

_NO_MODEL: Final = re.compile(
    r"(\[request id: [^]]*\] )?"
    r"(Request for unknown model: |GRPC server is shutting down|Model (with name )?.+ is not ready)"
)
"""The beginnings of the texts with which a server refuses a model that it does not have yet, or no longer has. Triton
sends them with the status UNAVAILABLE or NOT_FOUND, KServe with UNAVAILABLE, MLServer with INVALID_ARGUMENT.
"""

_CLOSED: Final = ("the server is shutting down", "model ")
"""How the texts begin with which ``headrace serve`` refuses, with the code ``closed``, what it has not begun to run."""


def never_sent(status: str, details: str) -> bool:
    """Return whether a failed call never left this process.

    Args:
        status: The name of the status of gRPC.
        details: The text of the status.
    """
    return status == "UNAVAILABLE" and details.startswith(_NEVER_SENT)


def is_refusal(status: str, code: str, details: str, *, again: bool = False) -> bool:
    """Return whether a server has refused a call without running it, so that another one may be asked.

    An overload of one item counts only with ``again``, because others of the call may have run.

    Args:
        status: The name of the status of gRPC.
        code: The code in the trailing metadata, ``""`` where there is none.
        details: The text of the status.
        again: Whether the call has one row only, or may be run a second time.
    """
    if status == "RESOURCE_EXHAUSTED":
        overloaded = code in ("", "memory", "overloaded") and not _TOO_LARGE.match(details)
        overloaded = overloaded and not _TOO_LONG.search(details)
        return overloaded and (again or not details.startswith("item "))
    if code:
        return status == "UNAVAILABLE" and code == "closed" and details.startswith(_CLOSED)
    if status == "UNAVAILABLE" and _TRITON_FULL in details:
        return True
    without = status in ("UNAVAILABLE", "INVALID_ARGUMENT") and _NO_MODEL.match(details)
    return bool(without) or status == "NOT_FOUND"


def error_of(url: str, status: str, code: str, details: str) -> RequestError:
    """Return the error that an answer stands for.

    Args:
        url: The server that has answered.
        status: The name of the status of gRPC. ``""`` for one item of an answer.
        code: The code of ``headrace serve``, ``""`` where there is none.
        details: The text.
    """
    if status == "RESOURCE_EXHAUSTED" and not code and _TOO_LONG.search(details):
        return BackendError(
            f"the answer of {url} is longer than max_message_bytes: {details}",
            hint="Raise max_message_bytes, or send fewer rows in a batch: the node's max.",
        )
    cls = _BY_CODE.get(code)
    if (status, code) == (
        "RESOURCE_EXHAUSTED",
        "memory",
    ):  # no model of it ran: there is no room for it
        cls = OverloadedError
    if cls is None and not code:
        cls = _BY_STATUS.get(status)
        if _TOO_LARGE.match(details):
            cls = InputError
        elif status == "UNAVAILABLE" and _TRITON_FULL in details:
            cls = OverloadedError
        elif status == "UNAVAILABLE" and _TRITON_LATE in details:
            cls = DeadlineExceededError
    about = f", {code or status}" if cls is None else ""
    return (cls or BackendError)(f"{details or 'the request failed'} (from {url}{about})")
