"""Headrace backends for images on the CPU, and the plain functions they are made of.

Nothing is imported until it is used: ``import headrace_cv`` loads neither OpenCV nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_cv.files.headers import ImageHeader, check_image_file
    from headrace_cv.files.image_files import decode_image, encode_image
    from headrace_cv.functions.boxes import filter_detections, nms
    from headrace_cv.functions.canvas import letterbox_image
    from headrace_cv.functions.crops import center_crop_image, crop_image, crop_quad
    from headrace_cv.functions.images import convert_color, resize_image
    from headrace_cv.functions.scores import softmax, top_k
    from headrace_cv.functions.tensors import Normalization, image_to_tensor, tensor_to_image
    from headrace_cv.functions.transforms import LetterBoxTransform, boxes_to_image

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
    "letterbox_image",
    "nms",
    "resize_image",
    "softmax",
    "tensor_to_image",
    "top_k",
]

_HOME = {
    "files.headers": "ImageHeader check_image_file",
    "files.image_files": "decode_image encode_image",
    "functions.boxes": "filter_detections nms",
    "functions.canvas": "letterbox_image",
    "functions.crops": "center_crop_image crop_image crop_quad",
    "functions.images": "convert_color resize_image",
    "functions.scores": "softmax top_k",
    "functions.tensors": "Normalization image_to_tensor tensor_to_image",
    "functions.transforms": "LetterBoxTransform boxes_to_image",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
