"""How a picture lies in its file: the orientation in EXIF and XMP data."""

from __future__ import annotations

import re
import struct
import zlib

from headrace_formats.jpeg import exif_orientation

__all__ = ["png_orientation", "webp_orientation"]

_WITH_EXIF = 0x08
"""The flag of a WebP file's first chunk (VP8X) that says that one of the others holds EXIF data."""

_MOST_XMP_BYTES = 1 << 20
"""Most bytes of compressed XMP data that are unpacked; longer ones turn nothing."""

_XMP = b"XML:com.adobe.xmp\0"
_IN_XMP = re.compile(rb"""tiff:Orientation(?:\s*=\s*["']|>)\s*([1-8])\s*["'<]""")


def webp_orientation(view: memoryview) -> int:
    """Return the EXIF orientation of a whole WebP file, 1 to 8. 1, upright, where it has none.

    OpenCV reads it from 4.13 on. Earlier versions give the picture as it is stored.
    """
    if bytes(view[12:16]) != b"VP8X" or not view[20] & _WITH_EXIF:
        return 1
    at, whole = 12, 8 + int.from_bytes(view[4:8], "little")
    while at + 8 <= whole:
        kind, length = struct.unpack_from("<4sI", view, at)
        if kind == b"EXIF":
            return exif_orientation(bytes(view[at + 8 : at + 8 + length])) or 1
        at += 8 + length + (length & 1)
    return 1


def png_orientation(view: memoryview) -> int:
    """Return the orientation of a whole PNG file, 1 to 8: of its EXIF data, else of its XMP data, else 1.

    OpenCV reads only the first of them, and not in every version. Which of the two counts is as in Pillow.

    Source:
        PNG specification, third edition, sections 11.3.3.4 (iTXt) and 11.3.4.5 (eXIf). XMP specification part 3,
        section 1.1.5 (the keyword).
    """
    by_xmp, at = None, 8
    while True:
        length, kind = struct.unpack_from(">I4s", view, at)
        if kind == b"eXIf":
            exif = exif_orientation(bytes(view[at + 8 : at + 8 + length]))
            if exif is not None:
                return exif
        elif kind == b"iTXt" and by_xmp is None:
            by_xmp = _xmp_orientation(bytes(view[at + 8 : at + 8 + length]))
        elif kind == b"IEND":
            return by_xmp or 1
        at += 12 + length


def _xmp_orientation(chunk: bytes) -> int | None:
    """Read ``tiff:Orientation`` of an iTXt chunk with XMP data; None where it is missing or wrong."""
    if not chunk.startswith(_XMP):
        return None
    is_packed, rest = chunk[len(_XMP) : len(_XMP) + 1] == b"\1", chunk[len(_XMP) + 2 :]
    text = rest.split(b"\0", 2)[-1]  # behind the language and the translated keyword
    if is_packed:
        try:
            text = zlib.decompressobj().decompress(text, _MOST_XMP_BYTES)
        except zlib.error:
            return None
    match = _IN_XMP.search(text)
    return int(match[1]) if match else None
