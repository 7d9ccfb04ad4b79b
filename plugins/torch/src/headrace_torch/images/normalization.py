"""Normalises images by scale, mean and standard deviation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from headrace.errors import InputError
from headrace_torch.requests.tensors import described

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Normalization"]

_FAR = 1e9
"""A mean beyond this, in the units of the pixels, is not near any of them."""


class Normalization:
    """The function ``(x * scale - mean) / std``, as one offset and one factor that are computed once.

    It is computed as ``(x - mean / scale) * (scale / std)``: of a value near the mean the difference is exact,
    where ``x * (scale / std) - mean / std`` loses its last digits. On a CUDA device it is the latter, in one kernel,
    whose absolute error is that of one rounding.

    Args:
        scale: Multiplied first. None means 1.
        mean: Subtracted then, one number or one per channel. None means 0.
        std: Divided by last, one number or one per channel, not 0. None means 1.
        dtype: The floating dtype of the result. None: that of a floating image, ``float32`` for
            ``uint8``.
        device: The device of the images.

    Attributes:
        channels: The number of channels that an image must have. None means any number.

    Raises:
        ValueError: ``mean`` and ``std`` have different lengths, ``std`` has a 0, or a quotient is too large for
            ``float32``.
    """

    def __init__(
        self,
        scale: float | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        counts = {len(v) for v in (mean, std) if v is not None and not isinstance(v, (int, float))}
        if len(counts) > 1:
            raise ValueError("mean and std have different lengths")
        self.channels = next(iter(counts), None)
        self.dtype = dtype
        divisor = _column(1.0 if std is None else std)
        if not divisor.all():
            raise ValueError("std is 0")
        subtracted = _column(0.0 if mean is None else mean)
        factor = ((1.0 if scale is None else scale) / divisor).float()
        offset = (-subtracted / divisor).float()
        if not (factor.isfinite().all() and offset.isfinite().all()):
            raise ValueError("scale / std or mean / std is too large for float32")
        self._factor = factor.to(device) if bool((factor != 1).any()) else None
        self._offset = offset.to(device) if bool((offset != 0).any()) else None
        # A scale of 0, or so small that the mean is beyond all pixels, leaves nothing to subtract first.
        centre = subtracted / (1.0 if scale is None else scale)
        centred = self._offset is not None and bool((centre.abs() < _FAR).all())
        self._centre = centre.float().to(device) if centred else None
        self._in_one = torch.device(device).type == "cuda"

    def apply(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise ``[N, C, H, W]``, computed in ``float32`` (``float64`` stays). A new tensor.

        Raises:
            InputError: The number of channels is not the number of values of ``mean`` or ``std``.
        """
        if self.channels not in (None, images.shape[1]):
            raise InputError(
                "mean and std do not fit the image",
                key="data",
                expected=f"{self.channels} channel(s), one per value of mean and std",
                got=described(images),
            )
        dtype = self.dtype or (images.dtype if images.is_floating_point() else torch.float32)
        if self._factor is not None and self._offset is not None and self._in_one:
            # One kernel converts, multiplies and adds, because launching three kernels costs more than their work,
            # and no kernel of torch converts, subtracts and multiplies.
            # (On the CPU torch computes `addcmul` many times slower than the three steps below.)
            values = torch.addcmul(self._offset, images, self._factor)
            return values if values.dtype == dtype else values.to(dtype)
        wide = torch.float64 if images.dtype == torch.float64 else torch.float32
        values = images if images.dtype == wide else images.to(wide)
        # A tensor that is new already is changed in place, since another new tensor would cost as much again.
        if self._centre is not None:
            values = values - self._centre if values is images else values.sub_(self._centre)
        if self._factor is not None:
            values = values * self._factor if values is images else values.mul_(self._factor)
        if self._offset is not None and self._centre is None:
            values = values + self._offset if values is images else values.add_(self._offset)
        if values.dtype != dtype:
            return values.to(dtype)
        return values.clone() if values is images else values


def _column(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.float64).reshape(-1, 1, 1)
