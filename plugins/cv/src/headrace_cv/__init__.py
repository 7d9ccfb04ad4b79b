"""Headrace backends for images on the CPU, and the plain functions they are made of.

Nothing is imported until it is used: ``import headrace_cv`` loads neither OpenCV nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_cv.boxes import filter_detections, iou_matrix, nms
    from headrace_cv.canvas import letterbox_image
    from headrace_cv.crops import center_crop_image, crop_image, crop_quad
    from headrace_cv.headers import ImageHeader, check_image_file
    from headrace_cv.image_files import decode_image, encode_image
    from headrace_cv.images import convert_color, resize_image
    from headrace_cv.scores import softmax, top_k
    from headrace_cv.tensors import Normalization, image_to_tensor, tensor_to_image
    from headrace_cv.transforms import LetterBoxTransform, boxes_to_image

__version__ = "0.1.0"

__all__ = [
    "ImageHeader",
    "LetterBoxTransform",
    "Normalization",
    "__version__",
    "boxes_to_image",
    "center_crop_image",
    "check_image_file",
    "convert_color",
    "crop_image",
    "crop_quad",
    "decode_image",
    "encode_image",
    "filter_detections",
    "image_to_tensor",
    "iou_matrix",
    "letterbox_image",
    "nms",
    "resize_image",
    "softmax",
    "tensor_to_image",
    "top_k",
]

_HOME = {
    "ImageHeader": "headrace_cv.headers",
    "LetterBoxTransform": "headrace_cv.transforms",
    "Normalization": "headrace_cv.tensors",
    "boxes_to_image": "headrace_cv.transforms",
    "center_crop_image": "headrace_cv.crops",
    "check_image_file": "headrace_cv.headers",
    "convert_color": "headrace_cv.images",
    "crop_image": "headrace_cv.crops",
    "crop_quad": "headrace_cv.crops",
    "decode_image": "headrace_cv.image_files",
    "encode_image": "headrace_cv.image_files",
    "filter_detections": "headrace_cv.boxes",
    "image_to_tensor": "headrace_cv.tensors",
    "iou_matrix": "headrace_cv.boxes",
    "letterbox_image": "headrace_cv.canvas",
    "nms": "headrace_cv.boxes",
    "resize_image": "headrace_cv.images",
    "softmax": "headrace_cv.scores",
    "tensor_to_image": "headrace_cv.tensors",
    "top_k": "headrace_cv.scores",
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
