"""Images as tensors: resize, crop, pad, convert colour.

Images are ``uint8`` or floating, ``[N, C, H, W]`` with C 1, 3 or 4: every function works on N
images of one shape at once. No function changes its input. If there is nothing to do, the input
itself is returned, not a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from headrace.errors import InputError
from headrace_torch.requests.tensors import described

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "COLORS",
    "IMAGE",
    "INTERPOLATIONS",
    "MAX_PIXELS",
    "MAX_SIDE",
    "box_edges",
    "check_image",
    "convert_color",
    "crop_image",
    "cut_image",
    "pad_image",
    "resize_image",
    "resized_hw",
]

IMAGE = (
    "an image: uint8 or floating [C, H, W] with C 1, 3 or 4, or [N, C, H, W] with request_size N"
)
"""A text for errors that says what an image is."""

MAX_SIDE = 32_767
"""Longest side of a resulting image, in pixels, as in headrace-cv."""

INTERPOLATIONS = {"nearest": "nearest-exact", "linear": "bilinear", "cubic": "bicubic"}
"""torch's interpolation modes, by the names of the option ``interpolation``."""

MAX_PIXELS = 100_000_000
"""The most pixels of a crop that reaches beyond the image and is filled up, as in headrace-cv."""

COLORS = {"rgb": 3, "bgr": 3, "gray": 1}
"""The colour orders, and how many channels each has."""

_CHANNELS = (1, 3, 4)
_GRAY_OF_RGB = (0.299, 0.587, 0.114)


def check_image(images: torch.Tensor, key: str = "data") -> torch.Tensor:
    """Check that a tensor holds images, ``[N, C, H, W]``, and give it back.

    Raises:
        InputError: The tensor is neither ``uint8`` nor floating, has another rank, a C that is
            not 1, 3 or 4, or an empty side.
    """
    right = images.ndim == 4 and images.shape[1] in _CHANNELS and images.numel() > 0
    if not right or not (images.dtype == torch.uint8 or images.is_floating_point()):
        raise InputError("this is no image", key=key, expected=IMAGE, got=described(images))
    return images


