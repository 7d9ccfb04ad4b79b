"""What two processes tell each other, as bytes: elements, and what has become of requests."""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import TYPE_CHECKING, Any

from headrace._backend import Backend
from headrace._build.channel import LARGE_BYTES
from headrace._function import FunctionBackend, of_function
from headrace._registry.backends import as_backend, source_of

if TYPE_CHECKING:
    from collections.abc import Container

    from headrace.keys import Request


CLOSE_S = 10.0
"""Seconds that what is in the process has to close itself, before the process is killed."""

# Elements. A class that was made of another one, or of a function, is sent as what it was made of.


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ == "__main__":
            raise pickle.PicklingError(
                f"{obj.__qualname__} is part of the program itself, __main__"
            )
        if not isinstance(obj, type) or not issubclass(obj, Backend) or obj is FunctionBackend:
            return None
        source = source_of(obj)
        if source is obj:
            return None
        if isinstance(source, type) and not issubclass(obj, FunctionBackend):
            return "class", source
        return "function", source, obj.batched  # type: ignore[attr-defined]


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


def without_copies(values: Request, keys: Container[str]) -> Request:
    """Give some values as they are pickled: large ``bytes`` as buffers, which the pickle does not copy."""
    return {
        key: pickle.PickleBuffer(value)
        if type(value) is bytes and len(value) >= LARGE_BYTES
        else value
        for key, value in values.items()
        if key in keys
    }


def apart(values: dict[str, Any]) -> tuple[dict[str, bytes], dict[str, Exception]]:
    """Pickle each value by itself; give those that can be pickled, and what was wrong with others."""
    good: dict[str, bytes] = {}
    bad: dict[str, Exception] = {}
    for key, value in values.items():
        try:
            good[key] = pickle.dumps(value, 5)
        except Exception as error:  # noqa: BLE001 - whatever a value raises
            bad[key] = error
    return good, bad


def together(parts: dict[str, bytes]) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Make the values again that `apart` gave; give what was wrong with those that cannot be made."""
    good: dict[str, Any] = {}
    bad: dict[str, Exception] = {}
    for key, part in parts.items():
        try:
            good[key] = pickle.loads(part)  # noqa: S301 - from the other of our two processes
        except Exception as error:  # noqa: BLE001 - whatever a class does, or one that is unknown
            bad[key] = error
    return good, bad


Changes = tuple[dict[str, str], dict[str, Any], list[str]]
"""What a backend has made of a request: keys that hold what another key held before and nobody can have
changed, and which that is; keys with other values; keys that were taken out."""


def changes(before: Request, after: Request) -> Changes:
    """Tell what has become of a request."""
    same, new = {}, {}
    for key, value in after.items():
        if key in before and before[key] is value:
            continue
        # What could have been changed in place is sent back, also where it is an object that came.
        known = [k for k, v in before.items() if v is value] if type(value) in _UNCHANGING else None
        if known:
            same[key] = known[0]
        else:
            new[key] = value
    return same, new, [key for key in before if key not in after]


_UNCHANGING = frozenset({bytes, str, int, float, complex, bool, type(None)})


def apply(found: Changes, request: Request) -> None:
    """Do to a request what has become of its copy."""
    same, new, gone = found
    kept = {key: request[source] for key, source in same.items()}
    for key in gone:
        request.pop(key, None)
    request.update(kept)
    request.update(new)
