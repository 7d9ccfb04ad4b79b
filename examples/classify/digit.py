"""`Digit`: the answer in words, for `headrace run` to print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace
from headrace.errors import InputError

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Digit"]


@headrace.register("Digit")
class Digit(headrace.Backend):
    """Name the best class and its probability.

    Reads:
        data: ``{"values": float32 [1], "indices": int64 [1]}``, as TopKTensor(1) gives them.

    Writes:
        result: ``{"class": int, "probability": float}``, the latter rounded to 3 digits.

    Batch:
        1 or more.

    Raises:
        InputError: ``data`` is something else.

    Source:
        Own.
    """

    rerun = True

    def forward(self, batch: list[Request]) -> None:
        """Name it."""
        for request in batch:
            best = request.get("data")
            if not isinstance(best, dict) or not {"values", "indices"} <= best.keys():
                raise InputError(
                    key="data", expected="what TopKTensor(1) gives", got=str(type(best))
                )
            probability = round(float(best["values"][0]), 3)
            request["result"] = {"class": int(best["indices"][0]), "probability": probability}
