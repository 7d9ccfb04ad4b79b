"""From a page to boxes around its lines of text: what goes before and after a text detector.

The detector is a network of the kind "DB" (differentiable binarization): for each pixel of the
page it says how probable it is that it lies in the core of a line of text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import pyclipper
from pydantic import Field

import headrace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

STRIDE = 32
"""Sides of pages that were resized are multiples of this, in pixels."""

MIN_CORE = 3
"""Cores with a side below this are specks, in pixels of the map."""

MIN_SIDE = 4
"""Boxes with a side below this are no lines, in pixels of the page."""

SAME_LINE = 10
"""Boxes whose upper left corners are nearer than this lie in one line, in pixels."""


def to_stride(side: float) -> int:
    """Round a side to the nearest multiple of `STRIDE`, at least that."""
    return max(STRIDE, round(int(side) / STRIDE) * STRIDE)


def picture_of(request: headrace.keys.Request) -> NDArray[np.uint8]:
    """Return the colour picture in ``data``.

    Raises:
        InputError: There is none.
    """
    picture: Any = request.get("data")
    shape: tuple[int, ...] = getattr(picture, "shape", ())
    if len(shape) != 3 or shape[2] != 3 or 0 in shape or picture.dtype != np.uint8:
        wanted, got = "uint8 [H, W, 3]", f"{type(picture).__name__} {list(shape)}"
        raise headrace.errors.InputError("no picture", key="data", expected=wanted, got=got)
    return picture  # type: ignore[no-any-return]


@dataclass(frozen=True)
class PageFit:
    """How a page was fitted: ``[x, y]`` there is ``([x, y] - [0, top]) * scale`` in the picture.

    Attributes:
        width, height: Size of the picture, in pixels.
        scale: Pixels of the picture per pixel of the fitted page, along x and y.
        top: Rows that were put above the page, in pixels.
    """

    width: int
    height: int
    scale: tuple[float, float]
    top: int

    def to_picture(self, quad: NDArray[np.float32]) -> list[list[float]]:
        """Return the corners of a box in pixels of the picture."""
        corners = (quad.astype(float) - [0, self.top]) * self.scale
        rows: list[list[float]] = np.clip(corners, 0, [self.width, self.height]).round(1).tolist()
        return rows


@headrace.register("FitPage")
class FitPage(headrace.Backend):
    """Make a page smaller or larger where it must be, and put space around a strip.

    Reads: ``data``: an image, ``uint8 [H, W, 3]``.
    Writes: ``result``: the page; ``fit``: a `PageFit`, how to get back.
    Batch: any number of pages, each by itself.
    Raises: InputError for what is no such image.
    Source: the limits and the black space of rapidocr.
    """

    class Options(headrace.Options):
        """How large, how small and how flat a page may be.

        Attributes:
            max_side: Longest side, in pixels
            min_side: Shortest side, in pixels
            max_aspect: Flatter ones get space: width by height (a ratio)
        """

        max_side: int = Field(default=2000, ge=STRIDE)
        min_side: int = Field(default=30, ge=1)
        max_aspect: float = Field(default=8.0, gt=0)

    rerun = True
    writes = ("result", "fit")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the options."""
        self.options = options

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Fit each page by itself."""
        for request in batch:
            picture = picture_of(request)
            height, width = picture.shape[:2]
            page: Any = self._resized(picture)
            scale = width / page.shape[1], height / page.shape[0]
            top = self._space(page)
            if top:
                page = cv2.copyMakeBorder(page, top, top, 0, 0, cv2.BORDER_CONSTANT)
            request["result"] = page
            request["fit"] = PageFit(width, height, scale, top)

    def _resized(self, page: NDArray[np.uint8]) -> NDArray[np.uint8]:
        longest, shortest = max(page.shape[:2]), min(page.shape[:2])
        if longest > self.options.max_side:
            ratio = self.options.max_side / longest
        elif shortest < self.options.min_side:
            ratio = min(self.options.min_side / shortest, self.options.max_side / longest)
        else:
            return page
        height, width = (to_stride(side * ratio) for side in page.shape[:2])
        resized: Any = cv2.resize(page, (width, height))
        return resized  # type: ignore[no-any-return]

    def _space(self, page: NDArray[np.uint8]) -> int:
        height, width = map(int, page.shape[:2])
        if height > self.options.min_side and width / height <= self.options.max_aspect:
            return 0
        wanted = 2 * max(int(width / self.options.max_aspect), self.options.min_side)
        return abs(wanted - height) // 2


@headrace.register("DetectorMat")
class DetectorMat(headrace.Backend):
    """Resize a page for the detector: no side too short, both multiples of 32.

    A strip of a few pixels by thousands stays short: no side becomes longer than ``longest``.

    Reads: ``data``: an image, ``uint8 [H, W, 3]``.
    Writes: ``result``: the image resized; ``page_size``: ``(H, W)`` of the one that came.
    Batch: any number of pages, each by itself.
    Raises: InputError for what is no such image.
    Source: PaddleOCR's ``DetResizeForTest`` with ``limit_type = "min"``.
    """

    class Options(headrace.Options):
        """How small a page may be.

        Attributes:
            min_side: Pages with a shorter side are enlarged, in pixels
            longest: No side is enlarged beyond it, in pixels
        """

        min_side: int = Field(default=736, ge=STRIDE)
        longest: int = Field(default=8000, ge=STRIDE)

    rerun = True
    writes = ("result", "page_size")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the options."""
        self.options = options

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Resize each page by itself."""
        for request in batch:
            page = picture_of(request)
            height, width = page.shape[:2]
            wanted = self.options.min_side / min(height, width)
            ratio = max(1.0, min(wanted, self.options.longest / max(height, width)))
            size = to_stride(width * ratio), to_stride(height * ratio)
            request["page_size"] = height, width
            request["result"] = page if size == (width, height) else cv2.resize(page, size)


@headrace.register("DbBoxes")
class DbBoxes(headrace.Backend):
    """Read boxes around lines of text off the detector's map.

    Reads: ``data``: probabilities, ``float32 [1, h, w]``; ``page_size``: ``(H, W)``.
    Writes: ``result``: list of ``float32 [4, 2]``, corners in pixels of the page, clockwise from
        the upper left one, in reading order.
    Batch: any number of maps, each by itself.
    Raises: InputError for what is no such map.
    Source: Liao et al. 2020, "Real-time Scene Text Detection with Differentiable Binarization",
        section 3.5; order, limits and defaults as in rapidocr.
    """

    class Options(headrace.Options):
        """What counts as text, and how much larger than its core a line is.

        Attributes:
            threshold: Pixels above it are text, 0 to 1
            box_threshold: Boxes with a lower mean are dropped, 0 to 1
            unclip_ratio: Growth: this times the area by the circumference
            max_boxes: Most boxes looked at in a page
        """

        threshold: float = 0.3
        box_threshold: float = 0.5
        unclip_ratio: float = Field(default=1.6, gt=0)
        max_boxes: int = Field(default=1000, ge=1)

    rerun = True
    reads = ("data", "page_size")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the options."""
        self.options = options

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Read each map by itself."""
        for request in batch:
            text = request["data"]
            shape: tuple[int, ...] = getattr(text, "shape", ())
            if len(shape) != 3 or shape[0] != 1:
                wanted, got = "float32 [1, h, w]", f"{type(text).__name__} {list(shape)}"
                raise headrace.errors.InputError("no map", key="data", expected=wanted, got=got)
            quads = (
                self._on_page(core, shape, *request["page_size"]) for core in self._grown(text[0])
            )
            request["result"] = in_reading_order([quad for quad in quads if quad is not None])

    def _grown(self, text: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
        """Return the grown boxes in a map, in its own pixels."""
        mask = cv2.dilate((text > self.options.threshold).view(np.uint8), np.ones((2, 2), np.uint8))
        contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        for contour in contours[: self.options.max_boxes]:
            core, side = smallest_box(contour)
            if side < MIN_CORE or mean_inside(text, core) < self.options.box_threshold:
                continue
            outline = grown(core, self.options.unclip_ratio)
            quad, side = smallest_box(outline) if len(outline) else (core, 0)
            if side >= MIN_CORE + 2:
                yield quad

    def _on_page(
        self, quad: NDArray[np.float32], shape: tuple[int, ...], height: int, width: int
    ) -> NDArray[np.float32] | None:
        """Move a box from the map to the page; None when too little of it is left there."""
        scale = np.array([width / shape[2], height / shape[1]])
        limit = np.array([width - 1, height - 1])
        quad = clockwise(np.clip(np.round(quad * scale), 0, limit).astype(np.float32))
        edges = np.roll(quad, -1, axis=0) - quad
        after = np.roll(edges, -1, axis=0)
        is_convex = (edges[:, 0] * after[:, 1] > edges[:, 1] * after[:, 0]).all()
        is_large = min(np.hypot(*edges[0]), np.hypot(*edges[3])) >= MIN_SIDE
        return quad if is_convex and is_large else None


def smallest_box(points: NDArray[Any]) -> tuple[NDArray[np.float32], float]:
    """Return the smallest box around points, turned as it needs, and its shorter side."""
    box = cv2.minAreaRect(points)
    return clockwise(np.asarray(cv2.boxPoints(box), np.float32)), min(box[1])


def clockwise(quad: NDArray[np.float32]) -> NDArray[np.float32]:
    """Order corners: upper left, upper right, lower right, lower left."""
    by_x = quad[np.argsort(quad[:, 0], kind="stable")]
    left, right = (pair[np.argsort(pair[:, 1], kind="stable")] for pair in (by_x[:2], by_x[2:]))
    return np.stack([left[0], right[0], right[1], left[1]])


def mean_inside(text: NDArray[np.float32], quad: NDArray[np.float32]) -> float:
    """Return the mean of a map inside a box."""
    limit = np.array(text.shape[::-1]) - 1
    left, top = np.clip(np.floor(quad.min(0)), 0, limit).astype(int)
    right, bottom = np.clip(np.ceil(quad.max(0)), 0, limit).astype(int)
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(mask, [(quad - np.array([left, top], np.float32)).astype(np.int32)], 1)
    return float(cv2.mean(text[top : bottom + 1, left : right + 1], mask)[0])


def grown(quad: NDArray[np.float32], ratio: float) -> NDArray[np.int32]:
    """Move the outline of a box outwards, by ``ratio`` times its area by its circumference."""
    distance = ratio * cv2.contourArea(quad) / cv2.arcLength(quad, closed=True)
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(quad.astype(int).tolist(), pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    outlines = offset.Execute(distance)
    return np.array([point for outline in outlines for point in outline], np.int32)


def in_reading_order(quads: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
    """Sort boxes by line, then from left to right; a line ends where the next box is lower."""
    quads = sorted(quads, key=lambda quad: float(quad[0, 1]))
    ordered: list[NDArray[np.float32]] = []
    line: list[NDArray[np.float32]] = []
    for quad in quads:
        if line and quad[0, 1] - line[-1][0, 1] >= SAME_LINE:
            ordered += sorted(line, key=lambda quad: float(quad[0, 0]))
            line = []
        line.append(quad)
    return ordered + sorted(line, key=lambda quad: float(quad[0, 0]))
