"""How far the answers of two models are apart, and whether the new one has proved itself."""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Tally", "distances", "read_judge", "row_of", "shown"]

_WORST = 10
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


class Tally:
    """What the compared requests have shown. The old model comes first in each pair.

    Attributes:
        compared: How many requests both have run.
        failed: How many of them each has failed.
        rows, differing: How many rows were compared, and how many of them differ.
    """

    def __init__(self) -> None:
        self.compared = self.rows = self.differing = 0
        self.failed = [0, 0]
        self._ms: tuple[list[float], list[float]] = [], []
        self._worst: list[tuple[float, int, dict[str, Any]]] = []
        self._number = itertools.count()

    def note_failed(self, errors: Sequence[BaseException | None]) -> None:
        """Count a request that at least one of them has failed."""
        self.compared += 1
        for side, error in enumerate(errors):
            self.failed[side] += error is not None

    def note(
        self, ms: Sequence[float], found: Sequence[float], about: Callable[[int], dict[str, Any]]
    ) -> None:
        """Count a request that both have answered.

        Args:
            ms: The milliseconds of each.
            found: How far each row is apart. Above 1 it differs.
            about: Gives what is told of a row, if it is among the worst.
        """
        self.compared += 1
        self.rows += len(found)
        for side, side_ms in enumerate(ms):
            self._ms[side].append(side_ms)
        for row, far in enumerate(found):
            if far > 1:
                self.differing += 1
                if len(self._worst) < _WORST:
                    heapq.heappush(self._worst, (far, next(self._number), about(row)))
                elif far > self._worst[0][0]:
                    heapq.heapreplace(self._worst, (far, next(self._number), about(row)))

    def reasons(self, errors: float, slower: float, differ: float) -> list[str]:
        """Return why the new model may not take the place of the old one: none, if it may."""
        texts = []
        more = (self.failed[1] - self.failed[0]) / max(1, self.compared)
        if more > errors:
            texts.append(f"it fails {more:.2%} more requests, and {errors:.2%} may be")
        for name, (old, new) in self._times().items():
            if new > slower * old:
                texts.append(f"{name} is {new:.3g} ms, and {slower:g} times {old:.3g} ms may be")
        if self.differing > differ * self.rows:
            part = self.differing / self.rows
            texts.append(f"{part:.2%} of the rows differ, and {differ:.2%} may")
        return texts

    def _times(self) -> dict[str, list[float]]:
        ordered = [sorted(times) for times in self._ms]
        if not ordered[0]:
            return {}
        return {
            f"p{part}": [times[math.ceil(len(times) * part / 100) - 1] for times in ordered]
            for part in (50, 99)
        }

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        worst = sorted(self._worst, key=lambda pair: (-pair[0], pair[1]))
        return {
            "compared": self.compared,
            "failed": [*self.failed],
            "rows": self.rows,
            "differ": self.differing,
            "ms": self._times(),
            "worst": [
                {"distance": far if math.isfinite(far) else None, **row} for far, _, row in worst
            ],
        }
