"""One picture from what a program holds: an array, an image of Pillow, bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    import headrace

__all__ = ["StillDecoder", "as_image", "is_array", "is_pillow"]


def is_array(value: Any) -> bool:
    """Return whether a value is a picture in memory (it has a shape and a dtype)."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def is_pillow(value: Any) -> bool:
    """Return whether a value is an image of Pillow; Pillow is not imported for that."""
    return any(
        one.__module__ == "PIL.Image" and one.__name__ == "Image" for one in type(value).__mro__
    )


def as_image(value: Any) -> NDArray[np.uint8]:
    """Return a picture in memory as ``uint8 [H, W, 3]`` in the order blue, green, red.

    Args:
        value: ``uint8 [H, W, 3]`` in that order, ``uint8 [H, W]`` (gray), or an image of Pillow.

    Raises:
        InputError: It is something else.
    """
    import numpy as np

    if is_pillow(value):
        return np.ascontiguousarray(np.asarray(value.convert("RGB"))[..., ::-1])
    image: NDArray[np.uint8] = np.asarray(value)
    if image.dtype == np.uint8 and image.ndim == 2 and image.size:
        return np.ascontiguousarray(np.repeat(image[..., None], 3, axis=2))
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise InputError(
            "this array is no picture",
            expected="uint8 [H, W, 3] (blue, green, red) or uint8 [H, W]",
            got=f"{image.dtype} {list(image.shape)}",
        )
    return image


class StillDecoder:
    """Decodes files of stills with a backend, by default ``DecodeMat`` of headrace-cv.

    Args:
        decode: The expression; it gets the bytes of a file and answers ``uint8 [H, W, 3]``.
    """

    def __init__(self, decode: str) -> None:
        self._decode = decode
        self._pipe: headrace.Pipeline | None = None

    def open(self) -> None:
        """Build the backend, once.

        Raises:
            HeadraceError: It cannot be built.
        """
        import headrace

        if self._pipe is None:
            self._pipe = headrace.pipe({"backend": self._decode})

    def __call__(self, data: bytes) -> NDArray[np.uint8]:
        """Return the picture in a file as ``uint8 [H, W, 3]`` in the order blue, green, red.

        Raises:
            HeadraceError: It cannot be decoded.
        """
        import numpy as np

        self.open()
        if self._pipe is None:  # for the type checker: `open` has set it
            raise RuntimeError("the decoder is not open")
        request = self._pipe({"data": data})
        image = as_image(request["result"])
        return np.ascontiguousarray(image[..., ::-1]) if request.get("color") == "rgb" else image

    def close(self) -> None:
        """Close the backend."""
        if self._pipe is not None:
            self._pipe.close()
