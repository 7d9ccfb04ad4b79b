"""Formats of image files: their names, how a file's first bytes tell which it has, and files that are written as base64.

The module needs the standard library only.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from typing import TYPE_CHECKING

from headrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["FURTHER", "NAMES", "bytes_of_base64", "error_of_base64", "format_of", "other_format"]

FURTHER = {
    "bmp": "BMP",
    "tiff": "TIFF",
    "gif": "GIF",
    "avif": "AVIF",
    "ppm": "PPM",
    "jpeg2000": "JPEG 2000",
}
"""The formats that the option ``formats`` of `DecodeMat` adds, and their names in errors."""

NAMES = {"jpeg": "JPEG", "png": "PNG", "webp": "WebP", **FURTHER}
"""The formats that can be decoded, as errors write them."""

_STARTS = {
    b"\xff\xd8\xff": "jpeg",
    b"\x89PNG\r\n\x1a\n": "png",
    b"BM": "bmp",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",  # BigTIFF
    b"MM\0+": "tiff",
    b"GIF87a": "gif",
    b"GIF89a": "gif",
    b"\0\0\0\x0cjP  \r\n\x87\n": "jpeg2000",
    b"\xff\x4f\xff\x51": "jpeg2000",  # a bare codestream
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL \r\n\x87\n": "JPEG XL",
    b"\0\0\1\0": "ICO",
    b"8BPS": "Photoshop",
    b"%PDF": "PDF",
    b"<svg": "SVG",
    b"<?xml": "XML",
    b"<!DOCTYPE": "HTML",
    b"<!doctype": "HTML",
    b"<html": "HTML",
    b"PK\3\4": "ZIP",
    b"\x1f\x8b": "gzip",
}
_BRANDS = {
    **dict.fromkeys((b"avif", b"avis"), "avif"),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "HEIC"),
    **dict.fromkeys((b"isom", b"iso2", b"mp41", b"mp42", b"qt  "), "video"),
}

_DATA_URL = re.compile(rb"\s*data:[^,]{0,200},", re.IGNORECASE)
_QUOTE = re.compile(rb"^\s*b?[\"']")
_STANDARD = bytes.maketrans(b"-_", b"+/")


def format_of(data: bytes | memoryview) -> str | None:
    """Return the format of a file: a key of `NAMES`, the name of another format, or None when it is unknown.

    Only the first 64 bytes are looked at. The rest may be anything.

    Source:
        The signatures of the formats' specifications. For AVIF and HEIC the brands of ISO/IEC 14496-12 section 4.3
        and ISO/IEC 23008-12.
    """
    start = bytes(data[:64])
    if start[:4] == b"RIFF" and start[8:12] == b"WEBP":
        return "webp"
    if start[4:8] == b"ftyp":
        boxed = start[8 : max(12, int.from_bytes(start[:4], "big"))]
        brands = [boxed[at : at + 4] for at in range(0, len(boxed), 4)]
        return next((_BRANDS[brand] for brand in brands if brand in _BRANDS), None)
    if start[:1] == b"P" and start[1:2] in b"123456" and start[2:3].isspace():
        return "ppm"
    return next((name for magic, name in _STARTS.items() if start.startswith(magic)), None)


def bytes_of_base64(text: bytes) -> bytes:
    """Return the bytes of base64 in either alphabet, with or without padding, line ends and the start of a data URL.

    Raises:
        InputError: It is something else.

    Source:
        RFC 4648, sections 4 and 5. RFC 2397, section 3.
    """
    url = _DATA_URL.match(text)
    letters = b"".join(text[url.end() if url else 0 :].split()).translate(_STANDARD).rstrip(b"=")
    try:
        return base64.b64decode(letters + b"=" * (-len(letters) % 4), validate=True)
    except binascii.Error:
        needed, got = "base64 of an image file", f"{len(text)} bytes that start with {text[:12]!r}"
        hint = 'Without encoding = "base64" DecodeMat takes the file itself.'
        raise InputError("this is no base64", expected=needed, got=got, hint=hint) from None


def error_of_base64(text: bytes) -> InputError | None:
    """Return the error for base64 of a picture, or a data URL, in place of the picture. None: the text is neither.

    Args:
        text: Its first bytes, some hundred of them.
    """
    is_url, kind = _DATA_URL.match(text), None
    letters = b"".join(_QUOTE.sub(b"", text).split())
    with contextlib.suppress(InputError):
        kind = NAMES.get(format_of(bytes_of_base64(letters[: len(letters) // 4 * 4])) or "")
    if not is_url and not kind:
        return None
    problem = (
        "this is a data URL" if is_url else f"this is base64 of {_with_article(kind or '')} file"
    )
    got = f"text that starts with {text[:24]!r}"
    hint = 'Send base64.b64decode(TEXT), of a data URL what follows the comma. Or set encoding = "base64" of DecodeMat.'
    return InputError(problem, expected="the bytes of a file", got=got, hint=hint)


def other_format(view: memoryview, formats: Collection[str] = ()) -> InputError:
    """Return the error for a file that is of none of the formats which are decoded.

    Args:
        view: The bytes of the file.
        formats: The keys of `FURTHER` that are decoded beside JPEG, PNG and WebP.
    """
    if written := error_of_base64(bytes(view[:400])):
        return written
    *most, last = ("JPEG", "PNG", "WebP", *(NAMES[key] for key in FURTHER if key in formats))
    got = f"{len(view)} bytes that start with {bytes(view[:12])!r}" if len(view) else "0 bytes"
    kind = format_of(view)
    name = FURTHER.get(kind or "", kind)
    if name is None:
        problem, hint = "the image format is not recognised", None
    elif kind in FURTHER:
        problem = f"this is {_with_article(name)} file"
        hint = f'Send JPEG, PNG or WebP. Or set formats = ["{kind}"] of DecodeMat, with Pillow.'
    else:
        problem = f"this is {_with_article(name)} file"
        hint = "Send JPEG, PNG or WebP: DecodeMat decodes none of these."
    expected = f"a {', '.join(most)} or {last} file"
    return InputError(problem, expected=expected, got=got, hint=hint)


def _with_article(name: str) -> str:
    spoken_with_vowel = name[0] in "AEIOU" or name in ("HTML", "SVG", "XML")
    return f"{'an' if spoken_with_vowel else 'a'} {name}"
