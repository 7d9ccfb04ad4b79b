"""Read format and size of a JPEG, PNG or WebP file, and check that it is whole, without decoding it.

Decoders are lenient: some give a partly grey picture for a truncated file, and all of them allocate the memory
that a forged header asks for. So this module walks a file from its first to its
last part before a decoder sees the file: it must be of one of the three formats, name the size of
its picture, and be whole.
"""

from __future__ import annotations

import os
import struct
import zlib
from typing import Any, NamedTuple

from headrace.errors import InputError
from headrace_cv.files.formats import NAMES, error_of_base64, other_format
from headrace_formats.jpeg import JpegError, read_jpeg_header

__all__ = [
    "MAX_BYTES",
    "MAX_PARTS",
    "ImageHeader",
    "check_image_file",
    "still_png",
    "view_of_bytes",
]

MAX_PARTS = 100_000
"""Most chunks in one PNG or WebP file; real files stay far below."""

MAX_BYTES = (1 << 31) - 1
"""Most bytes of one file, whatever the option ``max_bytes`` allows: decoders count in 32 bits."""

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class ImageHeader(NamedTuple):
    """The format of a file and the size of its picture.

    Attributes:
        format: ``"jpeg"``, ``"png"`` or ``"webp"``.
        width, height: Size in pixels as stored, before any rotation that EXIF asks for.
    """

    format: str
    width: int
    height: int


def _exposed(data: Any) -> Any:
    """Return an object with the buffer of ``data``; numpy gives the buffers of other libraries' arrays."""
    if isinstance(data, bytes):
        return bytes(data)  # the buffer of `numpy.bytes_` is one element, not a row of bytes
    if hasattr(data, "__array__"):
        return data.__array__()
    if hasattr(data, "__dlpack__"):
        import numpy as np

        return np.from_dlpack(data)
    if hasattr(type(data), "__array_interface__"):
        import numpy as np

        return np.asarray(data)
    return data


_OF_A_PATH = "Send what the file holds: pathlib.Path(...).read_bytes()."


def view_of_bytes(data: Any) -> memoryview:
    """Return ``data`` as a contiguous row of bytes. It is copied only if it has gaps or another format than ``B``.

    Args:
        data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array, also of another library (``__array__``,
            DLPack).

    Raises:
        InputError: ``data`` is none of these, or longer than `MAX_BYTES`.
    """
    expected = "bytes, bytearray, memoryview or a 1-D uint8 array"
    try:
        view = memoryview(_exposed(data))
    except Exception:  # noqa: BLE001 - a foreign array may raise anything
        text = data[:400].encode("utf-8", "replace") if isinstance(data, str) else b""
        if written := error_of_base64(text):
            raise written from None
        got = "None" if data is None else type(data).__name__
        hint = _OF_A_PATH if isinstance(data, (str, os.PathLike)) else None
        if text.startswith((b"http://", b"https://")):
            hint = "Fetch the address first, and send the bytes that it gives."
        raise InputError(
            "this is no file in memory", expected=expected, got=got, hint=hint
        ) from None
    if view.ndim != 1 or view.format.lstrip("@=<>!") not in ("B", "c"):
        got = f"{type(data).__name__} of format {view.format!r} and shape {list(view.shape or ())}"
        raise InputError("this is no file in memory", expected=expected, got=got)
    if view.nbytes > MAX_BYTES:
        problem = "the image file is too long"
        raise InputError(problem, expected=f"at most {MAX_BYTES} bytes", got=f"{view.nbytes} bytes")
    return view if view.contiguous and view.format == "B" else memoryview(view.tobytes())


def check_image_file(data: Any) -> ImageHeader:
    """Check that ``data`` is one whole JPEG, PNG or WebP file, and give its format and size.

    JPEG is walked to its end-of-image marker, PNG to its IEND chunk (with the checksums of the
    chunks that matter), WebP to the end of its RIFF container. Bytes behind that are ignored.
    JPEG and WebP have no checksums: this function does not notice damage in the middle of their
    data.

    Args:
        data: bytes, bytearray, a memoryview or a 1-D ``uint8`` array.

    Raises:
        InputError: The file has another format, or is truncated or broken.

    Source:
        `headrace_formats.jpeg`. PNG specification, third edition, section 5. WebP container
        specification, RFC 9649 sections 2 and 3, and RFC 6386 section 9.1.
    """
    view = view_of_bytes(data)
    start = bytes(view[:12])
    if start[:3] == b"\xff\xd8\xff":
        header = _read_jpeg(view)
    elif start[:8] == _PNG_SIGNATURE:
        header = _walk_png(view)
    elif start[:4] == b"RIFF" and start[8:] == b"WEBP":
        header = _walk_webp(view)
    else:
        raise other_format(view)
    if header.width == 0 or header.height == 0:
        raise _broken(header.format, f"a header that says {header.width} x {header.height} pixels")
    return header


