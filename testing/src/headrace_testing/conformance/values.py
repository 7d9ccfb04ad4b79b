"""Comparing and copying the values that backends return, of any library.

Arrays are known by their ``shape`` and ``dtype``, or by the protocols through which others read them. No
array library is imported: numpy is used when it is loaded already, else arrays are compared as nested
lists. Arrays on a device are compared and kept as copies on the host.
"""

from __future__ import annotations

import cmath
import contextlib
import copy
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from headrace_testing.conformance.host import host_copy, is_on_device

_TEXT = 120
_LISTING = ("tolist", "to_pylist")
_comparing = threading.local()
"""Per thread the pairs of values whose parts are being compared: a value may hold itself."""


def is_array(value: Any) -> bool:
    """Return whether ``value`` is an array of any library: it has a shape and a dtype, or DLPack."""
    if isinstance(value, type):
        return False
    return (hasattr(value, "shape") and hasattr(value, "dtype")) or hasattr(value, "__dlpack__")


def said(value: Any) -> str:
    """Describe ``value`` in a few words."""
    if is_array(value):
        return f"{type(value).__name__} of {_dtype(value)} {list(getattr(value, 'shape', ()))}"
    text = repr(value)
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


def kept(value: Any) -> Any:
    """Return a copy of ``value`` that no later change of ``value`` reaches."""
    if isinstance(value, memoryview):
        return value.tobytes()
    try:
        # `deepcopy` uses the objects in its memo in place of copies: arrays on a device get host copies.
        memo = {id(array): host_copy(array) for array in arrays_on_device(value)}
        return copy.deepcopy(
            value, {key: copied for key, copied in memo.items() if copied is not None}
        )
    except Exception:  # noqa: BLE001 - objects of a backend may refuse to be copied in any way
        if isinstance(value, Mapping):
            return {key: kept(part) for key, part in value.items()}
        if type(value) in (list, tuple):
            return type(value)(kept(part) for part in value)
        return value


def arrays_on_device(value: Any) -> list[Any]:
    """Return the arrays on a device that a value holds, each once."""
    arrays: list[Any] = []
    _walk(value, set(), arrays)
    return arrays


def _walk(value: Any, ids: set[int], arrays: list[Any]) -> None:
    if id(value) in ids or isinstance(value, (str, bytes, int, float, type(None))):
        return
    ids.add(id(value))
    if is_on_device(value):
        arrays.append(value)
    elif is_array(value):
        return
    elif isinstance(value, Mapping):
        for part in list(value.values()):
            _walk(part, ids, arrays)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in list(value):
            _walk(part, ids, arrays)
    else:
        for part in list((_fields(value) or {}).values()):
            _walk(part, ids, arrays)


def difference(a: Any, b: Any, *, rtol: float = 0.0, atol: float = 0.0) -> str | None:
    """Say where two values differ; None when they are equal."""
    pairs: set[tuple[int, int]] = _comparing.__dict__.setdefault("pairs", set())
    pair = (id(a), id(b))
    if a is b or pair in pairs:
        return None
    pairs.add(pair)
    try:
        return _difference(a, b, rtol, atol)
    finally:
        pairs.discard(pair)


