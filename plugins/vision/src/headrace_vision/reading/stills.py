"""One picture from what a program holds: an array, an image of Pillow, bytes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, InputError
from headrace_vision.frames import check_pixels
from headrace_vision.reading.orientation import pixels_of_pillow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    import headrace

DECODE = "DecodeMat(formats=[bmp,tiff])"
"""What decodes stills where nobody says another expression: a word of headrace-cv."""

__all__ = ["DECODE", "StillDecoder", "as_image", "is_array", "is_pillow"]


def is_array(value: Any) -> bool:
    """Return whether a value is a picture in memory (it has a shape and a dtype)."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def is_pillow(value: Any) -> bool:
    """Return whether a value is an image of Pillow; Pillow is not imported for that."""
    return any(
        base.__module__ == "PIL.Image" and base.__name__ == "Image" for base in type(value).__mro__
    )


def as_image(value: Any, max_pixels: int) -> NDArray[np.uint8]:
    """Return a picture in memory as ``uint8 [H, W, 3]`` in the order blue, green, red.

    Args:
        value: ``uint8 [H, W, 3]`` in that order, ``uint8 [H, W]`` (gray), or an image of Pillow, which is turned as its EXIF data ask.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: It is something else, or too large.
    """
    import numpy as np

    if is_pillow(value):
        width, height = value.size
        check_pixels(width, height, max_pixels)  # Pillow decodes it only now
        return pixels_of_pillow(value)
    image: NDArray[np.uint8] = np.asarray(value)
    if image.ndim in (2, 3):
        check_pixels(image.shape[1], image.shape[0], max_pixels)
    if image.dtype == np.uint8 and image.ndim == 2 and image.size:
        return np.ascontiguousarray(np.repeat(image[..., None], 3, axis=2))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        expected = "uint8 [H, W, 3] (blue, green, red) or uint8 [H, W]"
        got = f"{image.dtype} {list(image.shape)}"
        raise InputError("this array is no picture", expected=expected, got=got)
    return image


class StillDecoder:
    """Decodes files of stills with a backend, by default `DECODE`.

    Args:
        decode: The expression. It gets the bytes of a file and answers ``uint8 [H, W, 3]``.
    """

    def __init__(self, decode: str) -> None:
        self._decode = decode
        self._pipes: dict[int, headrace.Pipeline] = {}
        self._lock = threading.Lock()

    def _pipe(self, max_pixels: int) -> headrace.Pipeline:
        """Return what decodes pictures of up to ``max_pixels``; it is built once."""
        import headrace

        with self._lock:
            if max_pixels not in self._pipes:
                config = {"backend": self._decode}
                try:
                    pipe = headrace.pipe({**config, "max_pixels": max_pixels})
                except ConfigError:  # a decoder of yours may have no such option
                    pipe = headrace.pipe(config)
                self._pipes[max_pixels] = pipe
            return self._pipes[max_pixels]

    def __call__(self, data: bytes, max_pixels: int) -> NDArray[np.uint8]:
        """Return the picture in a file as ``uint8 [H, W, 3]`` in the order blue, green, red.

        Args:
            data: The file.
            max_pixels: Most pixels (width x height).

        Raises:
            HeadraceError: It cannot be decoded, or is too large.
        """
        import numpy as np

        request = self._pipe(max_pixels)({"data": data})
        image = as_image(request["result"], max_pixels)
        return np.ascontiguousarray(image[..., ::-1]) if request.get("color") == "rgb" else image

    def close(self) -> None:
        """Close what was built."""
        for pipe in self._pipes.values():
            pipe.close()
