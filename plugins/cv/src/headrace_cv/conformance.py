"""The cases of ``headrace conformance headrace-cv``: an expression and requests per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_cv.image_files import encode_image
from headrace_cv.transforms import LetterBoxTransform
from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from headrace.keys import Request

__all__ = [
    "CenterCropMatConformance",
    "CropMatConformance",
    "CvtColorMatConformance",
    "DecodeMatConformance",
    "EncodeMatConformance",
    "LetterBoxMatConformance",
    "Mat2TensorConformance",
    "NMSConformance",
    "PerspectiveCropMatConformance",
    "ResizeMatConformance",
    "Tensor2MatConformance",
    "TopLeftResizeMatConformance",
    "UnletterBoxConformance",
]


def picture(k: int) -> NDArray[np.uint8]:
    """Return picture number ``k``: ``uint8 [H, W, 3]``, noise; each ``k`` has another size."""
    shape = (20 + k, 30 + 2 * k, 3)
    return np.random.default_rng(k).integers(0, 256, shape, np.uint8)


class _OnPictures(BackendConformance):
    """Requests with a picture."""

    def make_item(self, k: int) -> Request:
        """Return a picture."""
        return {"data": picture(k)}


class DecodeMatConformance(BackendConformance):
    """JPEG, PNG and WebP files in turn."""

    expression = "DecodeMat"

    def make_item(self, k: int) -> Request:
        """Return a file in memory."""
        return {"data": encode_image(picture(k), "bgr", ("jpeg", "png", "webp")[k % 3])}


class EncodeMatConformance(_OnPictures):
    """Pictures, with the order of their channels."""

    expression = "EncodeMat(png)"

    def make_item(self, k: int) -> Request:
        """Give a picture and its colour."""
        return {"data": picture(k), "color": ("bgr", "rgb")[k % 2]}


class CenterCropMatConformance(_OnPictures):
    """Pictures of different sizes, of which some are smaller."""

    expression = "CenterCropMat(22,33)"


class ResizeMatConformance(_OnPictures):
    """Pictures of different sizes."""

    expression = "ResizeMat(16,24)"


class LetterBoxMatConformance(_OnPictures):
    """Pictures of different aspect ratios."""

    expression = "LetterBoxMat(32,32)"


class TopLeftResizeMatConformance(_OnPictures):
    """Pictures of different aspect ratios."""

    expression = "TopLeftResizeMat(32,32)"


class UnletterBoxConformance(BackendConformance):
    """Boxes on canvases of several heights."""

    expression = "UnletterBox"

    def make_item(self, k: int) -> Request:
        """Return boxes, and how the picture lies in the canvas."""
        height = 20 + k
        transform = LetterBoxTransform(
            image_h=height,
            image_w=32,
            content_h=2 * height,
            content_w=64,
            canvas_h=2 * height + 8,
            canvas_w=64,
            left=0,
            top=4,
        )
        rows = np.array([[2.0, 6.0 + k, 30.0, 40.0, 0.5, 1.0]], np.float32)
        return {"data": rows, "letterbox": transform}


class CropMatConformance(_OnPictures):
    """Pictures, with a box in each."""

    expression = "CropMat"

    def make_item(self, k: int) -> Request:
        """Return a picture and a box."""
        return {"data": picture(k), "box": [1 + k, 2, 20, 12 + k]}


class PerspectiveCropMatConformance(_OnPictures):
    """Pictures, with four corners in each."""

    expression = "PerspectiveCropMat"

    def make_item(self, k: int) -> Request:
        """Return a picture and the corners of a quadrilateral."""
        step = k % 5
        return {"data": picture(k), "quad": [[1, 1 + step], [24, 3], [22 + step, 15], [2, 13]]}


class CvtColorMatConformance(_OnPictures):
    """Pictures in both orders of the channels."""

    expression = "CvtColorMat(gray)"

    def make_item(self, k: int) -> Request:
        """Give a picture and its colour."""
        return {"data": picture(k), "color": ("bgr", "rgb")[k % 2]}


class Mat2TensorConformance(_OnPictures):
    """Pictures, normalised per channel."""

    expression = "Mat2Tensor(scale=0.00392, mean=[0.5,0.4,0.3], std=[0.2,0.2,0.3])"


class Tensor2MatConformance(BackendConformance):
    """Tensors as `Mat2Tensor` makes them."""

    expression = "Tensor2Mat"
    options: Mapping[str, Any] = {"scale": 0.00392, "mean": 0.5}

    def make_item(self, k: int) -> Request:
        """Return a planar tensor."""
        shape = (3, 10 + k, 12)
        return {"data": np.random.default_rng(k).standard_normal(shape).astype(np.float32)}


class NMSConformance(BackendConformance):
    """Boxes of two classes, of which some overlap."""

    expression = "NMS(0.5,0.1)"

    def make_item(self, k: int) -> Request:
        """Return the rows of a detector."""
        random = np.random.default_rng(k)
        corner, size = random.uniform(0, 20, (12, 2)), random.uniform(5, 20, (12, 2))
        score, kind = random.uniform(0, 1, (12, 1)), random.integers(0, 2, (12, 1))
        return {"data": np.hstack([corner, corner + size, score, kind]).astype(np.float32)}
