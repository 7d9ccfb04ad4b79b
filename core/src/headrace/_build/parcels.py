"""What two processes tell each other, as bytes: elements, and what has become of requests."""

from __future__ import annotations

import io
import pickle
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from headrace._backend import Backend
from headrace._function import FunctionBackend, of_function
from headrace._registry.backends import as_backend

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = [
    "CLOSE_S",
    "Changes",
    "apply",
    "changes",
    "packed",
    "receive",
    "send",
    "unpacked",
]

CLOSE_S = 10.0
"""Seconds that what is in the process has to close itself, before the process is killed."""

_LENGTH = struct.Struct(">Q")


def send(stream: BinaryIO, message: Any) -> None:
    """Write a message."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read a message.

    Raises:
        EOFError: There is none any more.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return pickle.loads(content)  # noqa: S301 - what the other of our two processes has written


# Elements. A class that was made of another one, or of a function, is sent as what it was made of.


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, type) or not issubclass(obj, Backend) or obj is FunctionBackend:
            return None
        if issubclass(obj, FunctionBackend) and "function" in vars(obj):
            return "function", obj.function, obj.batched
        plain = obj.__bases__[0]
        made = len(obj.__bases__) == 2 and obj.__bases__[1] is Backend and as_backend(plain) is obj
        return ("class", plain) if made else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        if pid[0] == "function":
            return of_function(pid[1], batched=pid[2])
        return as_backend(pid[1])


def packed(value: Any) -> bytes:
    """Give elements, with their classes and options, as bytes."""
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def unpacked(content: bytes) -> Any:
    """Give what `packed` was given; imports what its classes are part of."""
    return _Unpickler(io.BytesIO(content)).load()


# Requests.


class Changes(NamedTuple):
    """What a backend has made of a request.

    Attributes:
        same: Keys that hold what another key held before, and which.
        new: Keys with other values.
        gone: Keys that were taken out.
    """

    same: dict[str, str]
    new: dict[str, Any]
    gone: list[str]


def changes(before: Request, after: Request) -> Changes:
    """Tell what has become of a request."""
    known = {id(value): key for key, value in before.items()}
    missing = object()
    touched = {k: v for k, v in after.items() if before.get(k, missing) is not v}
    same = {key: known[id(value)] for key, value in touched.items() if id(value) in known}
    new = {key: value for key, value in touched.items() if key not in same}
    return Changes(same, new, [key for key in before if key not in after])


def apply(found: Changes, request: Request) -> None:
    """Do to a request what has become of its copy."""
    before = dict(request)
    for key in found.gone:
        request.pop(key, None)
    request.update({key: before[source] for key, source in found.same.items()})
    request.update(found.new)
