"""Image files in memory: decode them, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from headrace.errors import InputError
from headrace_cv.headers import check_image_file, view_of_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["decode_image"]


def decode_image(
    data: Any,
    *,
    max_pixels: int = 100_000_000,
    max_bytes: int | None = None,
    exif_orientation: bool = True,
) -> NDArray[np.uint8]:
    """Decode a JPEG, PNG or WebP file to ``uint8 [H, W, 3]``, channels blue, green, red.

    Grey files give three equal channels, an alpha channel is dropped, 16 bits become 8, of an
    animation the first picture is taken.

    Args:
        data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array.
        max_pixels: Most pixels (width x height); checked in the header, before memory is taken.
        max_bytes: Most bytes of the file; None means any number.
        exif_orientation: Turn and mirror the picture as its EXIF data ask.

    Raises:
        InputError: The format is another one, a limit is exceeded, or the file is cut off or
            broken.
    """
    view = view_of_bytes(data)
    if max_bytes is not None and len(view) > max_bytes:
        raise InputError(
            "the image file is too long",
            expected=f"at most {max_bytes} bytes",
            got=f"{len(view)} bytes",
            hint="The option max_bytes sets this limit.",
        )
    header = check_image_file(view)
    pixels = header.width * header.height
    if pixels > max_pixels:
        raise InputError(
            "the image is too large",
            expected=f"at most {max_pixels} pixels",
            got=f"{header.width} x {header.height} = {pixels} pixels",
            hint="The option max_pixels sets this limit.",
        )
    flags = cv2.IMREAD_COLOR
    if not exif_orientation:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    why = "data that the decoder refuses"
    try:
        image = cv2.imdecode(np.frombuffer(view, np.uint8), flags)
    except cv2.error as error:
        image, why = None, f"{why}: {error}"
    if image is None:
        what = f"the {header.format} file of {header.width} x {header.height} pixels is broken"
        raise InputError(what, expected="a file that can be decoded", got=why)
    return np.asarray(image, np.uint8)
