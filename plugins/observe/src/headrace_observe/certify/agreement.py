"""Compares two values of any kind by a measure of how far apart two arrays of numbers are."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["beyond", "difference", "distance", "relative", "ulps"]


def difference(this: Any, other: Any, measure: Callable[[Any, Any], float]) -> float:
    """Return the most that ``measure`` gives for the numbers of two values; infinite where they differ otherwise.

    Args:
        this: A value: an array of any library, a number, or mappings, lists and dataclasses of them. All else is
            compared by ``==``.
        other: The other one.
        measure: Gives a number for two numpy arrays of one shape.
    """
    if type(this) is type(other) and isinstance(this, (str, bytes, int, float)) and this == other:
        return 0.0
    if is_dataclass(this) and type(this) is type(other):
        this, other = (
            {field.name: getattr(of, field.name) for field in fields(of)} for of in (this, other)
        )
    if isinstance(this, (list, tuple)) and isinstance(other, (list, tuple)):
        this, other = dict(enumerate(this)), dict(enumerate(other))
    if isinstance(this, Mapping) and isinstance(other, Mapping):
        if this.keys() != other.keys():
            return inf
        return max((difference(this[key], other[key], measure) for key in this), default=0.0)
    ours, theirs = _numbers(this), _numbers(other)
    if ours is not None and theirs is not None:
        return measure(ours, theirs) if ours.shape == theirs.shape else inf
    return 0.0 if _equal(this, other) else inf


def ulps(this: Any, other: Any) -> float:
    """Return how far two arrays are apart at most, in units of the last place of the greater number."""
    import numpy as np

    same = _same(this, other)
    if same.all() and this.dtype == other.dtype:
        return 0.0
    if this.dtype.kind != "f" or this.dtype != other.dtype:
        return inf
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(this), np.abs(other)))
        return _most(np.abs(this.astype(np.float64) - other.astype(np.float64)) / unit, same)


def beyond(ours: Any, other: Any, *, rtol: float, atol: float) -> float:
    """Return how many times as far as ``atol + rtol * abs(other)`` two arrays are apart; other numbers than floats must be equal."""
    import numpy as np

    same = _same(ours, other)
    if not {ours.dtype.kind, other.dtype.kind} & {*"fc"}:
        return 0.0 if same.all() else inf
    ours, other = _wide(ours), _wide(other)
    with np.errstate(all="ignore"):
        return _most(np.abs(ours - other) / (atol + rtol * np.abs(other)), same)


def distance(ours: Any, other: Any) -> float:
    """Return how far two arrays are apart at most."""
    import numpy as np

    with np.errstate(all="ignore"):
        return _most(np.abs(_wide(ours) - _wide(other)), _same(ours, other))


def relative(ours: Any, other: Any) -> float:
    """Return how far two arrays are apart at most, as a part of the greatest number of the other one."""
    import numpy as np

    far, most = distance(ours, other), float(np.max(np.abs(_wide(other)), initial=0.0))
    return far / most if most else inf if far else 0.0


def _wide(array: Any) -> Any:
    """Return numbers in a type in which halves do not overflow and small integers have a sign."""
    import numpy as np

    return array.astype(np.result_type(array, np.float64))


def _same(ours: Any, other: Any) -> Any:
    return (ours == other) | ((ours != ours) & (other != other))


def _most(far: Any, same: Any) -> float:
    import numpy as np

    ratios = np.where(same, 0.0, np.where(np.isnan(far), inf, far))
    return float(np.max(ratios, initial=0.0))


def _numbers(value: Any) -> Any:
    """Return a value as a numpy array of numbers, copied from a device where it lies on one; None if it is no such array."""
    import numpy as np

    ways: tuple[Callable[[], Any], ...] = (
        lambda: value,
        lambda: value.detach().cpu(),  # torch
        lambda: value.get(),  # CuPy
        lambda: np.from_dlpack(value),
        lambda: value.tolist(),  # a dtype that numpy lacks
    )
    for way in ways:
        with contextlib.suppress(Exception):  # each library refuses in its own way
            array = np.asarray(way())
            if array.dtype.kind in "biufc":
                return array
    return None


def _equal(ours: Any, other: Any) -> bool:
    import numpy as np

    with contextlib.suppress(Exception):  # an __eq__ of any library may raise anything
        return bool(np.all(ours == other))
    return False
