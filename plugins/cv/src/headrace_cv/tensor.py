"""`Mat2Tensor`: from an image to a network's input tensor; `Tensor2Mat`: from a tensor to an image."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal

from pydantic import FiniteFloat, field_validator, model_validator

from headrace.errors import Problem
from headrace_cv._fields import ImageOptions, PerChannel
from headrace_cv._per_image import PerImage, of_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Self

    from headrace import InitContext
    from headrace.keys import Request

__all__ = [
    "Mat2Tensor",
    "Tensor2Mat",
    "check_factors",
    "lint_normalization",
    "note_normalization",
    "refuse_zero",
]


Axes = Literal["chw", "hwc"]
"""The order of the axes of a tensor: planes one after the other, or channels side by side."""

_MOST = 3.4028234663852886e38
"""The greatest ``float32``."""


def check_factors(options: Any, *, inverse: bool = False) -> None:
    """Refuse a ``mean`` and ``std`` that do not fit together, or make factors too large for ``float32``."""
    means, stds = _listed(options.mean, 0.0), _listed(options.std, 1.0)
    if len({len(v) for v in (options.mean, options.std) if isinstance(v, tuple)}) > 1:
        raise ValueError("mean and std must have one value per channel, both as many")
    scale = 1.0 if options.scale is None else options.scale
    for mean, std in zip(means * len(stds), stds * len(means), strict=True):
        if max(abs(scale / std), abs(mean / std)) > _MOST:
            raise ValueError("scale / std or mean / std is too large for float32")
        if inverse and max(abs(std / scale), abs(mean / scale)) > _MOST:
            raise ValueError("std / scale or mean / scale is too large for float32")


def refuse_zero(value: Any) -> Any:
    """Refuse a divisor that is 0, or holds one."""
    if 0 in _listed(value, 1.0):
        raise ValueError("it must not be 0")
    return value


def _listed(value: Any, default: float) -> tuple[float, ...]:
    if isinstance(value, tuple):
        return value
    return (default if value is None else value,)


def lint_normalization(options: Any) -> Iterator[Problem]:
    """Yield a problem where ``scale``, ``mean`` and ``std`` are for different ranges of the values of a picture."""
    scale = 1.0 if options.scale is None else abs(options.scale)
    mean = max(map(abs, _listed(options.mean, 0.0)))
    std = max(map(abs, _listed(options.std, 1.0)))
    problem = None
    if scale > 1:
        problem = f"scale is a factor: it makes 0 to {255 * scale:g} of a picture's 0 to 255"
    elif scale == 1 and (std < 1 or 0 < mean < 1):
        problem = "mean and std are for values from 0 to 1, and those of a picture are 0 to 255"
    elif 255 * scale < 2 and (mean > 2 or std > 2):
        most = f"{255 * scale:.3g}"
        problem = f"mean and std are for values from 0 to 255, and scale makes 0 to {most}"
    if problem is not None:
        hint = "scale = 0.00392157 makes 0 to 1 of 0 to 255, and mean and std are in scaled values."
        yield Problem("normalization", problem, hint=hint)


def note_normalization(options: Any, context: InitContext) -> None:
    """Record which ``mean`` and ``std`` a backend applies.

    These keys of a node may also reach a backend of the same node that folds them into its network. That backend reads
    this record, and does not fold them: the values would be normalised twice.
    """
    if options.mean is not None or options.std is not None:
        applied: list[Any] = context.store.instance.get_or_create("normalized", list)
        applied.append((options.mean, options.std))


class Mat2Tensor(PerImage):
    """Turn an image into a float tensor, planar and unscaled unless the options say otherwise.

    ``result = (data * scale - mean) / std``. A missing option is left out. ``mean`` and
    ``std`` are in the units of ``data * scale``, and in the order of the channels of ``data``. The
    result is computed in ``float32``: one subtraction of ``mean / scale``, one multiplication by
    ``scale / std``. So values near the mean keep their digits.

    Reads:
        data: ``uint8`` or ``float32``, ``[H, W, C]`` with C from 1 to 4, or ``[H, W]`` (C = 1).

    Writes:
        result: ``float32 [C, H, W]``, with ``axes=hwc`` ``[H, W, C]``, contiguous, a new array.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing, is no such image or has more than ``max_pixels``, or
            ``mean`` or ``std`` is a list of another length than C.

    Source:
        Own. The formula of torchvision's ``Normalize`` after a scale.
    """

    class Options(ImageOptions):
        """The numbers to scale and normalise with.

        Attributes:
            scale: Factor, multiplied first (no unit); none means 1.
            mean: Subtracted after scaling, in scaled values: one number or one per channel.
            std: Divided by last, in scaled values, not 0: one number or one per channel.
            axes: Order of the axes of the result: chw or hwc.
        """

        scale: FiniteFloat | None = None
        mean: FiniteFloat | PerChannel | None = None
        std: FiniteFloat | PerChannel | None = None
        axes: Axes = "chw"

        positional = ("scale", "mean", "std")
        _divides = field_validator("std")(refuse_zero)

        @model_validator(mode="after")
        def _fit_together(self) -> Self:
            check_factors(self)
            return self

    @classmethod
    def lint(cls, options: Any, largest_batch: int) -> Iterator[Problem]:
        """Tell of a normalisation that contradicts the range of the values."""
        return lint_normalization(options)

    def init(self, options: Any, context: InitContext) -> None:
        """Build the function; record for later nodes of the instance which mean and std it applies."""
        super().init(options, context)
        note_normalization(options, context)

    def build(self, options: Any) -> Callable[[Request], None]:
        """Turn one image into a tensor."""
        from headrace_cv.functions.tensors import Normalization, tensor_maker

        normalization = Normalization(options.scale, options.mean, options.std)
        turned = tensor_maker(normalization, options.axes, options.max_pixels)
        return of_data(turned, self.expected)


class Tensor2Mat(PerImage):
    """Turn a float tensor into an image: the inverse of `Mat2Tensor`.

    ``result = (data * std + mean) / scale``, with the options of `Mat2Tensor`. A missing option is
    left out. The result is computed in ``float32``, rounded to the nearest integer (halves to the
    even integer) and limited to 0 and 255.

    Reads:
        data: ``float32``, ``[C, H, W]`` with C from 1 to 4, or ``[1, C, H, W]``; with ``axes=hwc`` ``[H, W, C]`` or
            ``[1, H, W, C]``.

    Writes:
        result: ``uint8 [H, W, C]``, contiguous, a new array.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing, is no such tensor, has more than ``max_pixels`` or holds
            NaN, or ``mean`` or ``std`` is a list of another length than C.

    Source:
        Own.
    """

    class Options(ImageOptions):
        """The numbers of `Mat2Tensor`.

        Attributes:
            scale: Divided by last, not 0 (no unit); none means 1.
            mean: Added before that, in scaled values: one number or one per channel.
            std: Multiplied first, in scaled values, not 0: one number or one per channel.
            axes: Order of the axes of the tensor: chw or hwc.
        """

        scale: FiniteFloat | None = None
        mean: FiniteFloat | PerChannel | None = None
        std: FiniteFloat | PerChannel | None = None
        axes: Axes = "chw"

        positional = ("scale", "mean", "std")
        _divide = field_validator("scale", "std")(refuse_zero)

        @model_validator(mode="after")
        def _can_be_undone(self) -> Self:
            check_factors(self, inverse=True)
            return self

    expected = "a tensor: float32 [C, H, W] or [1, C, H, W], C from 1 to 4, or as axes says"

    def build(self, options: Any) -> Callable[[Request], None]:
        """Turn one tensor into an image."""
        from headrace_cv.functions.tensors import Normalization, tensor_to_image

        normalization = Normalization(options.scale, options.mean, options.std).inverse()
        own = options.model_dump(include={"axes", "max_pixels"})
        turned = functools.partial(tensor_to_image, denormalization=normalization, **own)
        return of_data(turned, self.expected)