def _difference(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    if isinstance(a, memoryview) or isinstance(b, memoryview):
        a, b = _bytes_of(a), _bytes_of(b)
    if is_array(a) and is_array(b):
        return _of_arrays(a, b, rtol, atol)
    if type(a) is not type(b):
        return f"{said(a)} and {said(b)}"
    if isinstance(a, (float, complex)):
        return None if _close(a, b, rtol, atol) else f"{a!r} and {b!r}"
    if isinstance(a, Mapping):
        return _of_mappings(a, b, rtol, atol)
    if isinstance(a, (list, tuple)):
        return _of_sequences(a, b, rtol, atol)
    return _of_objects(a, b, rtol, atol)


def _bytes_of(value: Any) -> Any:
    return value.tobytes() if isinstance(value, memoryview) else value


def _close(a: complex, b: complex, rtol: float, atol: float) -> bool:
    if a == b or (cmath.isnan(a) and cmath.isnan(b)):
        return True
    return cmath.isfinite(a) and cmath.isfinite(b) and abs(a - b) <= atol + rtol * abs(b)


def _of_arrays(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    ours, theirs = _readable(a), _readable(b)
    if ours is None or theirs is None:
        return _of_unreadable(a, b, rtol, atol)
    a, b = ours, theirs
    if _dtype(a) != _dtype(b) or tuple(a.shape) != tuple(b.shape):
        return f"{said(a)} and {said(b)}"
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(a, numpy.ndarray) and isinstance(b, numpy.ndarray):
        if a.dtype.names is not None:
            ours, theirs = ({name: array[name] for name in array.dtype.names} for array in (a, b))
            return difference(ours, theirs, rtol=rtol, atol=atol)
        if a.dtype.kind in "fc":
            equal = numpy.isclose(a, b, rtol=rtol, atol=atol, equal_nan=True)
        elif a.dtype.kind == "O":
            return difference(a.tolist(), b.tolist(), rtol=rtol, atol=atol)
        else:
            equal = a == b
            if a.dtype.kind in "mM":
                equal |= numpy.isnat(a) & numpy.isnat(b)
        wrong = int(equal.size - numpy.count_nonzero(equal))
        return f"{wrong} of {a.size} numbers in {said(a)}" if wrong else None
    place = difference(_listed(a), _listed(b), rtol=rtol, atol=atol)
    return None if place is None else f"{said(a)}: {place}"


def _readable(array: Any) -> Any:
    """Return an array that the CPU can read, a numpy array where numpy is loaded; None if that is impossible."""
    if is_on_device(array) or not hasattr(array, "shape") or not _gives_content(array):
        array = host_copy(array)
    numpy = sys.modules.get("numpy")
    if (
        numpy is not None
        and hasattr(array, "__dlpack__")
        and not hasattr(array, "__array_struct__")
    ):
        # An array of a dtype that numpy lacks is compared as lists.
        with contextlib.suppress(Exception):
            return numpy.from_dlpack(array)
    return array


def _gives_content(array: Any) -> bool:
    """Return whether an array gives its content, as lists or as bytes."""
    if any(callable(getattr(array, name, None)) for name in _LISTING):
        return True
    try:
        memoryview(array).release()
    except TypeError:
        return False
    return True


def _listed(array: Any) -> Any:
    """Return the content of an array as lists."""
    for name in _LISTING:
        if callable(getattr(array, name, None)):
            return getattr(array, name)()
    return memoryview(array).tolist()


def _of_unreadable(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    differs = _of_objects(a, b, rtol, atol)
    if differs is not None and is_on_device(a):
        return f"{said(a)} on a device cannot be read: it has neither cpu(), get() nor __dlpack__"
    return differs


def _dtype(array: Any) -> str:
    return str(getattr(array, "dtype", "unknown"))


def _of_mappings(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    if list(a) != list(b) and set(a) != set(b):
        return f"the keys {sorted(map(str, a))} and {sorted(map(str, b))}"
    for key in a:
        differs = difference(a[key], b[key], rtol=rtol, atol=atol)
        if differs is not None:
            return f"at {key!r}: {differs}"
    return None


def _of_sequences(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    if len(a) != len(b):
        return f"{len(a)} and {len(b)} elements"
    for index, (item, other) in enumerate(zip(a, b, strict=True)):
        differs = difference(item, other, rtol=rtol, atol=atol)
        if differs is not None:
            return f"at {index}: {differs}"
    return None


def _say_equal(a: Any, b: Any) -> bool:
    """Return whether two objects are equal by their ``==``; False if that raises."""
    try:
        return bool(a == b)
    except Exception:  # noqa: BLE001 - an __eq__ of any library may raise anything
        return False


def _of_objects(a: Any, b: Any, rtol: float, atol: float) -> str | None:
    if _say_equal(a, b) or isinstance(a, Iterator):  # which can be read only once
        return None
    ours, theirs = _fields(a), _fields(b)
    if ours is None or theirs is None:
        tells = getattr(type(a), "__eq__", None) is not object.__eq__
        return f"{said(a)} and {said(b)}" + (
            "" if tells else ", which do not tell what they hold: give their class an __eq__"
        )
    return _of_mappings(ours, theirs, rtol, atol)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object that has no ``==`` of its own; None for any other."""
    own = getattr(type(value), "__eq__", None) is not object.__eq__
    if own and not hasattr(value, "__dataclass_fields__"):
        return None
    names = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
    if isinstance(value, BaseException):
        fields["args"] = value.args
    fields.update(getattr(value, "__dict__", {}))
    return fields or None
