"""Scores of classes: probabilities of them, and the best with their names. The module needs numpy only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_cv.functions.arrays import array_of, check_numbers, describe, numbers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["softmax", "top_k"]


def _as_scores(data: Any) -> NDArray[Any]:
    numbers = numbers_of(data)
    if numbers is None or numbers.ndim not in (1, 2) or numbers.shape[-1] == 0:
        array = array_of(data) if numbers is None else numbers
        expected = "numbers [C] or [N, C], a score for each of C classes"
        raise InputError("these are no scores", expected=expected, got=describe(data, array))
    check_numbers(numbers.size)
    return numbers


def softmax(scores: Any) -> NDArray[Any]:
    """Turn scores into probabilities: powers of e, divided by their sum over the last axis.

    Args:
        scores: Integers or floats ``[C]`` or ``[N, C]``, an array or a list. A score may be minus infinity: its class has the
            probability 0.

    Returns:
        A new array of the same shape: ``float64`` of ``float64``, else ``float32``. Each row adds up to 1.

    Raises:
        InputError: ``scores`` are no such numbers, or have no probabilities: one is NaN or infinity, or all are minus infinity.
    """
    numbers = _as_scores(scores)
    with np.errstate(over="ignore", invalid="ignore"):
        floats = numbers.astype(np.float64 if numbers.dtype == np.float64 else np.float32)
        powers = np.exp(floats - floats.max(-1, keepdims=True))
        shares: NDArray[Any] = powers / powers.sum(-1, keepdims=True)
    finite = np.isfinite(shares).all(-1).reshape(-1)
    if not finite.all():
        row = numbers.reshape(-1, numbers.shape[-1])[np.argmin(finite)]
        expected = "finite numbers of float32, or minus infinity for some classes"
        raise InputError("scores without probabilities", expected=expected, got=str(row.tolist()))
    return shares


def top_k(scores: Any, k: int = 5, labels: Sequence[str] | None = None) -> list[Any]:
    """Name the best classes, the best one first. Of equal scores, the class of the lower number comes first.

    Args:
        scores: Integers or floats ``[C]`` or ``[N, C]``, an array or a list.
        k: How many classes. If there are fewer, all are named.
        labels: The name of each class. A class without one, or with an empty one, is called by its number. None: all classes
            are.

    Returns:
        For ``[C]`` a list of ``{"label": str, "score": float}``. For ``[N, C]`` a list of N such lists.

    Raises:
        InputError: ``scores`` are no such numbers, one is NaN, or there are not as many classes as labels. Empty labels at
            the end may lack a class.
        ValueError: ``k`` is below 1.
    """
    if k < 1:
        raise ValueError(f"k is a number of classes of at least 1, not {k!r}")
    numbers = _as_scores(scores)
    classes = numbers.shape[-1]
    if labels is not None:
        least = next((n for n in range(len(labels), 0, -1) if labels[n - 1].strip()), 0)
        if not least <= classes <= len(labels):
            expected, got = f"{len(labels)} classes", f"{classes}: {describe(scores, numbers)}"
            problem = "these are no scores of the classes in labels"
            hint = "A file of labels has one in each line, and no head. Or they are those of another model or output."
            raise InputError(problem, expected=expected, got=got, hint=hint)
    if np.isnan(numbers).any():
        raise InputError("a score is no number", expected="numbers other than NaN", got="NaN")
    ranked = []
    for row in numbers.reshape(-1, classes).astype(np.float64):
        best = np.argsort(-row, kind="stable")[:k].tolist()
        names = [labels[n] if labels and labels[n].strip() else str(n) for n in best]
        pairs = zip(names, row[best].tolist(), strict=True)
        ranked.append([{"label": name, "score": score} for name, score in pairs])
    return ranked[0] if numbers.ndim == 1 else ranked
