"""Whether two answers are the same, or close: for `Shadow`."""

from __future__ import annotations

import ast
import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import among
from headrace_flow.content import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["IncomparableError", "comparison"]

_OPTIONS: dict[str, dict[str, float]] = {"equal": {}, "allclose": {"rtol": 1e-5, "atol": 1e-8}}


class IncomparableError(Exception):
    """An answer is nothing that can be compared."""


class _Near(NamedTuple):
    rtol: float
    atol: float


def comparison(text: str) -> Callable[[Any, Any], bool]:
    """Return what compares two answers: ``equal``, or ``allclose(rtol=1e-5,atol=1e-8)``.

    It is called with the answer that counts and the other one, and raises IncomparableError for what is no number, text,
    bytes, array in the memory of the CPU, nor a list, tuple or dict of these. ``allclose`` holds where
    ``abs(other - counts) <= atol + rtol * abs(counts)``, whatever the dtypes. NaN is close to NaN.

    Raises:
        ValueError: The text says nothing of that kind.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} is no comparison, as allclose(rtol=1e-3)") from None
    called = tree if not isinstance(tree, ast.Call) else tree.func
    name = called.id if isinstance(called, ast.Name) else text
    if name not in _OPTIONS:
        raise ValueError(_unknown("comparison", name, [*_OPTIONS]))
    values = {**_OPTIONS[name]}
    if isinstance(tree, ast.Call):
        for one in tree.keywords:
            if one.arg not in values:
                raise ValueError(_unknown(f"option of {name}", str(one.arg), [*values]))
            value = one.value.value if isinstance(one.value, ast.Constant) else None
            if type(value) not in (int, float):
                raise ValueError(f"{one.arg} of {name} is a number, not {ast.unparse(one.value)}")
            values[one.arg] = float(value)  # type: ignore[arg-type]
        if tree.args:
            raise ValueError(f"{name} takes {', '.join(values) or 'no options'} by name")
    return partial(_same, near=_Near(**values) if values else None)


def _unknown(what: str, name: str, known: list[str]) -> str:
    return f"no {what} is called {name}. {among(name, known)}"


def _same(counts: Any, other: Any, near: _Near | None) -> bool:
    if hasattr(counts, "__array__") and hasattr(other, "__array__"):
        return _same_arrays(counts, other, near)
    kinds = type(counts), type(other)
    if not all(kind in (*PLAIN, list, tuple, dict) or hasattr(kind, "__array__") for kind in kinds):
        raise IncomparableError(" and ".join(kind.__name__ for kind in kinds))
    numbers = all(kind in (int, float, complex) for kind in kinds)
    if kinds[0] is not kinds[1] and not (near and numbers):
        return False
    if numbers:
        equal = counts == other or (counts != counts and other != other)
        return bool(equal or (near and _close(counts, other, near)))
    if kinds[0] is dict:
        return counts.keys() == other.keys() and all(
            _same(counts[key], other[key], near) for key in counts
        )
    if kinds[0] in (list, tuple):
        pairs = zip(counts, other, strict=False)
        return len(counts) == len(other) and all(_same(*pair, near) for pair in pairs)
    return bool(counts == other)


def _close(counts: Any, other: Any, near: _Near) -> bool:
    """Tell whether two numbers that are not equal are close: as `numpy.allclose`, so nothing is close to infinity."""
    try:
        apart = abs(other - counts)
        return bool(apart < math.inf and apart <= near.atol + near.rtol * abs(counts))
    except OverflowError:  # an int that is no float
        return False


def _same_arrays(counts: Any, other: Any, near: _Near | None) -> bool:
    import numpy as np

    try:
        a, b = np.asarray(counts), np.asarray(other)
    except Exception as error:  # as a tensor on a device
        raise IncomparableError(str(error)) from error
    if a.dtype.hasobject or b.dtype.hasobject:
        raise IncomparableError("an array of objects")
    if a.shape != b.shape:
        return False
    numbers = a.dtype.kind in "biufc" and b.dtype.kind in "biufc"
    if near and numbers:
        return bool(np.allclose(b, a, rtol=near.rtol, atol=near.atol, equal_nan=True))
    return a.dtype == b.dtype and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
