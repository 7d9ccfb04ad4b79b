"""Reads the header of a JPEG file, and checks the file, before a decoder reserves memory for it.

The module needs the standard library only.
"""

from __future__ import annotations

import os
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["EXPECTED", "JpegHeader", "check_jpeg", "view_of_bytes", "without_exif"]

EXPECTED = "a JPEG file as bytes, bytearray, memoryview or a 1-D uint8 array"
"""A text for errors that says what is decoded."""

_MAX_SEGMENTS = 100_000
_MAX_SCANS = 500  # a decoder passes over the whole picture for each scan; encoders write about ten

_SOI, _EOI, _SOS, _APP1 = 0xD8, 0xD9, 0xDA, 0xE1
_ALONE = frozenset((0x01, _SOI))  # markers without a segment
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_HUFFMAN_DCT = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive

# Any marker, except restart markers, stuffed zeros and fill bytes.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")


class JpegHeader(NamedTuple):
    """The header of a JPEG file.

    Attributes:
        width, height: The size in pixels, as stored: before any rotation that EXIF asks for.
        components: The number of colour components: 1, 3 or 4.
        usual: Whether common decoders can read the file: 8 bits, 1 or 3 components, Huffman-coded
            DCT (baseline, extended or progressive).
        orientation: The EXIF orientation, 1 to 8. 1 is upright.
        exif_at: The place of the EXIF data with the orientation, in bytes. 0: the file has none.
    """

    width: int
    height: int
    components: int
    usual: bool
    orientation: int = 1
    exif_at: int = 0


def without_exif(view: memoryview, header: JpegHeader) -> memoryview:
    """Return the file without its EXIF orientation, because some decoders apply it and others do not."""
    if header.orientation == 1:
        return view
    file = bytearray(view)
    # This overwrites the name of the segment, and the head of its table.
    file[header.exif_at : header.exif_at + 14] = bytes(14)
    return memoryview(file)


def _exposed(data: Any) -> Any:
    """Return an object with the buffer of ``data``; numpy gives the buffers of other libraries' arrays."""
    if isinstance(data, bytes):
        return bytes(data)  # the buffer of `numpy.bytes_` is one element, not a row of bytes
    if hasattr(data, "__array__"):
        return data.__array__()
    if hasattr(data, "__dlpack__"):
        import numpy as np

        return np.from_dlpack(data)
    return data


_OF_A_PATH = "Send what the file holds: pathlib.Path(...).read_bytes()."


def view_of_bytes(data: Any) -> memoryview:
    """Return a memoryview of ``data`` as contiguous bytes. It copies only if ``data`` is not contiguous.

    Raises:
        InputError: ``data`` is no file in memory.
    """
    try:
        view = memoryview(_exposed(data))
    except Exception:  # noqa: BLE001 - a foreign array may raise anything
        got = "None" if data is None else type(data).__name__
        hint = _OF_A_PATH if isinstance(data, (str, os.PathLike)) else None
        raise InputError(
            "this is no file in memory", key="data", expected=EXPECTED, got=got, hint=hint
        ) from None
    if view.ndim != 1 or view.format not in ("B", "c"):
        got = f"{type(data).__name__} of format {view.format!r} and shape {list(view.shape or ())}"
        raise InputError("this is no file in memory", key="data", expected=EXPECTED, got=got)
    return view if view.contiguous and view.format == "B" else memoryview(view.tobytes())


def check_jpeg(view: memoryview, *, max_pixels: int) -> JpegHeader:
    """Check that ``view`` is one whole JPEG file of at most ``max_pixels``, and read its header.

    The file is walked to its end-of-image marker. JPEG has no checksums: damage in the middle of
    the data is not noticed here.

    Args:
        view: The file.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: The file is of another format, truncated, broken, or has too many pixels.

    Source:
        ITU-T T.81 annex B. EXIF orientation after CIPA DC-008, section 4.6.4.
    """
    if bytes(view[:3]) != b"\xff\xd8\xff":
        start = bytes(view[:12])
        got = f"{len(view)} bytes that start with {start!r}" if start else "0 bytes"
        raise InputError("this is no JPEG file", key="data", expected="a JPEG file", got=got)
    header = _walk(view)
    pixels = header.width * header.height
    if pixels == 0:
        raise _broken(f"its header says {header.width} x {header.height} pixels")
    if pixels > max_pixels:
        raise InputError(
            "the image is too large",
            key="data",
            expected=f"at most {max_pixels} pixels",
            got=f"{header.width} x {header.height} = {pixels} pixels",
            hint="The option max_pixels sets this limit.",
        )
    return header


