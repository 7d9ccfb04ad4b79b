"""How far the answers of two models are apart."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["distances", "read_judge", "row_of", "shown"]

_SHOWN = 100
"""So many numbers or characters of a value are shown."""


def read_judge(path: str, *, allow_import: bool) -> Callable[[Any, Any], Any]:
    """Import a function that compares two answers.

    Args:
        path: ``"package.module:function"``.
        allow_import: Whether code may be imported.

    Raises:
        ConfigError: Imports are refused, the module cannot be imported, or it has no such function.
    """
    module, _, name = path.partition(":")
    if module and name.isidentifier():
        source = {"backend": "Identity", "import": [module]}
        try:
            headrace.PipelineConfig.load(source, allow_import=allow_import)
        except ConfigError as error:
            text = f"the verdict {path!r} cannot be imported: {error.problems[0].message}"
            raise ConfigError(Problem("exchange", text, hint=error.problems[0].hint)) from error
        judge: Any = getattr(sys.modules[module], name, None)
        if callable(judge):
            return judge  # type: ignore[no-any-return]
    text, hint = f"the verdict {path!r} names no function", 'Write verdict = "module:function".'
    raise ConfigError(Problem("exchange", text, hint=hint))


def distances(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    rows: int | None,
    rtol: Callable[[str], float],
    atol: float,
) -> list[float]:
    """Return how far each row of two answers is apart, in units of what is allowed: above 1 it differs.

    Args:
        old: The outputs by name, of the model that serves.
        new: The outputs of the other one.
        rows: How many rows the request has, along the first axis of outputs. None: it is one row.
        rtol: Gives the relative tolerance of an output.
        atol: The absolute tolerance.

    Source:
        ``abs(new - old) / (atol + rtol * abs(old))``, the most over all numbers with fractions. NaN is NaN, and all other values
        are equal or infinitely far apart.
    """
    far = [0.0] * (rows or 1)
    for name in {*old, *new}:
        for row, most in enumerate(far):
            ours, theirs = (row_of(outputs.get(name), row, rows) for outputs in (old, new))
            far[row] = max(most, _distance(ours, theirs, rtol(name), atol))
    return far


def row_of(value: Any, row: int, rows: int | None) -> Any:
    """Return a row of an output that has as many as its request, else all of it."""
    many = isinstance(value, list) or getattr(value, "ndim", 0) > 0
    return value[row] if rows is not None and many and len(value) == rows else value


def _distance(old: Any, new: Any, rtol: float, atol: float) -> float:
    if hasattr(old, "__array__") and hasattr(new, "__array__"):
        return _of_arrays(old, new, rtol, atol)
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.keys() == new.keys():
        return max((_distance(old[key], new[key], rtol, atol) for key in old), default=0.0)
    if isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)) and len(old) == len(new):
        pairs = zip(old, new, strict=True)
        return max((_distance(*pair, rtol, atol) for pair in pairs), default=0.0)
    if isinstance(old, float) and isinstance(new, float):
        if old == new or (old != old and new != new):
            return 0.0
        far, allowed = abs(new - old), atol + rtol * abs(old)
        return far / allowed if math.isfinite(far) and allowed else math.inf
    try:
        return 0.0 if type(old) is type(new) and bool(old == new) else math.inf
    except Exception:  # noqa: BLE001 - an __eq__ of any library may raise anything
        return math.inf


def _of_arrays(old: Any, new: Any, rtol: float, atol: float) -> float:
    import numpy as np

    a, b = np.asarray(old), np.asarray(new)
    if a.shape != b.shape:
        return math.inf
    with np.errstate(all="ignore"):
        same = np.asarray((a == b) | ((a != a) & (b != b)))
        far = np.full(a.shape, np.inf)
        if {a.dtype.kind, b.dtype.kind} <= {*"fc"}:
            a, b = (array.astype(np.result_type(array, np.float64)) for array in (a, b))
            far = np.abs(b - a) / (atol + rtol * np.abs(a))
        far_each = np.where(same, 0.0, np.where(np.isnan(far), np.inf, far))
    return float(np.max(far_each, initial=0.0))


def shown(value: Any) -> Any:
    """Return a value as plain data that can be written as JSON, its first numbers or characters."""
    if isinstance(value, Mapping):
        return {str(key): shown(part) for key, part in value.items()}
    if hasattr(value, "__array__"):
        import numpy as np

        value = np.asarray(value).ravel()[:_SHOWN].tolist()
    if isinstance(value, (list, tuple)):
        return [shown(part) for part in value[:_SHOWN]]
    is_finite = not isinstance(value, float) or math.isfinite(value)
    plain = value is None or (isinstance(value, (bool, int, float)) and is_finite)
    return value if plain else str(value)[:_SHOWN]
