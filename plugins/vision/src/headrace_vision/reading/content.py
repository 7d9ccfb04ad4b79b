"""What a file is, told by its content: an image, an animation, a list of inputs, or a video."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

__all__ = ["head_of", "image_or_animation", "natural_order"]

_IMAGES = (b"\xff\xd8\xff", b"BM", b"II*\0", b"MM\0*")
_HEAD_BYTES = 4096


def head_of(data: bytes | Path) -> bytes:
    """Return the first 4096 bytes of a file, or of bytes.

    Raises:
        OSError: The file cannot be read.
    """
    if isinstance(data, bytes):
        return data[:_HEAD_BYTES]
    with data.open("rb") as file:
        return file.read(_HEAD_BYTES)


def image_or_animation(head: bytes) -> str | None:
    """Return ``"image"``, ``"animation"``, ``"webp"`` (animated), or None for anything else.

    Args:
        head: The first bytes of the file.

    Source:
        Signatures of JPEG, BMP, TIFF, PNG (with the chunk ``acTL``: APNG), GIF, and the animation
        flag of the chunk ``VP8X`` of WebP.
    """
    if head.startswith(_IMAGES):
        return "image"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "animation" if b"acTL" in head.partition(b"IDAT")[0] else "image"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "animation"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp" if head[12:16] == b"VP8X" and head[20:21] and head[20] & 2 else "image"
    return None


def natural_order(text: str) -> list[Any]:
    """Return a sort key in which ``frame2`` comes before ``frame10``."""
    return [
        (int(part), part) if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", text)
    ]
