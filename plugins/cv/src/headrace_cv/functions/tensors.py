"""From images to normalised float tensors, which networks read, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from headrace.errors import InputError
from headrace_cv.functions.arrays import array_of, describe
from headrace_cv.functions.images import as_image, dense
from headrace_cv.functions.limits import MAX_PIXELS, check_choice, check_pixels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["Normalization", "blob_params", "image_to_tensor", "tensor_maker", "tensor_to_image"]


AXES = ("chw", "hwc")
"""The orders of the axes of a tensor: planes one after the other, or channels side by side."""

_FAR = 1e9
"""A mean beyond this, in the units of the pixels, is not near any of them."""

_FEW = 300_000
"""Up to this many values, a wait for the interpreter lock may take longer than the work itself."""


class Normalization:
    """``(x * scale - mean) / std`` as one offset and one factor, made once for many images.

    It is computed in ``float32`` as ``(x - mean / scale) * (scale / std)``: of a value near the mean the
    difference is exact, where ``x * (scale / std) - mean / std`` would lose its last digits.

    Args:
        scale: The factor of the first step. None means 1.
        mean: The value that the second step subtracts, one number or one per channel. None means 0.
        std: The divisor of the last step, one number or one per channel, not 0. None means 1.

    Attributes:
        channels: How many channels an image must have. None means any number.

    Raises:
        ValueError: ``std`` holds 0, ``mean`` or ``std`` is no list of numbers, they have different lengths, or
            ``scale / std`` or ``mean / std`` is too large for ``float32``.
    """

    def __init__(
        self,
        scale: float | None = None,
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> None:
        lists = [np.shape(value) for value in (mean, std) if value is not None and np.ndim(value)]
        if any(len(shape) > 1 or 0 in shape for shape in lists):
            raise ValueError("mean and std are one number or one per channel")
        counts = {shape[0] for shape in lists}
        if len(counts) > 1:
            raise ValueError("mean and std have different lengths")
        self.channels: int | None = next(iter(counts), None)
        divisor = np.asarray(1.0 if std is None else std, np.float64).reshape(-1, 1, 1)
        if not divisor.all():
            raise ValueError("std is 0")
        subtracted = np.asarray(0.0 if mean is None else mean, np.float64).reshape(-1, 1, 1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._exact = ((1.0 if scale is None else scale) / divisor, -subtracted / divisor)
            self._factor, self._offset = (values.astype(np.float32) for values in self._exact)
            centre = subtracted / (1.0 if scale is None else np.float64(scale))
            self._centre = centre.astype(np.float32)
        if not (np.isfinite(self._factor).all() and np.isfinite(self._offset).all()):
            raise ValueError("scale / std or mean / std is too large for float32")
        # A scale of 0, or so small that the mean is beyond all pixels, leaves nothing to subtract first.
        self._centres = bool((abs(centre) < _FAR).all())
        self._scales = bool((self._factor != 1).any())
        self._shifts = bool((self._offset != 0).any())

    def inverse(self) -> Normalization:
        """Return the normalization that undoes this one.

        Raises:
            ValueError: ``scale`` is 0, or the inverse is too large for float32.
        """
        factor, offset = self._exact
        if not factor.all():
            raise ValueError("scale is 0: it cannot be undone")
        mean, std = (
            values.item() if values.size == 1 and self.channels != 1 else values.ravel().tolist()
            for values in (offset, factor)
        )
        return Normalization(1.0, mean, std)

    def apply(self, values: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the normalised ``values`` to ``out``. Results too large become infinite.

        Args:
            values: ``uint8`` or ``float32``, ``[C, H, W]``; where `channels` is None, of any shape.
            out: ``float32`` of the same shape; ``values`` itself to normalise in place.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            if self._shifts and self._centres:
                values = np.subtract(values, self._centre, out)
            if self._scales or values is not out:
                np.multiply(values, self._factor, out)
            if self._shifts and not self._centres:
                out += self._offset


def blob_params(normalization: Normalization, channels: int) -> Any:
    """Return the parameters with which OpenCV subtracts and multiplies as ``normalization`` does, bit for bit."""
    params, missing = cv2.dnn.Image2BlobParams(), (0.0,) * (4 - channels)
    params.mean, params.scalefactor = (
        (*np.broadcast_to(values.ravel(), channels).tolist(), *missing)
        for values in (normalization._centre, normalization._factor)
    )
    return params


_UNCHANGED = Normalization()


def image_to_tensor(
    image: Any,
    normalization: Normalization = _UNCHANGED,
    *,
    axes: str = "chw",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.float32]:
    """Turn an image into a new contiguous ``float32 [C, H, W]``, or ``[H, W, C]``.

    Args:
        image: See `headrace_cv.functions.images`. ``[H, W]`` gives C = 1.
        normalization: What happens to the values. The default leaves them as they are.
        axes: The order of the axes: ``"chw"`` or ``"hwc"``.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: ``image`` is no image, is too large, or has another number of channels than
            ``normalization``.
        ValueError: ``axes`` is unknown.
    """
    return tensor_maker(normalization, axes, max_pixels)(image)


def tensor_maker(
    normalization: Normalization, axes: str, max_pixels: int
) -> Callable[[Any], NDArray[np.float32]]:
    """Return `image_to_tensor` with its options, for many images.

    Raises:
        ValueError: ``axes`` is unknown.
    """
    check_choice("axes", axes, AXES)
    is_planar, count = axes == "chw", normalization.channels
    keeps_order = not is_planar and count is None
    empty, float32 = np.empty, np.dtype(np.float32)
    blob: Callable[..., Any] = cv2.dnn.blobFromImageWithParams
    few = () if keeps_order or not normalization._centres else (3, 4)
    params_of = {n: blob_params(normalization, n) for n in few if count in (None, n)}

    def turned(image: Any) -> NDArray[np.float32]:
        pixels = as_image(image, max_pixels)
        values = pixels if pixels.ndim == 3 else pixels[:, :, None]
        height, width, channels = values.shape
        if count is not None and count != channels:
            problem = "mean and std do not fit the image"
            expected = f"{count} channel(s), one per value of mean and std"
            raise InputError(problem, expected=expected, got=f"{pixels.dtype} {list(pixels.shape)}")
        if channels in params_of and pixels.size <= _FEW:
            # One call, which lets the interpreter lock go once and makes no array.
            tensor = empty((channels, height, width), float32)
            pixels = pixels if pixels.flags.c_contiguous else dense(pixels)
            blob(pixels, tensor[None], params_of[channels])
        elif keeps_order or channels == 1:
            tensor = empty(values.shape if keeps_order else (1, height, width), float32)
            normalization.apply(values.reshape(tensor.shape), tensor)
        else:
            # To split the channels first and convert them afterwards is faster than one strided pass.
            planes = empty((channels, height, width), pixels.dtype)
            cv2.split(dense(pixels), list(planes))
            tensor = planes.astype(float32, copy=False)
            normalization.apply(tensor, tensor)
        if is_planar or keeps_order:
            return tensor
        if channels == 1:
            return tensor.reshape(height, width, 1)
        # Merging planes that are ready is faster than computing with channels that lie side by side.
        merged = empty((height, width, channels), float32)
        cv2.merge(list(tensor), merged)
        return merged

    return turned


def tensor_to_image(
    tensor: Any,
    denormalization: Normalization = _UNCHANGED,
    *,
    axes: str = "chw",
    max_pixels: int = MAX_PIXELS,
) -> NDArray[np.uint8]:
    """Turn a tensor into a new image, ``uint8 [H, W, C]``.

    Values are rounded to the nearest integer, halves to the even one, and limited to 0 and 255.

    Args:
        tensor: ``float32``, ``[C, H, W]`` with C from 1 to 4, or ``[1, C, H, W]``, or the same as ``axes`` says.
        denormalization: What happens to the values first: `Normalization.inverse` of what made
            them. The default leaves them as they are.
        axes: The order of the axes of ``tensor``: ``"chw"`` or ``"hwc"``.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: ``tensor`` is no such tensor, is too large, holds NaN after ``denormalization``,
            or has another number of channels than ``denormalization``.
        ValueError: ``axes`` is unknown.
    """
    check_choice("axes", axes, AXES)
    array = array_of(tensor)
    planes = array[0] if array is not None and array.ndim == 4 and len(array) == 1 else array
    if axes == "hwc" and planes is not None and planes.ndim == 3:
        planes = planes.transpose(2, 0, 1)
    is_tensor = planes is not None and planes.ndim == 3 and planes.dtype == np.float32
    if planes is None or not is_tensor or planes.size == 0 or len(planes) > 4:
        order = ", ".join(axes.upper())
        expected = f"float32 [{order}] or [1, {order}], C from 1 to 4, no side empty"
        problem = "this is no planar image" if axes == "chw" else "this is no image"
        raise InputError(problem, expected=expected, got=describe(tensor, array))
    channels, height, width = planes.shape
    check_pixels(height, width, max_pixels)
    if denormalization.channels not in (None, channels):
        problem = "mean and std do not fit the tensor"
        expected = f"{denormalization.channels} channel(s), one per value of mean and std"
        raise InputError(problem, expected=expected, got=describe(tensor, array))
    values = np.empty(planes.shape, np.float32)
    denormalization.apply(planes, values)
    if np.isnan(values).any():
        raise InputError("the tensor holds NaN", expected="numbers", got=describe(tensor, array))
    np.rint(values, out=values)
    np.clip(values, 0, 255, out=values)
    if channels == 1:
        return values.reshape(height, width, 1).astype(np.uint8)
    pixels = values.astype(np.uint8)
    return np.asarray(cv2.merge(list(pixels)), np.uint8)
