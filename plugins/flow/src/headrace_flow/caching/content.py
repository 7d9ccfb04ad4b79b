"""Which requests `Cache` and `Once` take for equal: by the content of bytes, texts, numbers and arrays."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from typing_extensions import NotRequired, TypedDict

from headrace.keys import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import headrace
    from headrace.keys import Request

__all__ = ["PLAIN", "UnknownContentError", "content_of", "is_array", "keys_compared", "may_read"]

PLAIN = (bytes, str, int, float, complex, bool, type(None))
"""The classes of values that cannot change."""

_TRACES = {"traceparent", "tracestate", "baggage", "client_digest"}
"""What ``context`` holds of a trace, and of the client in an exchange: it differs, and no answer depends on it."""


class UnknownContentError(Exception):
    """A value is nothing whose content is known, so it can be neither compared nor copied."""


def content_of(request: Request, keys: Collection[str]) -> bytes:
    """Return a digest of the content of some keys of a request, equal digests stand for equal content.

    Values of different types differ (``1``, ``1.0``, ``True``), and so do arrays of different dtype or shape. A key that is
    not there differs from every value. The parameters of a served request, ``context["parameters"]``, always count: any
    backend may read them. What only traces a request does not, where a backend reads ``context`` itself.

    Raises:
        UnknownContentError: A value is no bytes, text, number, None or array of numbers, nor a list, tuple or dict of these.
    """
    digest = sha256(usedforsecurity=False)
    context = request.get(CONTEXT)
    if isinstance(context, Mapping):
        counts = {"parameters"} if CONTEXT not in keys else {*context} - _TRACES
        context = {key: value for key, value in context.items() if key in counts}
    try:
        if context or CONTEXT in keys:
            _add_value(digest, (CONTEXT, context))
        for key in keys:
            if key not in request:
                _add(digest, "absent", key.encode())
            elif key != CONTEXT:
                _add(digest, "key", key.encode())
                _add_value(digest, request[key])
    except RecursionError:
        raise UnknownContentError("something that holds itself") from None
    return digest.digest()


def _add_value(digest: Any, value: Any) -> None:
    kind = type(value)
    if kind is bytes:
        _add(digest, "bytes", value)
    elif kind is str:
        _add(digest, "str", value.encode("utf-8", "surrogatepass"))
    elif kind is int:
        _add(digest, "int", hex(value).encode())
    elif kind in PLAIN:
        _add(digest, kind.__name__, repr(value).encode())
    elif is_array(value):
        # The dtypes of other libraries differ by their names alone.
        _add(digest, f"{kind.__name__} {value.dtype!r} {value.shape}", value.tobytes())
    elif kind in (list, tuple, dict):
        _add(digest, kind.__name__, str(len(value)).encode())
        for part in value.items() if kind is dict else value:
            _add_value(digest, part)
    else:
        raise UnknownContentError(kind.__name__)


def _add(digest: Any, kind: str, content: bytes) -> None:
    # The lengths are part of it: no two sequences of values give the same bytes.
    digest.update(f"{len(kind)} {len(content)} {kind}".encode())
    digest.update(content)


def is_array(value: Any) -> bool:
    """Tell whether a value is an array or a scalar of numpy, of no subclass, that holds no objects."""
    numpy = sys.modules.get("numpy")  # where nobody has imported it there are no arrays
    is_one = numpy is not None and (
        type(value) is numpy.ndarray or isinstance(value, numpy.generic)
    )
    return is_one and not value.dtype.hasobject


def keys_compared(context: headrace.InitContext, named: Iterable[str] | None) -> tuple[str, ...]:
    """Return the keys to compare: the inputs of the only child, the named keys, and the number of rows."""
    read, _ = (
        context.expression.keys_read()
    )  # where a backend does not say it, `check` has demanded the names
    return tuple(sorted({"request_size", *read, *(named or ())}))


def may_read(keys: Iterable[str]) -> type:
    """Return the ``reads`` of a backend that compares keys. It demands none of them."""
    typed_dict: Any = TypedDict
    reads: type = typed_dict("Reads", dict.fromkeys([*keys, CONTEXT], NotRequired[Any]))
    return reads
