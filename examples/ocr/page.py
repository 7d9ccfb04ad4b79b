"""What whole pages need besides a detector and a recogniser: size, orientation, the text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from pydantic import Field

import headrace

if TYPE_CHECKING:
    from numpy.typing import NDArray

STRIDE = 32
"""Pages that are resized get sides that are multiples of this, in pixels."""


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
        """Give the corners of a box in pixels of the picture."""
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
        """How large, how small and how flat a page may be."""

        max_side: int = Field(default=2000, ge=STRIDE, description="Longest side, in pixels")
        min_side: int = Field(default=30, ge=1, description="Shortest side, in pixels")
        max_aspect: float = Field(
            default=8.0, gt=0, description="Flatter ones get space: width by height (a ratio)"
        )

    rerun = True
    writes = ("result", "fit")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the options."""
        self.options = options

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Fit each page by itself."""
        for request in batch:
            picture: Any = request.get("data")
            shape = getattr(picture, "shape", ())
            if len(shape) != 3 or shape[2] != 3 or 0 in shape or picture.dtype != np.uint8:
                wanted, got = "uint8 [H, W, 3]", f"{type(picture).__name__} {list(shape)}"
                raise headrace.errors.InputError("no page", key="data", expected=wanted, got=got)
            page = self._resized(picture)
            scale = shape[1] / page.shape[1], shape[0] / page.shape[0]
            top = self._space(page)
            if top:
                page = cv2.copyMakeBorder(page, top, top, 0, 0, cv2.BORDER_CONSTANT)
            request["result"] = page
            request["fit"] = PageFit(shape[1], shape[0], scale, top)

    def _resized(self, page: NDArray[np.uint8]) -> NDArray[np.uint8]:
        height, width = page.shape[:2]
        for is_wrong, ratio in (
            (
                max(height, width) > self.options.max_side,
                self.options.max_side / max(height, width),
            ),
            (
                min(height, width) < self.options.min_side,
                self.options.min_side / min(height, width),
            ),
        ):
            if is_wrong:
                sides = (max(1, round(int(side * ratio) / STRIDE)) for side in (height, width))
                height, width = (side * STRIDE for side in sides)
        if (height, width) == page.shape[:2]:
            return page
        resized: Any = cv2.resize(page, (width, height))
        return resized  # type: ignore[no-any-return]

    def _space(self, page: NDArray[np.uint8]) -> int:
        height, width = page.shape[:2]
        if height > self.options.min_side and width / height <= self.options.max_aspect:
            return 0
        wanted = 2 * max(int(width / self.options.max_aspect), self.options.min_side)
        return abs(wanted - height) // 2


@headrace.register("OrientationInput")
class OrientationInput(headrace.Backend):
    """Make a line what the orientation classifier reads; longer lines are squeezed.

    Reads: ``data``: an image, ``uint8 [H, W, 3]``.
    Writes: ``result``: ``float32 [3, height, width]`` from -1 to 1, 0 after the end of the line;
        ``line``: the image that came.
    Batch: any number of lines, each by itself.
    Raises: nothing of its own.
    Source: PaddleOCR's ``ClsResizeImg``.
    """

    class Options(headrace.Options):
        """What the classifier reads."""

        height: int = Field(default=48, ge=1, description="Height of its input, in pixels")
        width: int = Field(default=192, ge=1, description="Width of its input, in pixels")

    rerun = True
    writes = ("result", "line")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the options."""
        self.height, self.width = options.height, options.width

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Prepare each line by itself."""
        for request in batch:
            line = request["line"] = request["data"]
            width = min(self.width, math.ceil(self.height * line.shape[1] / line.shape[0]))
            tensor = np.zeros((3, self.height, self.width), np.float32)
            pixels = cv2.resize(line, (width, self.height)).transpose(2, 0, 1)
            tensor[:, :, :width] = pixels / np.float32(127.5) - np.float32(1.0)
            request["result"] = tensor


@headrace.register("UprightLine")
class UprightLine(headrace.Backend):
    """Turn a line by 180 degrees that stands on its head.

    Reads: ``data``: ``float32 [2]``, how probable it is that the line is upright, or not;
        ``line``: its image, ``uint8 [H, W, 3]``.
    Writes: ``result``: the image, upright.
    Batch: any number of lines, each by itself.
    Raises: nothing of its own.
    Source: PaddleOCR's text angle classifier.
    """

    class Options(headrace.Options):
        """When to turn."""

        turn_above: float = Field(
            default=0.9, description="Lines are turned that are wrong more probably, 0 to 1"
        )

    rerun = True
    reads = ("data", "line")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the option."""
        self.turn_above = options.turn_above

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Turn those lines that need it."""
        for request in batch:
            line = request["line"]
            is_wrong = request["data"][1] > self.turn_above
            request["result"] = cv2.rotate(line, cv2.ROTATE_180) if is_wrong else line


@headrace.register("PageText")
class PageText(headrace.Backend):
    """Gather what was read into the text of a page.

    Reads: ``data``: list of ``{"text": str, "confidence": float}``, one per box; ``boxes``: list
        of ``float32 [4, 2]``; ``fit``: the `PageFit` of the page.
    Writes: ``result``: ``{"text": str, "lines": [{"text", "confidence", "quad"}, ...]}``; ``quad``
        is 4 times ``[x, y]`` in pixels of the picture, clockwise from where the text begins above.
    Batch: any number of pages, each by itself.
    Raises: nothing of its own.
    """

    class Options(headrace.Options):
        """What is kept."""

        min_confidence: float = Field(default=0.5, description="Lines below it are dropped, 0 to 1")

    rerun = True
    reads = ("data", "boxes", "fit")

    def init(self, options: Options, context: headrace.InitContext) -> None:
        """Keep the option."""
        self.min_confidence = options.min_confidence

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Gather each page by itself."""
        for request in batch:
            lines = [
                {**line, "quad": request["fit"].to_picture(quad)}
                for line, quad in zip(request["data"], request["boxes"], strict=True)
                if line["text"].strip() and line["confidence"] >= self.min_confidence
            ]
            text = "\n".join(line["text"] for line in lines)
            request["result"] = {"text": text, "lines": lines}