def _broken(kind: str, why: str) -> InputError:
    return InputError(f"the {NAMES[kind]} file is broken", expected="a whole file", got=why)


def _cut_off(kind: str, view: memoryview, missing: str) -> InputError:
    why = f"{len(view)} bytes that end before {missing}"
    return InputError(f"the {NAMES[kind]} file is cut off", expected="a whole file", got=why)


def _read_jpeg(view: memoryview) -> ImageHeader:
    try:
        header = read_jpeg_header(view)
    except JpegError as error:
        problem = f"the JPEG file is {error.problem}"
        raise InputError(problem, expected="a whole file", got=error.got) from None
    return ImageHeader("jpeg", header.width, header.height)


def _walk_png(view: memoryview) -> ImageHeader:
    header: ImageHeader | None = None
    has_pixels, at = False, len(_PNG_SIGNATURE)
    for _ in range(MAX_PARTS):
        if at + 12 > len(view):
            raise _cut_off("png", view, "the IEND chunk")
        length, kind = struct.unpack_from(">I4s", view, at)
        end = at + 12 + length
        if end > len(view):
            raise _cut_off("png", view, f"the end of chunk {kind!r}")
        # An upper-case first letter marks a chunk without which the picture cannot be decoded.
        if not kind[0] & 0x20:
            (checksum,) = struct.unpack_from(">I", view, end - 4)
            if zlib.crc32(view[at + 4 : end - 4]) != checksum:
                raise _broken("png", f"a wrong checksum in chunk {kind!r}")
        if (kind == b"IHDR") != (header is None) or (header is None and length != 13):
            raise _broken("png", f"chunk {kind!r} at a wrong place")
        if header is None:
            width, height = struct.unpack_from(">II", view, at + 8)
            header = ImageHeader("png", width, height)
        has_pixels |= kind == b"IDAT"
        if kind == b"IEND":
            if not has_pixels:
                raise _broken("png", "no chunk with pixels")
            return header
        at = end
    raise _broken("png", f"more than {MAX_PARTS} chunks")


_ANIMATION = frozenset((b"acTL", b"fcTL", b"fdAT"))


def still_png(view: memoryview) -> memoryview:
    """Give a whole PNG file without its animation: the picture in it is the one that viewers without animation show.

    Versions of OpenCV differ in which picture of an animation they decode, and some decode a black one where
    chunks of the animation are missing or wrong.
    """
    chunks: list[memoryview] | None = None
    at = len(_PNG_SIGNATURE)
    while True:
        length, kind = struct.unpack_from(">I4s", view, at)
        end = at + 12 + length
        if kind == b"acTL" and chunks is None:
            chunks = [view[:at]]
        elif chunks is None and kind == b"IDAT":
            return view  # without an acTL chunk before the pixels it is no animation
        elif chunks is not None and kind not in _ANIMATION:
            chunks.append(view[at:end])
            if kind == b"IEND":
                return memoryview(b"".join(chunks))
        at = end


def _walk_webp(view: memoryview) -> ImageHeader:
    header: ImageHeader | None = None
    whole = 8 + int.from_bytes(view[4:8], "little")
    if whole > len(view):
        raise _cut_off("webp", view, f"byte {whole}, which the header says is the last")
    has_pixels, at = False, 12
    for _ in range(MAX_PARTS):
        if at + 8 > whole:
            if header is None or not has_pixels:
                raise _broken("webp", "no chunk with pixels")
            return header
        kind, length = struct.unpack_from("<4sI", view, at)
        end = at + 8 + length
        if end > whole:
            raise _broken("webp", f"a chunk {kind!r} that is longer than the file")
        has_pixels |= kind in (b"VP8 ", b"VP8L", b"ANMF")
        if header is None:
            header = ImageHeader("webp", *_webp_size(kind, bytes(view[at + 8 : at + 18])))
        at = end + (length & 1)
    raise _broken("webp", f"more than {MAX_PARTS} chunks")


def _webp_size(kind: bytes, start: bytes) -> tuple[int, int]:
    """Return width and height from the first 10 bytes of a WebP file's first chunk."""
    if kind == b"VP8X" and len(start) == 10:
        return 1 + int.from_bytes(start[4:7], "little"), 1 + int.from_bytes(start[7:10], "little")
    if kind == b"VP8L" and len(start) >= 5 and start[0] == 0x2F:
        bits = int.from_bytes(start[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and start[3:6] == b"\x9d\x01\x2a" and len(start) == 10:
        width, height = struct.unpack("<HH", start[6:10])
        return width & 0x3FFF, height & 0x3FFF
    raise _broken("webp", f"a first chunk {kind!r} without a picture size")
