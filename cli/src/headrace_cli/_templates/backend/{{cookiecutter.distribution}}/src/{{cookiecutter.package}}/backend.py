"""`{{ cookiecutter.backend }}`: contract and options. What computes is in `compute`, which `init` imports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import headrace
import pydantic

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["{{ cookiecutter.backend }}"]


class {{ cookiecutter.backend }}(headrace.Backend):
    """Multiply the values of an image by a factor.

    Reads:
        data: ``uint8 [H, W, C]``.

    Writes:
        result: ``uint8 [H, W, C]``, a new array.

    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or is no such image.

    Source:
        own
    """

    class Options(headrace.Options):
        """How much brighter or darker the result is."""

        positional = ("factor",)
        factor: float = pydantic.Field(
            default=1.0,
            ge=0,
            allow_inf_nan=False,
            description="What each value is multiplied by (a number without unit).",
        )

    # Running again does no harm: when a batch fails, each of its items is run alone.
    rerun = True

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Import what computes, and keep the options."""
        from {{ cookiecutter.package }} import compute

        self._compute = compute.scale
        self._factor = options.factor

    def forward(self, batch: list[Request]) -> None:
        """Write ``result`` into each request."""
        for request in batch:
            request["result"] = self._compute(request.get("data"), self._factor)
