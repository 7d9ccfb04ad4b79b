"""`Softmax` and `TopK`: from the scores of a classifier to names."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

import headrace
from headrace.errors import SetupError
from headrace.plugins import read_text
from headrace_cv._per_image import PerImage, of_data
from headrace_formats import read_labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["Softmax", "TopK"]

_SCORES = "numbers [C] or [N, C], a score for each of C classes"


class Softmax(PerImage):
    """Turn the scores of a classifier into probabilities that add up to 1 along the last axis.

    Reads:
        data: Integers or floats ``[C]`` or ``[N, C]``, C at least 1, an array or a list.

    Writes:
        result: Same shape, ``float64`` for ``float64``, ``float32`` for every other dtype, a new array.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else. A score is NaN or infinity, or all of a row are minus infinity.

    Source:
        torch's ``softmax``. Own computation.
    """

    expected = _SCORES

    def build(self, options: Any) -> Callable[[Request], None]:
        """Compute the probabilities of one request."""
        from headrace_cv.functions.scores import softmax

        return of_data(softmax, self.expected)


class TopK(PerImage):
    """Name the best classes of a classifier, the best one first.

    Of classes with equal scores the one of the lower number comes first.

    Reads:
        data: Integers or floats ``[C]`` or ``[N, C]``, C at least 1, an array or a list: probabilities, as `Softmax` gives
            them, or any other scores.

    Writes:
        result: A list of ``{"label": str, "score": float}``, k long, or C where C is less. For ``[N, C]`` a list of N
            such lists.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else, holds NaN, or has not as many classes as ``labels``.
        SetupError: The file of ``labels`` cannot be read, or holds no labels.

    Source:
        Own.
    """

    class Options(headrace.Options):
        """How many classes, and their names.

        Attributes:
            k: How many classes to name, at most.
            labels: Names of the classes: a list, or the path of a text file with a name per line, or of a .json file
                with a list or an object; none: classes are called by their numbers.
        """

        k: int = Field(default=5, ge=1)
        labels: tuple[str, ...] | headrace.FilePath | None = None

        positional = ("k", "labels")

    expected = _SCORES

    def build(self, options: Any) -> Callable[[Request], None]:
        """Read the names, and name the best classes of one request."""
        from headrace_cv.functions.scores import top_k

        labels = options.labels
        if isinstance(labels, Path):
            try:
                labels = read_labels(read_text(labels), labels.suffix)
            except ValueError as error:
                raise SetupError(f"the labels in {labels} cannot be read: {error}") from None
        return of_data(functools.partial(top_k, k=options.k, labels=labels), self.expected)
