"""Headrace backends for images on the CPU, and the plain functions they are made of.

Nothing is imported until it is used: ``import headrace_cv`` loads neither OpenCV nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_cv.headers import ImageHeader, check_image_file
    from headrace_cv.image_files import decode_image
    from headrace_cv.images import convert_color, resize_image
    from headrace_cv.tensors import Normalization, image_to_tensor

__all__ = [
    "ImageHeader",
    "Normalization",
    "check_image_file",
    "convert_color",
    "decode_image",
    "image_to_tensor",
    "resize_image",
]

_HOME = {
    "ImageHeader": "headrace_cv.headers",
    "Normalization": "headrace_cv.tensors",
    "check_image_file": "headrace_cv.headers",
    "convert_color": "headrace_cv.images",
    "decode_image": "headrace_cv.image_files",
    "image_to_tensor": "headrace_cv.tensors",
    "resize_image": "headrace_cv.images",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headrace_cv' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
