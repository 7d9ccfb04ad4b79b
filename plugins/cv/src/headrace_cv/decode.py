"""`DecodeMat`: from a file in memory to an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from headrace_cv._fields import ImageOptions
from headrace_cv._per_image import PerImage, read_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.keys import Request

__all__ = ["DecodeMat"]

Further = Literal["bmp", "tiff", "gif", "avif", "ppm", "jpeg2000", "jpeg", "png", "webp"]
_ALWAYS = frozenset(("jpeg", "png", "webp"))


class DecodeMat(PerImage):
    """Decode a JPEG, PNG or WebP file to an image in OpenCV's order: blue, green, red.

    Grey files give three equal channels, an alpha channel is dropped (not blended), 16 bits per
    channel become 8, and of an animation the first picture is decoded (of an animated PNG file, the
    picture shown by viewers without animation). Size and completeness are checked in the file's
    structure before the decoder reserves memory: a truncated file is refused.

    ``formats`` adds further formats. Pillow decodes them under the same limits, and finds fewer of the errors in the
    middle of their data.

    Reads:
        data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array: one JPEG, PNG or WebP file, or one of
            ``formats``. With ``encoding=base64`` a text, or its bytes: base64 of a file, or a data URL.

    Writes:
        result: ``uint8 [H, W, 3]``, a new array.
        color: ``"bgr"``.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or of another type or format, exceeds a limit, or the file
            is truncated or broken.

    Source:
        Own. The decoders of OpenCV's ``imdecode``, the checks of `headrace_cv.check_image_file`. The decoders of
        ``formats`` are Pillow's.
    """

    class Options(ImageOptions):
        """The limits, and whether the picture is turned as its EXIF data ask.

        Attributes:
            max_bytes: Longest file, in bytes; none means any length.
            exif_orientation: Turn and mirror the picture as its EXIF data ask, or the XMP data of a PNG file (true or
                false).
            formats: Formats that are decoded beside JPEG, PNG and WebP, by Pillow (names): bmp, tiff, gif, avif, ppm,
                jpeg2000.
            encoding: How the file is written: base64, also as a data URL; none: its bytes as they are.
        """

        max_bytes: int | None = Field(None, ge=1)
        exif_orientation: bool = True
        formats: tuple[Further, ...] = ()
        encoding: Literal["base64"] | None = None

        @field_validator("formats")
        @classmethod
        def _adds_something(cls, value: tuple[str, ...]) -> tuple[str, ...]:
            if value and not set(value) - _ALWAYS:
                raise ValueError(
                    "JPEG, PNG and WebP are always decoded: formats names those that are decoded beside them"
                )
            return value

    writes: tuple[str, ...] | type = ("result", "color")
    expected = "a JPEG, PNG or WebP file as bytes"

    def decoder(self, options: Any) -> Callable[[Any], Any]:
        """Return a function that decodes a file."""
        from headrace_cv.files.image_files import file_of_base64, image_decoder

        names = set(DecodeMat.Options.model_fields) - {"encoding"}
        image_of = image_decoder(**options.model_dump(include=names))

        def of_base64(data: Any) -> Any:
            return image_of(file_of_base64(data))

        return image_of if options.encoding is None else of_base64

    def build(self, options: Any) -> Callable[[Request], None]:
        """Decode one file, and say the order of its channels."""
        decode, expected = self.decoder(options), self.expected

        def work(request: Request) -> None:
            data = request["data"] if "data" in request else read_key(request, "data", expected)
            request["result"] = decode(data)
            request["color"] = "bgr"

        return work
