"""Image files of further formats, decoded by Pillow, which is imported when such a decoder is made.

Pillow reads the size of a picture before it reserves memory for the pixels, which OpenCV has no function for.
"""

from __future__ import annotations

import importlib
import io
import types
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from headrace.errors import InputError, MissingDependencyError
from headrace.plugins import library
from headrace_cv.files.formats import NAMES
from headrace_cv.functions.limits import check_pixels

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

__all__ = ["pillow_decoder", "upright"]

_CLASSES = {
    "bmp": ("PIL.BmpImagePlugin", "BmpImageFile"),
    "tiff": ("PIL.TiffImagePlugin", "TiffImageFile"),
    "gif": ("PIL.GifImagePlugin", "GifImageFile"),
    "avif": ("PIL.AvifImagePlugin", "AvifImageFile"),
    "ppm": ("PIL.PpmImagePlugin", "PpmImageFile"),
    "jpeg2000": ("PIL.Jpeg2KImagePlugin", "Jpeg2KImageFile"),
}
_ASKS_PILLOWS_LIMIT = {"tiff": "load_prepare", "gif": "_seek"}
"""The methods that compare a size with `PIL.Image.MAX_IMAGE_PIXELS`."""

_FEATURES = {"avif": "avif", "jpeg2000": "jpg_2000"}
_ORIENTATION = 0x0112
_INVERSE = {6: 8, 8: 6}  # all the others undo themselves


def upright(image: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Turn and mirror an image that is stored with an EXIF orientation of 1 to 8 (EXIF 2.32, tag 274)."""
    if orientation >= 5:
        image = np.asarray(cv2.transpose(image), np.uint8)
    flips = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}  # what is transposed (5) needs no more
    flip = flips.get(orientation)
    return image if flip is None else np.asarray(cv2.flip(image, flip), np.uint8)


def pillow_decoder(
    formats: Collection[str], *, max_pixels: int, exif_orientation: bool
) -> Callable[[memoryview, str], NDArray[np.uint8]]:
    """Return a function that decodes a file of one of ``formats`` to ``uint8 [H, W, 3]``: blue, green, red.

    The function takes the bytes of the file and its format, a key of `headrace_cv.files.formats.FURTHER`.

    Raises:
        MissingDependencyError: Pillow is not installed, or cannot decode one of the formats.
    """
    classes = {name: _with_limit(_class_of(name), name, max_pixels) for name in formats}

    def decode(view: memoryview, file_format: str) -> NDArray[np.uint8]:
        try:
            # The class itself: `Image.open` has a limit of its own, which holds for the whole process.
            opened = classes[file_format](io.BytesIO(view))
        except (MemoryError, InputError):
            raise
        except Exception as error:  # noqa: BLE001 - a decoder may raise anything for a broken file
            raise _broken(file_format, error) from None
        with opened as image:
            width, height = image.size
            check_pixels(height, width, max_pixels)
            if not width or not height:
                raise _broken(file_format, f"a header that says {width} x {height} pixels")
            try:
                orientation = image.getexif().get(_ORIENTATION, 1)
                image.load()
                pixels = _eight_bits(image)
            except (MemoryError, InputError):
                raise
            except Exception as error:  # noqa: BLE001 - a decoder may raise anything for a broken file
                raise _broken(file_format, error) from None
        known = orientation if orientation in range(1, 9) else 1
        if file_format == "tiff":  # Pillow has turned it already
            return pixels if exif_orientation else upright(pixels, _INVERSE.get(known, known))
        return upright(pixels, known) if exif_orientation else pixels

    return decode


def _class_of(file_format: str) -> type[Any]:
    module, name = _CLASSES[file_format]
    purpose = f"Pillow decodes {NAMES[file_format]} files"
    features = library("PIL.features", "headrace-cv[formats]", purpose)
    feature = _FEATURES.get(file_format)
    try:
        plugin: type[Any] = getattr(importlib.import_module(module), name)
        lacks = feature is not None and not features.check(feature)
    except ImportError:
        lacks = True
    if lacks:
        problem = f"the installed Pillow decodes no {NAMES[file_format]} files"
        hint = "Type `pip install --upgrade pillow`."
        raise MissingDependencyError(problem, distribution="headrace-cv", hint=hint)
    return plugin


def _with_limit(plugin: type[Any], file_format: str, max_pixels: int) -> type[Any]:
    """Return a class of Pillow that compares sizes with ``max_pixels``, not with Pillow's limit.

    That one is a variable of the process, which belongs to the program. So the method gets a scope of its own.
    """
    name = _ASKS_PILLOWS_LIMIT.get(file_format)
    if name is None:
        return plugin

    class Image:
        """`PIL.Image`, but for the function that compares."""

        def __getattr__(self, attribute: str) -> Any:
            return getattr(module, attribute)

        @staticmethod
        def _decompression_bomb_check(size: tuple[int, int], **_: Any) -> None:
            check_pixels(size[1], size[0], max_pixels)

    module = importlib.import_module("PIL.Image")
    method = getattr(plugin, name)
    scope = {**method.__globals__, "Image": Image()}
    own = types.FunctionType(method.__code__, scope, name, method.__defaults__, method.__closure__)
    return type(plugin.__name__, (plugin,), {name: own})


def _eight_bits(image: Any) -> NDArray[np.uint8]:
    """Return the pixels of a loaded image of Pillow as ``uint8 [H, W, 3]``: blue, green, red."""
    mode = image.mode
    if mode.startswith("I;16") or (mode == "I" and image.format == "PPM"):
        gray = np.asarray(image) >> 8  # as OpenCV makes 8 bits of 16
        return np.asarray(cv2.cvtColor(gray.astype(np.uint8), cv2.COLOR_GRAY2BGR), np.uint8)
    if mode in ("I", "F"):
        raise ValueError("it holds numbers of 32 bits, of which no range is white")
    image.info.pop("transparency", None)  # alpha is dropped, not blended
    rgb = np.asarray(image.convert("RGB"))
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), np.uint8)


def _broken(file_format: str, why: Exception | str) -> InputError:
    got = why if isinstance(why, str) else f"data that the decoder refuses: {why}"
    problem = f"the {NAMES[file_format]} file is broken or cut off"
    return InputError(problem, expected="a file that can be decoded", got=got)
