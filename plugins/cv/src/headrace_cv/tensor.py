"""`Mat2Tensor`: from an image to what a network reads."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, FiniteFloat, model_validator

import headrace
from headrace_cv._per_image import PerImage

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

__all__ = ["Mat2Tensor"]

PerChannel = Annotated[tuple[FiniteFloat, ...], Field(min_length=1, max_length=4)]


class Mat2Tensor(PerImage):
    """Turn an image into a planar float tensor, unscaled unless the options say otherwise.

    ``result = (data * scale - mean) / std``; what is not given is left out. It is computed in
    ``float32`` as one multiplication by ``scale / std`` and one subtraction of ``mean / std``.
    ``mean`` and ``std`` are therefore in the units of ``data * scale``, and in the order of the
    channels of ``data``.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]`` (C = 1).

    Writes:
        result: ``float32 [C, H, W]``, contiguous, a new array.

    Batch:
        1 or more; items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or no such image, or ``mean`` or ``std`` is a list whose
            length is not C.

    Source:
        Own; the formula is that of torchvision's ``Normalize`` after a scale.
    """

    class Options(headrace.Options):
        """What happens to the values."""

        scale: FiniteFloat | None = Field(
            default=None, description="Factor, multiplied first (no unit); none means 1."
        )
        mean: FiniteFloat | PerChannel | None = Field(
            default=None,
            description="Subtracted after scaling, in scaled values: one number or one per channel.",
        )
        std: FiniteFloat | PerChannel | None = Field(
            default=None,
            description="Divided by last, in scaled values, not 0: one number or one per channel.",
        )

        positional = ("scale", "mean", "std")

        @model_validator(mode="after")
        def _fit_together(self) -> Self:
            stds = self.std if isinstance(self.std, tuple) else (self.std,)
            if 0 in stds:
                raise ValueError("std must not be 0")
            lengths = {len(v) for v in (self.mean, self.std) if isinstance(v, tuple)}
            if len(lengths) > 1:
                raise ValueError("mean and std must have one value per channel, both as many")
            return self

    expected = "an image: uint8 or float32 [H, W, C] or [H, W]"

    def build(self, options: Any) -> Callable[[Any], Any]:
        """Give `headrace_cv.image_to_tensor` with the options filled in."""
        from headrace_cv.tensors import Normalization, image_to_tensor

        normalization = Normalization(options.scale, options.mean, options.std)
        return functools.partial(image_to_tensor, normalization=normalization)
