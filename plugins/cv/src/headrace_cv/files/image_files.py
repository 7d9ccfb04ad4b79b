"""Image files in memory: decode them, within limits, and encode them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

from headrace.errors import InputError
from headrace_cv.files.formats import FURTHER, NAMES, bytes_of_base64, format_of, other_format
from headrace_cv.files.headers import MAX_BYTES, check_image_file, still_png, view_of_bytes
from headrace_cv.files.orientation import png_orientation, webp_orientation
from headrace_cv.files.pillow_files import pillow_decoder, upright
from headrace_cv.functions.images import COLORS, as_image, convert_color, dense
from headrace_cv.functions.limits import MAX_PIXELS, check_choice, check_pixels
from headrace_formats.jpeg import plain_jpeg_size

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

__all__ = ["decode_image", "encode_image", "file_of_base64", "image_decoder"]

# Per format: the suffix, OpenCV's parameter for the quality, the longest side in pixels.
_ENCODERS: dict[str, tuple[str, int | None, int]] = {
    "jpeg": (".jpg", cv2.IMWRITE_JPEG_QUALITY, 65_500),
    "png": (".png", None, 1_000_000),
    "webp": (".webp", cv2.IMWRITE_WEBP_QUALITY, 16_383),
}


def decode_image(
    data: Any,
    *,
    max_pixels: int = MAX_PIXELS,
    max_bytes: int | None = None,
    exif_orientation: bool = True,
    formats: Collection[str] = (),
) -> NDArray[np.uint8]:
    """Decode a JPEG, PNG or WebP file, or one of ``formats``, to ``uint8 [H, W, 3]``, channels blue, green, red.

    Grey files give three equal channels, an alpha channel is dropped, 16 bits become 8, and of an
    animation the first picture is decoded (of an animated PNG file, the one that viewers without
    animation show).

    Args:
        data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array.
        max_pixels: Most pixels (width x height). Checked in the header, before the decoder
            reserves memory.
        max_bytes: Most bytes of the file. None means any number.
        exif_orientation: Turn and mirror the picture as its EXIF data ask, or the XMP data of a PNG file.
        formats: What is decoded beside JPEG, PNG and WebP, by Pillow: ``"bmp"``, ``"tiff"``, ``"gif"``,
            ``"avif"``, ``"ppm"`` (also PBM and PGM), ``"jpeg2000"``.

    Raises:
        InputError: The file has another format, exceeds a limit, or is truncated or broken.
        MissingDependencyError: Pillow is not installed, or cannot decode one of ``formats``.
        ValueError: ``formats`` has an unknown name.
    """
    for name in formats:
        check_choice("each of formats", name, NAMES)
    decode = image_decoder(
        max_pixels=max_pixels,
        max_bytes=max_bytes,
        exif_orientation=exif_orientation,
        formats=formats,
    )
    return decode(data)


def image_decoder(
    *, max_pixels: int, max_bytes: int | None, exif_orientation: bool, formats: Collection[str]
) -> Callable[[Any], NDArray[np.uint8]]:
    """Return `decode_image` with its options, for many files.

    Of a JPEG file as most encoders write it, only the header is read (`plain_jpeg_size`). Every other file is checked part by part (`check_image_file`). Files of ``formats`` are left to Pillow.

    Raises:
        MissingDependencyError: Pillow is not installed, or cannot decode one of ``formats``.
    """
    decode_further = _further_decoder(formats, max_pixels, exif_orientation=exif_orientation)
    most_bytes = MAX_BYTES if max_bytes is None else min(max_bytes, MAX_BYTES)
    flags: int = cv2.IMREAD_COLOR
    if not exif_orientation:
        flags |= cv2.IMREAD_IGNORE_ORIENTATION
    imdecode: Any = cv2.imdecode
    frombuffer, uint8 = np.frombuffer, np.dtype(np.uint8)

    def decode(data: Any) -> NDArray[np.uint8]:
        size, how, orientation = None, flags, 1
        if type(data) is bytes and len(data) <= most_bytes:
            size = plain_jpeg_size(data)
        if size is None or size[0] * size[1] > max_pixels:
            data = _within(data, max_bytes)
            pixels = decode_further(data)
            if pixels is not None:
                return pixels
            data, file_format = _checked_file(data, max_pixels)
            if exif_orientation and file_format != "jpeg":  # OpenCV turns JPEG files
                how = flags | cv2.IMREAD_IGNORE_ORIENTATION
                find = png_orientation if file_format == "png" else webp_orientation
                orientation = find(data)
        try:
            image = imdecode(frombuffer(data, uint8), how)
        except cv2.error as error:
            raise _undecodable(data, f"data that the decoder refuses: {error}") from None
        if image is None:
            raise _undecodable(data, "data that the decoder refuses")
        decoded: NDArray[np.uint8] = image
        return decoded if orientation == 1 else upright(decoded, orientation)

    return decode


def file_of_base64(data: Any) -> bytes:
    """Return the file that a text, or its bytes, are base64 or a data URL of.

    Raises:
        InputError: ``data`` is something else.
    """
    text = data.encode("utf-8", "replace") if isinstance(data, str) else view_of_bytes(data)
    return bytes_of_base64(bytes(text))


def _further_decoder(
    formats: Collection[str], max_pixels: int, *, exif_orientation: bool
) -> Callable[[memoryview], NDArray[np.uint8] | None]:
    """Return a function that decodes files of ``formats``, of a JPEG, PNG or WebP file it makes None.

    Where ``formats`` names no further format, it makes None of every file.
    """
    further = [name for name in FURTHER if name in formats]
    if not further:
        return lambda _: None
    by_pillow = pillow_decoder(further, max_pixels=max_pixels, exif_orientation=exif_orientation)

    def decode(view: memoryview) -> NDArray[np.uint8] | None:
        file_format = format_of(view)
        if file_format in further:
            return by_pillow(view, file_format)
        if file_format not in ("jpeg", "png", "webp"):
            raise other_format(view, further)
        return None

    return decode


def _within(data: Any, max_bytes: int | None) -> memoryview:
    """Return the bytes of a file of any format; refuse one that is too long."""
    view = view_of_bytes(data)
    if max_bytes is not None and len(view) > max_bytes:
        problem, expected = "the image file is too long", f"at most {max_bytes} bytes"
        hint = "The option max_bytes sets this limit."
        raise InputError(problem, expected=expected, got=f"{len(view)} bytes", hint=hint)
    return view


def _checked_file(view: memoryview, max_pixels: int) -> tuple[memoryview, str]:
    """Check the structure of a JPEG, PNG or WebP file, and the size of its picture; return what is decoded, and its format."""
    header = check_image_file(view)
    check_pixels(header.height, header.width, max_pixels)
    return still_png(view) if header.format == "png" else view, header.format


def _undecodable(data: Any, why: str) -> InputError:
    header = check_image_file(data)
    size = f"{header.width} x {header.height}"
    problem = f"the {NAMES[header.format]} file of {size} pixels is broken"
    return InputError(problem, expected="a file that can be decoded", got=why)


def encode_image(
    image: Any,
    color: str,
    format: str = "jpeg",  # noqa: A002 - the word for it
    *,
    quality: int = 95,
    max_pixels: int = MAX_PIXELS,
) -> bytes:
    """Encode an image as a file in memory.

    Args:
        image: ``uint8``, with the channels of ``color``.
        color: The order of its channels: ``"rgb"``, ``"bgr"`` or ``"gray"``.
        format: ``"jpeg"``, ``"png"`` or ``"webp"``.
        quality: Quality of JPEG and lossy WebP, 1 to 100. PNG is lossless and ignores it.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: ``image`` is no image, or not ``uint8``, or too large, or does not fit ``color``,
            or a side is longer than the format allows.
        ValueError: ``color`` or ``format`` is unknown, or ``quality`` is no whole number from 1 to 100.
    """
    check_choice("color", color, COLORS)
    check_choice("format", format, _ENCODERS)
    if not hasattr(quality, "__index__") or not 1 <= quality <= 100:
        raise ValueError(f"quality is a whole number from 1 to 100, not {quality!r}")
    pixels = as_image(image, max_pixels)
    if pixels.dtype != np.uint8:
        expected, got = "uint8 [H, W, C] or [H, W]", f"{pixels.dtype} {list(pixels.shape)}"
        raise InputError("only whole numbers of 8 bits can be encoded", expected=expected, got=got)
    suffix, quality_flag, longest = _ENCODERS[format]
    if max(pixels.shape[:2]) > longest:
        expected, got = f"sides of at most {longest} pixels", f"{pixels.dtype} {list(pixels.shape)}"
        raise InputError(f"the image is too large for {format}", expected=expected, got=got)
    pixels = convert_color(pixels, color, "gray" if color == "gray" else "bgr")
    parameters = [] if quality_flag is None else [quality_flag, int(quality)]
    encoded = cv2.imencode(suffix, dense(pixels), parameters)[1]
    return encoded.tobytes()
