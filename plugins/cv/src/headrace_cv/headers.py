"""Read format and size of a JPEG, PNG or WebP file, and check that it is whole, without decoding it.

Decoders are lenient: some give a partly grey picture for a truncated file, and all of them allocate the memory
that a forged header asks for. So this module walks a file from its first to its
last part before a decoder sees the file: it must be of one of the three formats, name the size of
its picture, and be whole. The module needs the standard library only.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from typing import Any, NamedTuple

from headrace.errors import InputError
from headrace_cv.formats import NAMES, error_of_base64, other_format

__all__ = [
    "MAX_BYTES",
    "MAX_PARTS",
    "MAX_SCANS",
    "ImageHeader",
    "check_image_file",
    "plain_jpeg_size",
    "still_png",
    "view_of_bytes",
]

MAX_PARTS = 100_000
"""Most segments or chunks in one file; real files stay far below."""

MAX_BYTES = (1 << 31) - 1
"""Most bytes of one file, whatever the option ``max_bytes`` allows: decoders count in 32 bits."""

MAX_SCANS = 500
"""Most scans in one JPEG file. Each costs a pass over the picture; encoders write about ten."""

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
        raise InputError(
            "the image file is too long",
            expected=f"at most {MAX_BYTES} bytes",
            got=f"{view.nbytes} bytes",
        )
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
        ITU-T T.81 annex B (JPEG). PNG specification, third edition, section 5. WebP container
        specification, RFC 9649 sections 2 and 3, and RFC 6386 section 9.1.
    """
    view = view_of_bytes(data)
    start = bytes(view[:12])
    if start[:3] == b"\xff\xd8\xff":
        size = plain_jpeg_size(view)
        header = _walk_jpeg(view) if size is None else ImageHeader("jpeg", *size)
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


# A JPEG marker that is no restart marker, no stuffed zero and no fill byte.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_TEM, _SOI, _EOI, _SOS = 0x01, 0xD8, 0xD9, 0xDA
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}

# JPEG markers including their 0xFF byte: `plain_jpeg_size` reads both bytes as one number.
_START_OF_SCAN = 0xFFDA
_SEQUENTIAL = frozenset((0xFFC0, 0xFFC1))
_TABLES = frozenset((0xFFC4, 0xFFDB, 0xFFDD, 0xFFFE, *range(0xFFE0, 0xFFF0)))  # and comments, APPn
_two_shorts = struct.Struct(">HH").unpack_from

# The header that libjpeg writes for colour pictures by default, and most encoders with it. Its
# tables have fixed lengths, so one match reads it, faster than the loop over segments.
_usual_header = re.compile(
    rb"\xff\xd8(?:\xff\xe0\x00\x10.{14})?\xff\xdb\x00\x43.{65}\xff\xdb\x00\x43.{65}"
    rb"\xff[\xc0\xc1]\x00\x11.(....)\x03.{9}"
    rb"\xff\xc4\x00\x1f.{29}\xff\xc4\x00\xb5.{179}\xff\xc4\x00\x1f.{29}\xff\xc4\x00\xb5.{179}"
    rb"\xff\xda\x00\x0c\x03.{9}(?=..)",  # one scan of all three components, and data behind it
    re.DOTALL,
).match


def plain_jpeg_size(data: bytes | memoryview) -> tuple[int, int] | None:
    """Read the size of the usual kind of JPEG: one sequential scan of all components, then the end.

    The data of a scan cannot hold the end-of-image marker, so a file of one scan that ends in this
    marker is whole. Then the walk through the data of the scan is left out, which takes longer than all the rest of
    the check.

    Returns:
        Width and height in pixels, neither 0. None for any other file, whose parts
        `check_image_file` then has to check one by one.
    """
    if data[-2:] != b"\xff\xd9":
        return None
    usual = _usual_header(data)
    if usual is not None:
        height, width = _two_shorts(usual[1])
        return (width, height) if width and height else None
    if data[:2] != b"\xff\xd8":
        return None
    at, components, width, height = 2, 0, 0, 0
    try:
        for _ in range(64):
            marker, length = _two_shorts(data, at)
            if marker in _TABLES:
                if length < 2:
                    return None
            elif marker == _START_OF_SCAN:
                is_whole = at + length + 4 <= len(data) and data[at + 4] == components
                return (width, height) if is_whole and components and width and height else None
            elif marker in _SEQUENTIAL and not components and length >= 8:
                height, width = _two_shorts(data, at + 5)
                components = data[at + 9]
            else:
                return None
            at += 2 + length
    except (struct.error, IndexError):  # the header is truncated
        pass
    return None


def _walk_jpeg(view: memoryview) -> ImageHeader:
    header: ImageHeader | None = None
    scans, at = 0, 2
    for _ in range(MAX_PARTS):
        found = _MARKER.search(view, at)
        if found is None:
            raise _cut_off("jpeg", view, "the end-of-image marker")
        at = found.end()
        marker = view[at - 1]
        if marker == _EOI:
            if header is None or not scans:
                raise _broken("jpeg", "an end-of-image marker before any picture")
            return header
        if marker in (_TEM, _SOI):
            continue
        end = _segment_end(view, at, marker)
        if marker in _SOF:
            if header is not None or end < at + 8:
                raise _broken("jpeg", "two frame headers, or one that is too short")
            height, width = struct.unpack_from(">HH", view, at + 3)
            header = ImageHeader("jpeg", width, height)
        scans += marker == _SOS
        if scans > MAX_SCANS:
            raise _broken("jpeg", f"more than {MAX_SCANS} scans")
        at = end
    raise _broken("jpeg", f"more than {MAX_PARTS} segments")


def _segment_end(view: memoryview, at: int, marker: int) -> int:
    length = int.from_bytes(view[at : at + 2], "big")
    if at + 2 > len(view) or at + length > len(view):
        raise _cut_off("jpeg", view, f"the end of segment {marker:#04x}")
    if length < 2:
        raise _broken("jpeg", f"segment {marker:#04x} without a length")
    return at + length


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
    kept: list[memoryview] | None = None
    at = len(_PNG_SIGNATURE)
    while True:
        length, kind = struct.unpack_from(">I4s", view, at)
        end = at + 12 + length
        if kind == b"acTL" and kept is None:
            kept = [view[:at]]
        elif kept is None and kind == b"IDAT":
            return view  # without an acTL chunk before the pixels it is no animation
        elif kept is not None and kind not in _ANIMATION:
            kept.append(view[at:end])
            if kind == b"IEND":
                return memoryview(b"".join(kept))
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
