"""The extension of classification: of an output its greatest values, as texts ``score:index:label``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import InputError
from headrace_serve.inference.messages import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_serve.models.model import Model

__all__ = ["CLASSIFICATION", "class_count", "classified"]

CLASSIFICATION = "classification"
"""The parameter of an output with the number of classes that the client wants."""

_GREATEST = 1 << 31


def class_count(where: str, value: Any) -> int:
    """Check the number of classes that a client asks for.

    Raises:
        InputError: It is no whole number of 1 or more.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _GREATEST:
        expected = "a whole number of 1 or more"
        raise InputError(f"{CLASSIFICATION} of {where}", expected=expected, got=repr(value)[:40])
    return value


def classified(model: Model, tensor: Tensor, most: int) -> Tensor:
    """Give the classes of an output instead of its values: BYTES ``[rows, n]``, or ``[n]`` of an output without rows.

    The greatest value comes first, of equal ones the first. An output whose first axis is that of rows, or of items, has
    classes for each of them, over all of its other axes.

    Args:
        model: The model, whose labels are used.
        tensor: The output.
        most: The number of classes. An output with fewer values has as many as it has values.

    Raises:
        InputError: The output holds no numbers.
    """
    array = tensor.array
    if array.dtype.kind not in "biuf" or tensor.datatype == "BF16":
        raise InputError(
            f"{CLASSIFICATION} of output {tensor.name!r}",
            expected="an output of numbers",
            got=tensor.datatype,
        )
    signature = model.signature
    by_row = signature.by_item or signature.outputs[tensor.name].batch_axis == 0
    by_row = by_row and array.ndim > 0
    rows = array.reshape(len(array) if by_row else 1, math.prod(array.shape[int(by_row) :]))
    count = min(most, rows.shape[1])
    labels = model.labels.get(tensor.name, ())
    texts = np.empty((len(rows), count), object)
    for place, row in enumerate(rows):
        best = _greatest(row, count)
        texts[place] = [_text(row[index], int(index), labels) for index in best]
    texts = texts if by_row else texts[0]
    return Tensor(tensor.name, "BYTES", texts.shape, texts)


def _greatest(row: Any, count: int) -> Any:
    """Return the indexes of the greatest values, NaN last."""
    values = row.astype(np.float64)
    order = np.argsort(-np.where(np.isnan(values), -np.inf, values), kind="stable")
    return order[:count]


def _text(score: Any, index: int, labels: Sequence[str]) -> bytes:
    text = f"{score:f}:{index}" if isinstance(score, np.floating) else f"{int(score)}:{index}"
    label = f":{labels[index]}" if index < len(labels) and labels[index] else ""
    return (text + label).encode()
