"""`CvtColorTensor` converts between colour orders; `NormalizeTensor` scales values and subtracts the mean."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal

from pydantic import FiniteFloat, field_validator, model_validator

import headrace
from headrace.errors import InputError
from headrace_torch.backends.base import PerImage, read_key
from headrace_torch.backends.fields import ColorName, PerChannel
from headrace_torch.requests.each import put_in_each

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    import torch
    from typing_extensions import Self

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["CvtColorTensor", "NormalizeTensor"]

_COLORS = ("rgb", "bgr", "gray")
_EXPECTED = " or ".join(map(repr, _COLORS))
_MOST = 3.4028234663852886e38
"""The greatest ``float32``, in which images are normalised."""


def _listed(value: float | tuple[float, ...] | None, default: float) -> tuple[float, ...]:
    if isinstance(value, tuple):
        return value
    return (default if value is None else value,)


class CvtColorTensor(PerImage):
    """Convert images to ``rgb``, ``bgr`` or ``gray`` from the order in the request's ``color``.

    Grey is 0.299 red + 0.587 green + 0.114 blue. ``uint8`` is within 1 of OpenCV.

    Reads:
        data: ``uint8`` or floating ``[C, H, W]``, or ``[N, C, H, W]`` with ``request_size = N``; C
            is 3 for ``rgb`` and ``bgr``, 1 for ``gray``.
        color: The order of ``data``: ``"rgb"``, ``"bgr"`` or ``"gray"``.

    Writes:
        result: Same dtype and number of dimensions, with the channels of the new colour: new
            memory, or ``data`` itself when it has the colour already.
        color: The order of ``result``: the option ``color``.

    Batch:
        1 or more. Images of one shape and colour are converted in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` or ``color`` is missing, ``data`` is no such image or on another
            device, ``color`` is another text, or ``data`` does not have the channels of ``color``.

    Source:
        Grey after ITU-R BT.601, as OpenCV's ``cvtColor``.
    """

    class Options(headrace.Options):
        """The colour to convert to.

        Attributes:
            color: Order of the channels of the result (a name).
        """

        color: ColorName

        positional = ("color",)

    # It overwrites the `color` that it reads, so a second run on the same request would convert wrongly.
    rerun = False
    reads = ("data", "color")
    writes = ("result", "color")
    how_key = "color"
    writes_keys = True

    def build(self, options: Any, context: InitContext) -> None:
        """Keep the target colour, and the functions for images."""
        from headrace_torch.images import transforms

        self._target, self._transforms = options.color, transforms

    def how(self, request: Request, rows: torch.Tensor) -> Hashable:
        """Return the colour that the request names."""
        color = read_key(request, "color", _EXPECTED)
        if not isinstance(color, str) or color not in _COLORS:
            got = repr(color) if isinstance(color, str) else type(color).__name__
            raise InputError("the color is unknown", key="color", expected=_EXPECTED, got=got)
        return color

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Convert."""
        return self._transforms.convert_color(whole, how, self._target)

    def done(self, requests: Sequence[Request], how: Any) -> None:
        """Write the colour of the results into the requests."""
        put_in_each(requests, "color", repeat(self._target))


class NormalizeTensor(PerImage):
    """Scale images and subtract the mean: ``result = (data * scale - mean) / std``.

    A missing option is left out of the formula. ``mean`` and ``std`` are in the units
    of ``data * scale``, and in the order of the channels of ``data``. It is computed in ``float32`` (``float64`` stays):
    one subtraction of ``mean / scale``, one multiplication by ``scale / std``. So values near the mean keep their
    digits. On a CUDA device ``data * (scale / std) - mean / std`` is computed, with the absolute error of one rounding.

    Reads:
        data: ``uint8`` or floating ``[C, H, W]`` with C 1, 3 or 4, or ``[N, C, H, W]`` with
            ``request_size = N``.

    Writes:
        result: Floating, same shape, new memory; of the option ``dtype``, else of the dtype of
            ``data``, or ``float32`` if that is ``uint8``.

    Batch:
        1 or more. Images of one shape are normalised in one call, a bad item fails alone.

    Raises:
        InputError: ``data`` is missing, no such image, or on another device, or ``mean`` or ``std``
            is a list of another length than C.

    Source:
        Own. The formula of torchvision's ``Normalize`` after a scale.
    """

    class Options(headrace.Options):
        """The computation on the values.

        Attributes:
            scale: Factor, multiplied first (no unit); none means 1.
            mean: Subtracted after scaling, in scaled values: one number or one per channel.
            std: Divided by last, in scaled values, not 0: one number or one per channel.
            dtype: The dtype of the result; none: that of a floating image, else float32.
        """

        scale: FiniteFloat | None = None
        mean: FiniteFloat | PerChannel | None = None
        std: FiniteFloat | PerChannel | None = None
        dtype: Literal["float16", "bfloat16", "float32"] | None = None

        positional = ("scale", "mean", "std")

        @field_validator("std")
        @classmethod
        def _divides(cls, std: Any) -> Any:
            if 0 in _listed(std, 1.0):
                raise ValueError("it must not be 0")
            return std

        @model_validator(mode="after")
        def _fit_together(self) -> Self:
            if len({len(v) for v in (self.mean, self.std) if isinstance(v, tuple)}) > 1:
                raise ValueError("mean and std must have one value per channel, both as many")
            means, stds = _listed(self.mean, 0.0), _listed(self.std, 1.0)
            scale = 1.0 if self.scale is None else self.scale
            for mean, std in zip(means * len(stds), stds * len(means), strict=True):
                if max(abs(scale / std), abs(mean / std)) > _MOST:
                    raise ValueError("scale / std or mean / std is too large for float32")
            return self

    def build(self, options: Any, context: InitContext) -> None:
        """Compute factor and offset, put them onto the device, and record mean and std for later elements."""
        from headrace_torch.images.normalization import Normalization
        from headrace_torch.models.running import DTYPES

        if options.mean is not None or options.std is not None:
            # `Mat2Tensor` of headrace-cv records them too. The keys `mean` and `std` of a node may also reach a backend
            # that folds them into its network. It reads this record, and then does not fold them.
            applied: list[Any] = context.store.instance.get_or_create("normalized", list)
            applied.append((options.mean, options.std))
        self._normalization = Normalization(
            options.scale,
            options.mean,
            options.std,
            dtype=DTYPES.get(options.dtype),
            device=self._place.device,
        )

    def compute(self, whole: torch.Tensor, how: Any) -> torch.Tensor:
        """Normalise."""
        return self._normalization.apply(whole)

    def close(self) -> None:
        """Drop factor and offset."""
        del self._normalization
        super().close()
