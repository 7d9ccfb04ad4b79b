"""From the lines of a page to its text: what goes around a classifier and a recogniser."""

from __future__ import annotations

import math

import cv2
import numpy as np
from pydantic import Field

import headrace


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
        """What the classifier reads.

        Attributes:
            height: Height of its input, in pixels
            width: Width of its input, in pixels
        """

        height: int = Field(default=48, ge=1)
        width: int = Field(default=192, ge=1)

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
        """When to turn.

        Attributes:
            turn_above: Lines are turned that are wrong more probably, 0 to 1
        """

        turn_above: float = 0.9

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
        of ``float32 [4, 2]``; ``fit``: the `PageFit` that ``FitPage`` wrote.
    Writes: ``result``: ``{"text": str, "lines": [{"text", "confidence", "quad"}, ...]}``; ``quad``
        is 4 times ``[x, y]`` in pixels of the picture, clockwise from where the text begins above.
    Batch: any number of pages, each by itself.
    Raises: nothing of its own.
    """

    class Options(headrace.Options):
        """What is kept.

        Attributes:
            min_confidence: Lines below it are dropped, 0 to 1
        """

        min_confidence: float = 0.5

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
