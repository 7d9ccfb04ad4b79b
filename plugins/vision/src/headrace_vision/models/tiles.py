"""`Tiles` and `MergeTiles`: small objects in large pictures, by any detector."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

import headrace
from headrace.errors import InputError
from headrace_vision.models._each import Each, need

if TYPE_CHECKING:
    from collections.abc import Callable

    import supervision as sv

    from headrace import InitContext
    from headrace.keys import Request

__all__ = ["MergeTiles", "Tiles"]


class Tiles(Each):
    """Cut an image into tiles that overlap: a list, of which ``each`` makes requests. The last ones end at its border.

    Reads:
        data: The image, ``uint8 [H, W, 3]``.

    Writes:
        result: A list of ``uint8 [h, w, 3]``, row by row, and the whole image as the last one. Each is a copy.
        tiles: Where each is in the image: a list of ``[x1, y1, x2, y2]`` in pixels.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: ``data`` is missing or something else.

    Source:
        The slices of SAHI.
    """

    class Options(headrace.Options):
        """How large the tiles are.

        Attributes:
            tile_h: Height of a tile, in pixels.
            tile_w: Width of a tile, in pixels.
            overlap: Part of a tile that the next one has too (0 to 1).
            whole: Add the whole image, for objects that are larger than a tile (true or false).
        """

        tile_h: int = Field(ge=1)
        tile_w: int = Field(ge=1)
        overlap: float = Field(0.2, ge=0, lt=1)
        whole: bool = True

        positional = ("tile_h", "tile_w", "overlap")

    writes = ("result", "tiles")

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        from headrace_vision.models.boxes import as_picture

        def work(request: Request) -> None:
            image = as_picture(request, "data")
            height, width = image.shape[:2]
            xs = _starts(width, options.tile_w, options.overlap)
            ys = _starts(height, options.tile_h, options.overlap)
            size = (options.tile_w, options.tile_h)
            tiles = [
                [x, y, min(x + size[0], width), min(y + size[1], height)] for y in ys for x in xs
            ]
            if options.whole and len(tiles) > 1:
                tiles.append([0, 0, width, height])
            request["tiles"] = tiles
            request["result"] = [image[y1:y2, x1:x2].copy() for x1, y1, x2, y2 in tiles]

        return work


def _starts(length: int, tile: int, overlap: float) -> list[int]:
    """Return where tiles begin along one side of an image."""
    if length <= tile:
        return [0]
    return [*range(0, length - tile, tile - int(overlap * tile)), length - tile]


class MergeTiles(Each):
    """Put the detections of tiles back into the image, and drop the lesser ones of those that overlap.

    Reads:
        data: A list with ``supervision.Detections`` for each tile, as a node with ``each`` writes it.
        tiles: Where each tile is, as `Tiles` writes it.

    Writes:
        result: ``supervision.Detections`` in pixels of the image, by descending score.

    Batch:
        1 or more. Items are independent, a bad one fails alone.

    Raises:
        InputError: A key is missing or something else, there are not as many tiles as detections, or those have no scores.

    Source:
        The suppression of SAHI, by boxes.
    """

    class Options(headrace.Options):
        """Which detections are one object.

        Attributes:
            metric: What the intersection of two boxes is divided by: ios, the smaller box, so that a part of an object
                goes; iou, their union.
            overlap_threshold: Overlap above which the lesser box is dropped (0 to 1).
            class_agnostic: Boxes of different classes drop each other too (true or false).
        """

        metric: Literal["ios", "iou"] = "ios"
        overlap_threshold: float = Field(0.5, ge=0, le=1)
        class_agnostic: bool = False

        positional = ("metric", "overlap_threshold")

    reads = ("data", "tiles")

    def build(self, options: Any, context: InitContext) -> Callable[[Request], None]:
        """Return what works on one request."""
        import numpy as np
        import supervision as sv

        from headrace_vision.models.boxes import QUADS, best_rows

        metric = sv.OverlapMetric.from_value(options.metric)

        def work(request: Request) -> None:
            tiles = _corners(need(request, "tiles", _TILES))
            expected = f"a list of supervision.Detections, one for each of {len(tiles)} tiles"
            parts = need(request, "data", expected)
            if not isinstance(parts, list) or len(parts) != len(tiles):
                got = str(len(parts)) if isinstance(parts, list) else type(parts).__name__
                raise InputError("these are not those of the tiles", expected=expected, got=got)
            size = (max(tile[2] for tile in tiles), max(tile[3] for tile in tiles))
            pairs = zip(parts, tiles, strict=True)
            detections = sv.Detections.merge([_moved(part, tile, size) for part, tile in pairs])
            if len(detections):
                if detections.confidence is None or detections.class_id is None:
                    expected = "detections with scores and classes"
                    raise InputError("the detections cannot be ranked", expected=expected)
                kinds = np.zeros(len(detections)) if options.class_agnostic else detections.class_id
                order = np.argsort(-detections.confidence, kind="stable")
                boxes: Any = detections.xyxy[order].astype(np.float64)
                overlaps_of: Any = sv.box_iou_batch
                if QUADS in detections.data:
                    boxes, overlaps_of = detections.data[QUADS][order], sv.oriented_box_iou_batch
                with_metric = partial(overlaps_of, overlap_metric=metric)
                is_best = best_rows(boxes, kinds[order], options.overlap_threshold, with_metric)
                detections = detections.select(order[is_best])
            request["result"] = detections

        return work


_TILES = "a list of [x1, y1, x2, y2], as Tiles writes it"


def _corners(tiles: Any) -> list[list[int]]:
    """Return where tiles are, as whole numbers."""
    try:
        corners = [[int(x1), int(y1), int(x2), int(y2)] for x1, y1, x2, y2 in tiles]
    except (TypeError, ValueError):
        corners = []
    if not corners:
        got = type(tiles).__name__
        raise InputError("these are no tiles", key="tiles", expected=_TILES, got=got)
    return corners


def _moved(part: Any, tile: list[int], size: tuple[int, int]) -> sv.Detections:
    """Return the detections of a tile in pixels of an image of that width and height."""
    import numpy as np
    import supervision as sv

    from headrace_vision.models.boxes import as_detections

    moved = as_detections(part).select(slice(None))  # a copy
    offset = np.array(tile[:2])
    moved.xyxy = sv.move_boxes(moved.xyxy, offset)
    for key in {"keypoints", "xyxyxyxy"} & set(moved.data):
        points = np.array(moved.data[key])
        points[..., :2] += offset
        moved.data[key] = points
    if isinstance(moved.mask, sv.CompactMask):
        moved.mask = moved.mask.with_offset(tile[0], tile[1], size[::-1])
    elif moved.mask is not None:
        moved.mask = sv.move_masks(moved.mask, offset, size)
    return moved