def _broken(why: str) -> InputError:
    return InputError("the JPEG file is broken", key="data", expected="a whole file", got=why)


def _cut_off(view: memoryview, missing: str) -> InputError:
    why = f"{len(view)} bytes that end before {missing}"
    return InputError("the JPEG file is cut off", key="data", expected="a whole file", got=why)


def _walk(view: memoryview) -> JpegHeader:
    """Read the header, and walk through the segments until the file is known to be whole."""
    frame: tuple[int, int, int, bool] | None = None
    orientation, exif_at, scans = 1, 0, 0
    for marker, at, end in _segments(view):
        if marker in _FRAMES:
            if frame is not None or end < at + 8:
                raise _broken("two frame headers, or one that is too short")
            frame = _frame(view, at, marker)
        elif marker == _APP1:
            found = _orientation(bytes(view[at + 2 : end]))
            if found is not None:
                orientation, exif_at = found, at + 2
        scans += marker == _SOS
        if scans > _MAX_SCANS:
            raise _broken(f"more than {_MAX_SCANS} scans")
        if frame is not None and (
            (marker == _EOI and scans) or (marker == _SOS and _is_only_scan(view, at, frame[2]))
        ):
            return JpegHeader(*frame, orientation, exif_at)
        if marker == _EOI:
            break
    raise _broken("no picture before its end-of-image marker")


def _segments(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Return each marker with the begin and the end of its segment; the data of scans is skipped."""
    at = 2
    for _ in range(_MAX_SEGMENTS):
        found = _MARKER.search(view, at)
        if found is None:
            raise _cut_off(view, "the end-of-image marker")
        at = found.end()
        marker = view[at - 1]
        if marker in _ALONE:
            continue
        end = at if marker == _EOI else _segment_end(view, at, marker)
        yield marker, at, end
        at = end
    raise _broken(f"more than {_MAX_SEGMENTS} segments")


def _is_only_scan(view: memoryview, at: int, components: int) -> bool:
    """Return whether a scan holds all components and the file ends with the end-of-image marker.

    The data of a scan cannot contain that marker, so such a file is whole. The scan's data need not be searched,
    which would cost more than all the rest.
    """
    return view[at + 2] == components and bytes(view[-2:]) == b"\xff\xd9"


def _segment_end(view: memoryview, at: int, marker: int) -> int:
    length = int.from_bytes(view[at : at + 2], "big")
    if at + 2 > len(view) or at + length > len(view):
        raise _cut_off(view, f"the end of segment {marker:#04x}")
    if length < 3:
        raise _broken(f"segment {marker:#04x} is empty")
    return at + length


def _frame(view: memoryview, at: int, marker: int) -> tuple[int, int, int, bool]:
    """Return width, height, components, and whether common decoders can read such a frame."""
    bits, height, width, components = struct.unpack_from(">BHHB", view, at + 2)
    usual = bits == 8 and marker in _HUFFMAN_DCT and components in (1, 3)
    return width, height, components, usual


def _orientation(segment: bytes) -> int | None:
    """Return the orientation that an EXIF segment names, 1 to 8, or None."""
    if segment[:6] != b"Exif\0\0" or segment[6:8] not in (b"II", b"MM"):
        return None
    order = "<" if segment[6:8] == b"II" else ">"
    tiff = segment[6:]
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(min(count, 512)):
            tag, kind, number, value = struct.unpack_from(
                f"{order}HHIH", tiff, start + 2 + 12 * entry
            )
            if tag == 0x0112 and kind == 3 and number == 1 and 1 <= value <= 8:
                return int(value)
    except struct.error:
        return None
    return None
