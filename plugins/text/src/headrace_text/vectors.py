"""`Pool`, `Normalize` and `Scores`: one vector of the vectors of all tokens, its length, and the scores of classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic

import headrace
from headrace.errors import InputError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["Normalize", "Pool", "Scores"]

_Way = Literal["mean", "cls", "last", "max", "weighted_mean", "mean_sqrt"]
_OF_TOKENS = ("token_embeddings", "last_hidden_state")
"""The outputs of a model that hold the vectors of tokens, where it has several."""


class _OnVectors(headrace.Backend):
    """Base of both: each request alone, so that its result does not depend on the batch."""

    class Options(headrace.Options):
        """How long vectors are.

        Attributes:
            width: The elements of a vector, which clients are told; none: any.
        """

        width: int | None = pydantic.Field(None, ge=1)

    reads = ("data",)
    rerun = True
    max = None
    _axes = 1
    _width: int | None
    _made: Callable[[Any], Any]

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Import numpy, and note the width."""
        del context
        import numpy as np

        self._np, self._width = np, options.width

    def describe(self) -> dict[str, Any]:
        """Return the output."""
        return {"outputs": {"result": {"dtype": "float32", "shape": [None, self._width]}}}

    def forward(self, batch: list[Request]) -> list[Exception | None]:
        """Write the vector of each request."""
        outcomes: list[Exception | None] = []
        for request in batch:
            try:
                rows = self._read(request.get("data"))
                self._write(request, rows)
                outcomes.append(None)
            except InputError as error:
                outcomes.append(error)
        return outcomes

    def _write(self, request: Request, rows: Any) -> None:
        request["result"] = self._np.asarray(self._made(rows), self._np.float32)

    def _read(self, data: Any) -> Any:
        if isinstance(data, dict):
            data = next((data[name] for name in _OF_TOKENS if name in data), data)
        shape: tuple[int, ...] = getattr(data, "shape", ())
        kind = getattr(getattr(data, "dtype", None), "kind", "")
        fits = kind == "f" and len(shape) == self._axes and 0 not in shape
        if not fits or self._width not in {None, shape[-1]}:
            axes = ["tokens", self._width or "width"][-self._axes :]
            got = f"{data.dtype} {list(shape)}" if kind else type(data).__name__
            expected = f"floats [{', '.join(map(str, axes))}]"
            raise InputError(key="data", expected=expected, got=got)
        return data


class Pool(_OnVectors):
    """Make one vector of the vectors of all tokens.

    Reads:
        data: Any floats, ``[tokens, width]``, without padding. Of a dict of several outputs ``token_embeddings`` or
            ``last_hidden_state``.

    Writes:
        result: ``float32 [width]``, or ``[n * width]`` of n ways.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is no such array, or has another width.

    Source:
        Own, with the meaning of the module Pooling of sentence-transformers.
    """

    class Options(_OnVectors.Options):
        """Which vector.

        Attributes:
            how: mean: the mean of all; cls: that of the first token; last: of the last; max: the greatest of each
                element; weighted_mean: the mean, where the first counts once, the second twice; mean_sqrt: the sum by
                the root of the number. A list: these vectors joined.
        """

        positional = ("how",)

        how: _Way | Annotated[tuple[_Way, ...], pydantic.Field(min_length=1)] = "mean"

    _axes = 2

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Choose the functions."""
        super().init(options, context)
        np = self._np
        # A product with ones adds up rows three times as fast as `mean`.
        ways: dict[str, Callable[[Any], Any]] = {
            "mean": lambda rows: np.ones(len(rows), np.float32) @ rows / np.float32(len(rows)),
            "cls": lambda rows: rows[0].copy(),
            "last": lambda rows: rows[-1].copy(),
            "max": lambda rows: rows.max(axis=0),
            "weighted_mean": self._weighted,
            "mean_sqrt": lambda rows: np.ones(len(rows), np.float32) @ rows / np.sqrt(len(rows)),
        }
        names = [options.how] if isinstance(options.how, str) else options.how
        pools = [ways[name] for name in names]
        self._count = len(pools)
        self._made = (
            pools[0] if len(pools) == 1 else lambda x: np.concatenate([f(x) for f in pools])
        )

    def describe(self) -> dict[str, Any]:
        """Return the output."""
        width = self._width and self._width * self._count
        return {"outputs": {"result": {"dtype": "float32", "shape": [None, width]}}}

    def _weighted(self, rows: Any) -> Any:
        weights = self._np.arange(1, len(rows) + 1, dtype=self._np.float32)
        return weights @ rows / weights.sum()


class Normalize(_OnVectors):
    """Give a vector the length 1. A vector of zeros stays.

    Reads:
        data: Any floats, ``[width]``.

    Writes:
        result: ``float32 [width]``.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is no such array, or has another width.

    Source:
        Own, as ``torch.nn.functional.normalize``.
    """

    def _made(self, rows: Any) -> Any:
        rows = self._np.asarray(rows, self._np.float32)
        return rows / max(float(self._np.sqrt(rows @ rows)), 1e-12)


class Scores(_OnVectors):
    """Give each class of a text, or of two texts, its score. A cross-encoder has a single class.

    Reads:
        data: Any floats, ``[classes]``.

    Writes:
        result: ``float32 [classes]``: the scores.
        logits: ``float32 [classes]``: ``data``.
        labels: The names of the classes, a list of texts.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is no such array, or has another number of classes.

    Source:
        Own, as ``torch.nn.functional.softmax`` and ``sigmoid``.
    """

    class Options(_OnVectors.Options):
        """The function, and the names.

        Attributes:
            activation: What makes scores of the numbers that a model gives.
            labels: The names of the classes; default: LABEL_0, LABEL_1 and so on.
        """

        positional = ("activation",)

        activation: Literal["identity", "sigmoid", "softmax", "tanh"] = "identity"
        labels: tuple[str, ...] = ()

    writes = ("result", "logits", "labels")

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Choose the function.

        Raises:
            SetupError: ``labels`` are more or fewer than ``width``.
        """
        super().init(options, context)
        self._options, self._width = options, options.width or len(options.labels) or None
        if options.labels and len(options.labels) != self._width:
            raise SetupError(f"width is {self._width}, and labels has {len(options.labels)} names")

    def _write(self, request: Request, rows: Any) -> None:
        rows = self._np.asarray(rows, self._np.float32)
        names = self._options.labels or [f"LABEL_{number}" for number in range(len(rows))]
        super()._write(request, rows)
        request["logits"], request["labels"] = rows, [*names]

    def _made(self, rows: Any) -> Any:
        np, activation = self._np, self._options.activation
        if activation == "sigmoid":
            return 0.5 * (1 + np.tanh(0.5 * rows))
        if activation == "softmax":
            powers = np.exp(rows - rows.max())
            return powers / powers.sum()
        return np.tanh(rows) if activation == "tanh" else rows.copy()
