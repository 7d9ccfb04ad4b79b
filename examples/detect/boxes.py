"""From boxes on the fitted page to boxes on the picture that came."""

from __future__ import annotations

import headrace


@headrace.register("PictureBoxes")
class PictureBoxes(headrace.Backend):
    """Return boxes in pixels of the picture, as numbers that JSON has.

    Reads: ``data``: a list of ``float32 [4, 2]``, corners in pixels of the fitted page; ``fit``: how
        the page was fitted, as FitPage writes it.
    Writes: ``result``: ``{"boxes": [[[x, y], [x, y], [x, y], [x, y]], ...]}``, in pixels of the
        picture, clockwise from the upper left corner, in reading order.
    Batch: any number of pages, each by itself.
    Raises: nothing of its own.
    Source: own
    """

    rerun = True
    reads = ("data", "fit")

    def forward(self, batch: list[headrace.keys.Request]) -> None:
        """Convert the boxes of each page."""
        for request in batch:
            to_picture = request["fit"].to_picture
            request["result"] = {"boxes": [to_picture(quad) for quad in request["data"]]}
