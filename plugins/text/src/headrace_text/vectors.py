"""`Pool` and `Normalize`: one vector of the vectors of all tokens, and its length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pydantic

import headrace
from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["Normalize", "Pool"]

_OF_TOKENS = ("token_embeddings", "last_hidden_state")
"""The outputs of a model that hold the vectors of tokens, where it has several."""


class _OnVectors(headrace.Backend):
    """Base of both: each request alone, so that its result does not depend on the batch."""

    class Options(headrace.Options):
        """How long vectors are."""

        width: int | None = pydantic.Field(
            None, ge=1, description="The elements of a vector, which clients are told; none: any."
        )

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
                request["result"] = self._np.asarray(self._made(rows), self._np.float32)
                outcomes.append(None)
            except InputError as error:
                outcomes.append(error)
        return outcomes

    def _read(self, data: Any) -> Any:
        if isinstance(data, dict):
            data = next((data[name] for name in _OF_TOKENS if name in data), data)
        shape: tuple[int, ...] = getattr(data, "shape", ())
        kind = getattr(getattr(data, "dtype", None), "kind", "")
        if (
            kind != "f"
            or len(shape) != self._axes
            or 0 in shape
            or self._width not in {None, shape[-1]}
        ):
            wanted = ["tokens", self._width or "width"][-self._axes :]
            got = f"{data.dtype} {list(shape)}" if kind else type(data).__name__
            expected = f"floats [{', '.join(map(str, wanted))}]"
            raise InputError(key="data", expected=expected, got=got)
        return data


class Pool(_OnVectors):
    """Make one vector of the vectors of all tokens.

    Reads:
        data: Any floats, ``[tokens, width]``, without padding. Of a dict of several outputs ``token_embeddings`` or
            ``last_hidden_state``.

    Writes:
        result: ``float32 [width]``.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is no such array, or has another width.

    Source:
        Own, with the meaning of the module Pooling of sentence-transformers.
    """

    class Options(_OnVectors.Options):
        """Which vector."""

        positional = ("how",)

        how: Literal["mean", "cls", "last", "max"] = pydantic.Field(
            "mean",
            description="mean: the mean of all; cls: that of the first token; last: of the last; max: the greatest of each element.",
        )

    _axes = 2

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Choose the function."""
        super().init(options, context)
        np = self._np
        ways: dict[str, Callable[[Any], Any]] = {
            # A product with ones adds up rows three times as fast as `mean`.
            "mean": lambda rows: np.ones(len(rows), np.float32) @ rows / np.float32(len(rows)),
            "cls": lambda rows: rows[0].copy(),
            "last": lambda rows: rows[-1].copy(),
            "max": lambda rows: rows.max(axis=0),
        }
        self._made = ways[options.how]


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