def resized_hw(hw: tuple[int, int], height: int | None, width: int | None) -> tuple[int, int]:
    """Return the size of a resized image. A side that is None follows from the other one.

    The free side is the exact value rounded to the nearest integer, halves up, at least 1 pixel.

    Args:
        hw: Height and width of the image, in pixels.
        height: Height of the result, in pixels, or None.
        width: Width of the result, in pixels, or None. One of the two is given.

    Raises:
        InputError: The free side would exceed `MAX_SIDE`.
    """
    old_h, old_w = hw
    if height is None:
        if width is None:
            raise ValueError("height and width are both None")
        height = max(1, (2 * old_h * width + old_w) // (2 * old_w))
    elif width is None:
        width = max(1, (2 * old_w * height + old_h) // (2 * old_h))
    if max(height, width) > MAX_SIDE:
        raise InputError(
            "the image is too long and thin to keep its aspect ratio",
            key="data",
            expected=f"sides of at most {MAX_SIDE} pixels after resizing",
            got=f"{old_h} x {old_w} pixels, which become {height} x {width}",
        )
    return height, width


def resize_image(
    images: torch.Tensor,
    hw: tuple[int, int],
    *,
    interpolation: str = "linear",
    antialias: bool = False,
) -> torch.Tensor:
    """Resize images. Pixel centres lie at half coordinates, the dtype is kept.

    ``uint8`` is computed in ``float32``, rounded to the nearest integer, halves to the even one
    (with ``antialias`` up, as Pillow does), and limited to 0 and 255. ``float16`` and ``bfloat16`` are computed in ``float32`` too.

    Args:
        images: ``[N, C, H, W]``.
        hw: Height and width of the result, in pixels.
        interpolation: ``"nearest"`` (the pixel that holds the centre), ``"linear"`` or ``"cubic"``.
        antialias: When shrinking, average over all pixels under each new pixel, as Pillow does.

    Source:
        Without antialias OpenCV's ``resize``: ``uint8`` within 1, floating images within 1e-4 of the greatest value.
        With antialias Pillow's, with the rows first: ``uint8`` within 1 for linear, within 2 for cubic.
    """
    if tuple(images.shape[2:]) == tuple(hw):
        return images
    mode = INTERPOLATIONS[interpolation]
    if mode == "nearest-exact":
        # torch has it for bytes, and not for the floating dtypes of one byte.
        pixels = images.view(torch.uint8) if images.element_size() == 1 else images
        return functional.interpolate(pixels, hw, mode=mode).view(images.dtype)
    if antialias and images.dtype == torch.uint8:
        # Pillow resizes along the rows first, and rounds to whole numbers, halves up, after each of the two steps.
        for step in ((images.shape[2], hw[1]), hw):
            values = _averaged(images.float(), step, mode)
            images = values.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)
        return images
    narrow = images.dtype not in (torch.float32, torch.float64)
    values = images.float() if narrow else images
    if antialias:
        resized = _averaged(values, hw, mode)
    else:
        resized = functional.interpolate(values, hw, mode=mode, align_corners=False)
    return _back(resized, images.dtype) if narrow else resized


def _averaged(values: torch.Tensor, hw: tuple[int, int], mode: str) -> torch.Tensor:
    """Resize floating images with antialias.

    On the CPU torch (2.15 and earlier) gives wrong values for a result one pixel wide, and right ones for one pixel high.
    """
    turned = hw[1] == 1
    if turned:
        values, hw = values.transpose(2, 3), (hw[1], hw[0])
    averaged = functional.interpolate(values, hw, mode=mode, align_corners=False, antialias=True)
    return averaged.transpose(2, 3).contiguous() if turned else averaged


def _back(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert floating values to another dtype; for ``uint8`` they are rounded and limited to 0 and 255."""
    if dtype == torch.uint8:
        values = values.round_().clamp_(0, 255)
    return values.to(dtype)


def crop_image(
    images: torch.Tensor,
    box: Sequence[float],
    *,
    outside: str = "clip",
    fill_value: float | Sequence[float] = 0,
    key: str = "box",
) -> torch.Tensor:
    """Cut a box out of images: new memory, never a view.

    Args:
        images: ``[N, C, H, W]``.
        box: ``x1, y1, x2, y2`` in pixels, each rounded to the nearest integer, halves up. The box holds the
            pixels from ``x1`` to before ``x2`` and from ``y1`` to before ``y2``.
        outside: For a box that reaches beyond the image: ``"clip"`` cuts it off, ``"refuse"`` refuses it,
            ``"fill"`` fills the part outside with ``fill_value``.
        fill_value: One number, or one per channel. For ``uint8`` rounded, limited to what the dtype holds.
        key: The key of the request that held the box, for the error.

    Raises:
        InputError: The box holds no pixel of the image, reaches beyond it while ``outside`` is
            ``"refuse"``, or the filled crop would have more than `MAX_PIXELS` or a side above `MAX_SIDE`.
    """
    height, width = images.shape[2:]
    edges = box_edges((height, width), box, outside=outside, key=key)
    return cut_image(images, edges, fill_value=fill_value)


def box_edges(
    hw: tuple[int, int], box: Sequence[float], *, outside: str = "clip", key: str = "box"
) -> tuple[int, int, int, int]:
    """Return the edges of the crop for a box, in whole pixels: see `crop_image`.

    Args:
        hw: Height and width of the image, in pixels.
        box: ``x1, y1, x2, y2`` in pixels.
        outside: ``"clip"``, ``"refuse"`` or ``"fill"``.
        key: The key of the request that held the box, for the error.

    Raises:
        InputError: As `crop_image`.
    """
    height, width = hw
    x1, y1, x2, y2 = edges = [int((edge + 0.5) // 1) for edge in box]  # halves up
    _check_box(hw, edges, box, outside, key)
    if outside == "clip":
        return max(x1, 0), max(y1, 0), min(x2, width), min(y2, height)
    return x1, y1, x2, y2


def cut_image(
    images: torch.Tensor,
    edges: tuple[int, int, int, int],
    *,
    fill_value: float | Sequence[float] = 0,
) -> torch.Tensor:
    """Cut images at the edges of `box_edges`, in new memory. The part outside the image is filled."""
    x1, y1, x2, y2 = edges
    height, width = images.shape[2:]
    if x1 >= 0 and y1 >= 0 and x2 <= width and y2 <= height:
        return images[:, :, y1:y2, x1:x2].clone(memory_format=torch.contiguous_format)
    left, top = max(x1, 0), max(y1, 0)
    inside = images[:, :, top : min(y2, height), left : min(x2, width)]
    return _on_canvas(inside, (y2 - y1, x2 - x1), (top - y1, left - x1), fill_value)


def _check_box(
    hw: tuple[int, int], edges: Sequence[int], box: Sequence[float], outside: str, key: str
) -> None:
    """Refuse a box, rounded to ``edges``, that cannot be cut out of an image of this size."""
    height, width = hw
    x1, y1, x2, y2 = edges
    problem = None
    if max(x1, 0) >= min(x2, width) or max(y1, 0) >= min(y2, height):
        problem = "the box holds no pixel of the image"
    elif outside != "clip" and (x1 < 0 or y1 < 0 or x2 > width or y2 > height):
        if outside == "refuse":
            problem = "the box leaves the image"
        elif max(x2 - x1, y2 - y1) > MAX_SIDE or (x2 - x1) * (y2 - y1) > MAX_PIXELS:
            problem = "the crop would be too large"
    if problem is not None:
        raise InputError(
            problem,
            key=key,
            expected=f"x1 < x2 and y1 < y2, in pixels of an image {width} wide and {height} high",
            got=", ".join(f"{edge:g}" for edge in box),
        )


def pad_image(
    images: torch.Tensor,
    hw: tuple[int, int],
    *,
    fill_value: float | Sequence[float] = 0,
    centered: bool = False,
    key: str = "data",
) -> torch.Tensor:
    """Pad images to a size.

    Args:
        images: ``[N, C, H, W]``.
        hw: Height and width of the result, in pixels.
        fill_value: One number, or one per channel. In pixel values, for ``uint8`` rounded to the
            nearest integer, limited to what the dtype holds.
        centered: Put the image into the middle (an odd pixel of padding goes right or below), not
            into the upper left corner.
        key: The key of the request that is too large, for the error.

    Raises:
        InputError: The image is larger than the result, or does not have the channels of ``fill_value``.
    """
    height, width = images.shape[2:]
    if (height, width) == tuple(hw):
        return images
    if height > hw[0] or width > hw[1]:
        raise InputError(
            "the image is larger than the size it is padded to",
            key=key,
            expected=f"at most {hw[0]} x {hw[1]} pixels (height x width)",
            got=described(images),
        )
    corner = ((hw[0] - height) // 2, (hw[1] - width) // 2) if centered else (0, 0)
    return _on_canvas(images, hw, corner, fill_value)


def _on_canvas(
    images: torch.Tensor,
    hw: tuple[int, int],
    corner: tuple[int, int],
    value: float | Sequence[float],
) -> torch.Tensor:
    """Put images onto a new canvas that is filled with one value, or with one value per channel."""
    (number, channels, height, width), (top, left) = images.shape, corner
    value = _limited(value, images.dtype)
    if isinstance(value, (int, float)):
        margins = (left, hw[1] - left - width, top, hw[0] - top - height)
        return torch.constant_pad_nd(images, margins, value)
    if len(value) != channels:
        raise InputError(
            "the values of the padding (`fill_value`) do not fit the image",
            key="data",
            expected=f"{len(value)} channel(s), one per value",
            got=described(images),
        )
    canvas = images.new_empty((number, channels, *hw))
    for channel, fill in enumerate(value):
        canvas[:, channel] = fill
    canvas[:, :, top : top + height, left : left + width] = images
    return canvas


def _limited(value: float | Sequence[float], dtype: torch.dtype) -> Any:
    """Limit numbers to what the dtype holds; for ``uint8`` round them first, halves to the even one."""
    if not isinstance(value, (int, float)):
        return [_limited(number, dtype) for number in value]
    if dtype == torch.uint8:
        return min(max(round(value), 0), 255)
    most = torch.finfo(dtype).max
    return min(max(value, -most), most)


def convert_color(images: torch.Tensor, source: str, target: str) -> torch.Tensor:
    """Convert images between ``"rgb"``, ``"bgr"`` and ``"gray"``.

    Grey is 0.299 red + 0.587 green + 0.114 blue, ``uint8`` rounded to the nearest integer.

    Args:
        images: ``[N, C, H, W]`` with the channels of ``source``.
        source: The order of the channels of ``images``.
        target: The order of the channels of the result.

    Raises:
        InputError: ``images`` do not have the channels of ``source``.

    Source:
        ITU-R BT.601 for grey, as OpenCV's ``cvtColor`` (``uint8``: within 1).
    """
    if images.shape[1] != COLORS[source]:
        raise InputError(
            f"the image is not {source}",
            key="data",
            expected=f"{COLORS[source]} channel(s), as its color is {source!r}",
            got=described(images),
        )
    if source == target:
        return images
    if source == "gray":
        return images.repeat(1, 3, 1, 1)
    if target != "gray":
        return images.flip(1)
    red, green, blue = images.unbind(1) if source == "rgb" else images.flip(1).unbind(1)
    wide = images.dtype in (torch.float32, torch.float64)
    weighted = [
        (plane if wide else plane.float()) * weight
        for plane, weight in zip((red, green, blue), _GRAY_OF_RGB, strict=True)
    ]
    gray = (weighted[0] + weighted[1] + weighted[2]).unsqueeze(1)
    return gray if wide else _back(gray, images.dtype)
