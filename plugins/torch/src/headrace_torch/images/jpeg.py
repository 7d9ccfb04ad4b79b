"""Reads the header of a JPEG file, and checks the file, before a decoder reserves memory for it."""

from __future__ import annotations

import os
from typing import Any

from headrace.errors import InputError
from headrace_formats.jpeg import JpegError, JpegHeader, read_jpeg_header

__all__ = ["EXPECTED", "check_jpeg", "view_of_bytes", "without_exif"]

EXPECTED = "a JPEG file as bytes, bytearray, memoryview or a 1-D uint8 array"
"""A text for errors that says what is decoded."""


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

    Args:
        view: The file.
        max_pixels: Most pixels (width x height).

    Raises:
        InputError: The file is of another format, truncated, broken, or has too many pixels.
    """
    if bytes(view[:3]) != b"\xff\xd8\xff":
        start = bytes(view[:12])
        got = f"{len(view)} bytes that start with {start!r}" if start else "0 bytes"
        raise InputError("this is no JPEG file", key="data", expected="a JPEG file", got=got)
    try:
        header = read_jpeg_header(view)
    except JpegError as error:
        problem = f"the JPEG file is {error.problem}"
        raise InputError(problem, key="data", expected="a whole file", got=error.got) from None
    pixels = header.width * header.height
    if pixels > max_pixels:
        raise InputError(
            "the image is too large",
            key="data",
            expected=f"at most {max_pixels} pixels",
            got=f"{header.width} x {header.height} = {pixels} pixels",
            hint="The option max_pixels sets this limit.",
        )
    return header
