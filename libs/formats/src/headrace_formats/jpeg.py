"""JPEG files: their header is read, and a file is known to be whole, without decoding it.

Decoders are lenient: some give a partly grey picture for a truncated file, and all of them allocate the memory that a forged header
asks for. So read the header first. The module needs the standard library only.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from headrace_formats import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MAX_SCANS",
    "MAX_SEGMENTS",
    "JpegError",
    "JpegHeader",
    "exif_orientation",
    "plain_jpeg_size",
    "read_jpeg_header",
]

MAX_SEGMENTS = 100_000
"""Most segments in one file; real files stay far below."""

MAX_SCANS = 500
"""Most scans in one file. Each costs a pass over the picture; encoders write about ten."""


class JpegHeader(NamedTuple):
    """The header of a JPEG file.

    Attributes:
        width, height: Size in pixels as stored, before any rotation that EXIF asks for.
        components: The number of colour components.
        is_usual: Whether common decoders can read the file: 8 bits, 1 or 3 components, Huffman-coded DCT (baseline, extended or
            progressive).
        orientation: The EXIF orientation, 1 to 8. 1 is upright.
        exif_at: The place of the EXIF data with the orientation, in bytes. 0: the file has none.
    """

    width: int
    height: int
    components: int
    is_usual: bool
    orientation: int = 1
    exif_at: int = 0


class JpegError(FormatError):
    """A file is no whole JPEG file.

    Attributes:
        problem: ``"cut off"`` or ``"broken"``.
        got: What the file is or has instead.
    """

    def __init__(self, problem: str, got: str) -> None:
        super().__init__(f"it is {problem}: {got}")
        self.problem, self.got = problem, got


# A marker that is no restart marker, no stuffed zero and no fill byte.
_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
_TEM, _SOI, _EOI, _SOS, _APP1 = 0x01, 0xD8, 0xD9, 0xDA, 0xE1
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = frozenset((0xC0, 0xC1))
_HUFFMAN_DCT = _SEQUENTIAL | {0xC2}
_END = b"\xff\xd9"
_EXIF = b"Exif\0\0"

# The header that libjpeg writes for colour pictures by default, and most encoders with it. Its
# tables have fixed lengths, so one match reads it, many times faster than the walk over segments.
_usual_header = re.compile(
    rb"\xff\xd8(?:\xff\xe0\x00\x10.{14})?\xff\xdb\x00\x43.{65}\xff\xdb\x00\x43.{65}"
    rb"\xff[\xc0\xc1]\x00\x11.(....)\x03.{9}"
    rb"\xff\xc4\x00\x1f.{29}\xff\xc4\x00\xb5.{179}\xff\xc4\x00\x1f.{29}\xff\xc4\x00\xb5.{179}"
    rb"\xff\xda\x00\x0c\x03.{9}(?=..)",  # one scan of all three components, and data behind it
    re.DOTALL,
).match


def plain_jpeg_size(data: bytes | memoryview) -> tuple[int, int] | None:
    """Read the size of a JPEG file as most encoders write it: in colour, of one sequential scan, with standard tables.

    The data of a scan cannot hold the end-of-image marker, so a file of one scan that ends in this marker is whole.

    Returns:
        Width and height in pixels, neither 0. None for any other file, which `read_jpeg_header` then has to check.
    """
    header = _usual_header(data) if data[-2:] == _END else None
    if header is None:
        return None
    height, width = struct.unpack(">HH", header[1])
    return (width, height) if width and height else None


def read_jpeg_header(view: memoryview) -> JpegHeader:
    """Read the header of a JPEG file, and check that the file is whole.

    The file is walked to its end-of-image marker. Bytes behind that are ignored. JPEG has no checksums: damage in the middle of the
    data is not noticed here.

    Args:
        view: The file, a contiguous row of bytes that begins with FF D8 FF.

    Raises:
        JpegError: The file is cut off or broken, its picture has no pixel, or it has more than `MAX_SEGMENTS` or `MAX_SCANS`.

    Source:
        ITU-T T.81 annex B.
    """
    frame: tuple[int, int, int, bool] | None = None
    is_sequential, orientation, exif_at, scans = False, 1, 0, 0
    for marker, at, end in _segments(view):
        if marker in _SOF:
            if frame is not None or end < at + 8:
                raise JpegError("broken", "two frame headers, or one that is too short")
            bits, height, width, components = struct.unpack_from(">BHHB", view, at + 2)
            if not width or not height:
                raise JpegError("broken", f"a header that says {width} x {height} pixels")
            is_usual = bits == 8 and marker in _HUFFMAN_DCT and components in (1, 3)
            frame = width, height, components, is_usual
            is_sequential = marker in _SEQUENTIAL
        elif marker == _APP1 and view[at + 2 : at + 8] == _EXIF:
            turn = exif_orientation(bytes(view[at + 2 : end]))
            if turn is not None:
                orientation, exif_at = turn, at + 2
        scans += marker == _SOS
        if scans > MAX_SCANS:
            raise JpegError("broken", f"more than {MAX_SCANS} scans")
        if frame and (
            (marker == _EOI and scans)
            or (marker == _SOS and is_sequential and _is_last(view, at, end, frame[2]))
        ):
            return JpegHeader(*frame, orientation, exif_at)
        if marker == _EOI:
            break
    raise JpegError("broken", "an end-of-image marker before any picture")


def _segments(view: memoryview) -> Iterator[tuple[int, int, int]]:
    """Return each marker with the begin and the end of its segment; the data of scans is skipped."""
    at = 2
    for _ in range(MAX_SEGMENTS):
        match = _MARKER.search(view, at)
        if match is None:
            raise _cut_off(view, "the end-of-image marker")
        at = match.end()
        marker = view[at - 1]
        if marker not in (_TEM, _SOI):
            end = at if marker == _EOI else _segment_end(view, at, marker)
            yield marker, at, end
            at = end
    raise JpegError("broken", f"more than {MAX_SEGMENTS} segments")


def _is_last(view: memoryview, at: int, end: int, components: int) -> bool:
    """Return whether a scan holds all components, and the file ends with the end-of-image marker.

    As in `plain_jpeg_size`, its data need not be searched, which would take longer than all the rest.
    """
    return end + 2 <= len(view) and view[at + 2] == components and view[-2:] == _END


def _segment_end(view: memoryview, at: int, marker: int) -> int:
    length = int.from_bytes(view[at : at + 2], "big")
    if at + 2 > len(view) or at + length > len(view):
        raise _cut_off(view, f"the end of segment {marker:#04x}")
    if length < 2:
        raise JpegError("broken", f"segment {marker:#04x} without a length")
    return at + length


def _cut_off(view: memoryview, missing: str) -> JpegError:
    return JpegError("cut off", f"{len(view)} bytes that end before {missing}")


def exif_orientation(exif: bytes) -> int | None:
    """Read the orientation of EXIF data, 1 to 8; None where it is missing or wrong.

    Args:
        exif: EXIF data, with or without the ``Exif`` in front that JPEG files have.

    Source:
        TIFF 6.0, section 2. CIPA DC-008 (EXIF), section 4.6.4: tag 0x0112 of the first directory.
    """
    tiff = exif.removeprefix(_EXIF)
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, entry)
            if (tag, kind) == (0x0112, 3):
                return int(value) if 1 <= value <= 8 else None
    except struct.error:  # the data are truncated
        pass
    return None
