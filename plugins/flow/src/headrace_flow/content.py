"""Which requests `Cache` and `Once` take for equal: by the content of bytes, texts, numbers and arrays."""

from __future__ import annotations

import sys
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import headrace
    from headrace.keys import Request

__all__ = ["PLAIN", "UnknownContentError", "content_of", "is_array", "keys_read"]

PLAIN = (bytes, str, int, float, complex, bool, type(None))
"""The classes of values that cannot change."""


class UnknownContentError(Exception):
    """A value is nothing whose content is known, so it can be neither compared nor copied."""


def content_of(request: Request, keys: Iterable[str]) -> bytes:
    """Return a digest of the content of some keys of a request; equal digests stand for equal content.

    Values of different types differ (``1``, ``1.0``, ``True``), and so do arrays of different dtype or shape. A key that is
    not there differs from every value.

    Raises:
        UnknownContentError: A value is no bytes, text, number, None or array of numbers.
    """
    digest = blake2b(digest_size=32)
    for key in keys:
        if key not in request:
            _add(digest, "absent", key.encode())
            continue
        _add(digest, "key", key.encode())
        value = request[key]
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
            about = f"{kind.__name__} {value.dtype.descr} {value.shape}"
            _add(digest, about, value.tobytes())
        else:
            raise UnknownContentError(kind.__name__)
    return digest.digest()


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


def keys_read(child: headrace.Backend, named: Iterable[str]) -> tuple[str, ...]:
    """Return the keys whose content makes requests equal: ``data``, those named, and what a child itself declares."""
    declared = child.reads if isinstance(child.reads, tuple) else child.reads.__annotations__
    plain = [key for key in declared if not key.startswith("{")]
    return tuple(sorted({"data", *plain, *named}))
