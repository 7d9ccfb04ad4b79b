"""`Denoise`: contract and options. What computes is in `compute`, which `init` imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace
import pydantic

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["Denoise"]


class Denoise(headrace.Backend):
    """Take the noise out of an image and keep its edges (total variation).

    Reads:
        data: ``uint8 [H, W, C]`` with at least one pixel, channels in any order.

    Writes:
        result: ``uint8 [H, W, C]``, a new array.

    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or is no such image.

    Source:
        scikit-image's ``denoise_tv_chambolle``, after A. Chambolle, An algorithm for total
        variation minimization and applications, 2004.
    """

    class Options(headrace.Options):
        """How strongly, and for how long.

        Attributes:
            weight: Strength (a number without unit): more takes out more noise and detail.
            max_iterations: Most iterations per image (a count).
        """

        positional = ("weight",)
        weight: float = pydantic.Field(0.1, gt=0, allow_inf_nan=False)
        max_iterations: int = pydantic.Field(200, ge=1)

    # Running again does no harm: when a batch fails, each of its items is run alone.
    rerun = True

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Import scikit-image, and keep the options."""
        from headrace_denoise import compute

        self._compute = compute.denoise
        self._options = options

    def forward(self, batch: list[Request]) -> None:
        """Write ``result`` into each request."""
        weight, iterations = self._options.weight, self._options.max_iterations
        for request in batch:
            request["result"] = self._compute(request.get("data"), weight, iterations)
