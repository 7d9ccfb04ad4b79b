"""The cases of ``headrace conformance headrace-cv``: an expression and requests per backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_cv.files.image_files import encode_image
from headrace_cv.functions.transforms import LetterBoxTransform
from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from headrace.keys import Request

__all__ = [
    "CenterCropMatConformance",
    "CropMatConformance",
    "CvtColorMatConformance",
    "Decode2TensorConformance",
    "DecodeMatConformance",
    "EncodeMatConformance",
    "LetterBoxMatConformance",
    "Mat2TensorConformance",
    "NMSConformance",
    "PerspectiveCropMatConformance",
    "ResizeMatConformance",
    "SoftmaxConformance",
    "Tensor2MatConformance",
    "TopKConformance",
    "TopLeftResizeMatConformance",
    "UnletterBoxConformance",
]


def picture(k: int) -> NDArray[np.uint8]:
    """Return picture number ``k``: ``uint8 [H, W, 3]``, noise; fifty sizes."""
    shape = (20 + k % 50, 30 + 2 * (k % 50), 3)
    return np.random.default_rng(k).integers(0, 256, shape, np.uint8)


def bgr(k: int) -> NDArray[np.uint8]:
    """Return picture number ``k``, whose order is that of `EncodeMatConformance`, with blue first."""
    return picture(k)[..., ::-1] if k % 2 else picture(k)


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

    def expected(self, k: int) -> Any:
        """Return the picture, or what OpenCV decodes of a file that loses some of it."""
        import cv2

        file = np.frombuffer(self.make_item(k)["data"], np.uint8)
        return picture(k) if k % 3 == 1 else cv2.imdecode(file, cv2.IMREAD_COLOR)


class Decode2TensorConformance(DecodeMatConformance):
    """The same files, of different sizes."""

    expression = "Decode2Tensor(16,24, scale=0.5, mean=[0.5,0.4,0.3])"

    def expected(self, k: int) -> Any:
        """Return the formula, of what OpenCV makes smaller."""
        import cv2

        pixels = cv2.resize(super().expected(k), (24, 16))[..., ::-1]
        return (pixels * 0.5 - [0.5, 0.4, 0.3]).transpose(2, 0, 1).astype(np.float32)


class EncodeMatConformance(_OnPictures):
    """Pictures, with the order of their channels."""

    expression = "EncodeMat(png)"

    def make_item(self, k: int) -> Request:
        """Give a picture and its colour."""
        return {"data": picture(k), "color": ("bgr", "rgb")[k % 2]}

    def expected(self, k: int) -> Any:
        """Return the file that OpenCV writes, which takes blue first."""
        import cv2

        return cv2.imencode(".png", bgr(k))[1].tobytes()


class CenterCropMatConformance(_OnPictures):
    """Pictures of different sizes, of which some are smaller."""

    expression = "CenterCropMat(22,33)"

    def expected(self, k: int) -> Any:
        """Return rows and columns by their numbers; those outside of the picture are black."""
        height, width = 20 + k, 30 + 2 * k
        black = np.zeros((height + 4, width + 6, 3), np.uint8)
        black[1 : height + 1, 1 : width + 1] = picture(k)
        y = 1 + round((height - 22) / 2) if height > 22 else 1 - (22 - height) // 2
        x = 1 + round((width - 33) / 2) if width > 33 else 1 - (33 - width) // 2
        return black[y : y + 22, x : x + 33]


class ResizeMatConformance(_OnPictures):
    """Pictures of different sizes."""

    expression = "ResizeMat(16,24)"

    def expected(self, k: int) -> Any:
        """Return what OpenCV makes of it."""
        import cv2

        return cv2.resize(picture(k), (24, 16), interpolation=cv2.INTER_LINEAR)


class LetterBoxMatConformance(_OnPictures):
    """Pictures of different aspect ratios."""

    expression = "LetterBoxMat(32,32)"
    centered = True

    def expected(self, k: int) -> Any:
        """Return what OpenCV makes of it, on a canvas of 114: all pictures are wider than high."""
        import cv2

        height = int(32 * (20 + k) / (30 + 2 * k) + 0.5)
        canvas = np.full((32, 32, 3), 114, np.uint8)
        top = (32 - height) // 2 if self.centered else 0
        canvas[top : top + height] = cv2.resize(picture(k), (32, height))
        return canvas


class TopLeftResizeMatConformance(LetterBoxMatConformance):
    """Pictures of different aspect ratios."""

    expression = "TopLeftResizeMat(32,32)"
    centered = False


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

    def expected(self, k: int) -> Any:
        """Return the box by hand: half as large, moved up by 4, cut off below the picture."""
        bottom = min((40 - 4) / 2, 20 + k)
        return np.array([[1, (2 + k) / 2, 15, bottom, 0.5, 1]], np.float32)


class CropMatConformance(_OnPictures):
    """Pictures, with a box in each."""

    expression = "CropMat"

    def make_item(self, k: int) -> Request:
        """Return a picture and a box."""
        return {"data": picture(k), "box": [1 + k % 9, 2, 20, 12 + k % 9]}

    def expected(self, k: int) -> Any:
        """Return rows and columns by their numbers."""
        return picture(k)[2 : 12 + k % 9, 1 + k % 9 : 20]


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

    def expected(self, k: int) -> Any:
        """Return the grey of OpenCV, which takes blue first."""
        import cv2

        return cv2.cvtColor(bgr(k), cv2.COLOR_BGR2GRAY)[..., None]


class Mat2TensorConformance(_OnPictures):
    """Pictures, normalised per channel."""

    expression = "Mat2Tensor(scale=0.00392, mean=[0.5,0.4,0.3], std=[0.2,0.2,0.3])"

    def expected(self, k: int) -> Any:
        """Return the formula, in double precision."""
        values = (picture(k) * 0.00392 - [0.5, 0.4, 0.3]) / [0.2, 0.2, 0.3]
        return values.transpose(2, 0, 1).astype(np.float32)


class Tensor2MatConformance(BackendConformance):
    """Tensors as `Mat2Tensor` makes them."""

    expression = "Tensor2Mat"
    options: Mapping[str, Any] = {"scale": 0.00392, "mean": 0.5}

    def make_item(self, k: int) -> Request:
        """Return a planar tensor."""
        shape = (3, 10 + k % 50, 12)
        return {"data": np.random.default_rng(k).standard_normal(shape).astype(np.float32)}

    def expected(self, k: int) -> Any:
        """Return the formula, in double precision."""
        values = (self.make_item(k)["data"].astype(float) + 0.5) / 0.00392
        return values.transpose(1, 2, 0).round().clip(0, 255).astype(np.uint8)


class _OnScores(BackendConformance):
    """Scores of five classes, in several rows."""

    def make_item(self, k: int) -> Request:
        """Return scores."""
        return {"data": np.random.default_rng(k).normal(0, 4, (1 + k % 3, 5)).astype(np.float32)}


class SoftmaxConformance(_OnScores):
    """Scores of five classes."""

    expression = "Softmax"

    def expected(self, k: int) -> Any:
        """Return the formula, in double precision."""
        powers = np.exp(self.make_item(k)["data"].astype(float))
        return (powers / powers.sum(1, keepdims=True)).astype(np.float32)


class TopKConformance(_OnScores):
    """Scores of five classes, one of which has no name."""

    expression = "TopK(2)"
    options: Mapping[str, Any] = {"labels": ["cat", "dog", "", "hen", "cow"]}

    def expected(self, k: int) -> Any:
        """Return names and scores of the last two in ascending order."""
        rows, names = self.make_item(k)["data"].tolist(), ("cat", "dog", "2", "hen", "cow")
        best = [[(names[row.index(score)], score) for score in sorted(row)[:2:-1]] for row in rows]
        return [[{"label": label, "score": score} for label, score in row] for row in best]


class NMSConformance(BackendConformance):
    """Boxes of two classes, of which some overlap."""

    expression = "NMS(0.5,0.1)"

    def make_item(self, k: int) -> Request:
        """Return the rows of a detector."""
        random = np.random.default_rng(k)
        corner, size = random.uniform(0, 20, (12, 2)), random.uniform(5, 20, (12, 2))
        score, kind = random.uniform(0, 1, (12, 1)), random.integers(0, 2, (12, 1))
        return {"data": np.hstack([corner, corner + size, score, kind]).astype(np.float32)}

    def expected(self, k: int) -> Any:
        """Return the rows that a slow loop keeps."""
        rows = [row for row in self.make_item(k)["data"] if row[4] >= 0.1]
        best: list[Any] = []
        for row in sorted(rows, key=lambda row: -row[4]):
            if all(row[5] != other[5] or _overlap(row, other) <= 0.5 for other in best):
                best.append(row)
        return np.array(best)


def _overlap(box: Any, other: Any) -> float:
    """Return the intersection over the union of two boxes."""
    x = min(box[2], other[2]) - max(box[0], other[0])
    y = min(box[3], other[3]) - max(box[1], other[1])
    areas = [(row[2] - row[0]) * (row[3] - row[1]) for row in (box, other)]
    both = max(x, 0) * max(y, 0)
    return float(both / (sum(areas) - both))
