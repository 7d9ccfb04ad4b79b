"""Masks of a network, which are smaller than its input, as masks in pixels of the source image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import supervision as sv
    from numpy.typing import NDArray

    from headrace_vision.models.boxes import Fit

__all__ = ["combined", "image_masks"]


def combined(
    coefficients: NDArray[Any], prototypes: NDArray[Any]
) -> Callable[[int, slice, slice], NDArray[Any]]:
    """Return what gives rows and columns of the map of a detection: the sum of the prototypes, each times its coefficient.

    Args:
        coefficients: ``[N, M]``.
        prototypes: ``[M, h, w]``.

    Source:
        YOLACT.
    """
    factors = coefficients.astype(prototypes.dtype)
    return lambda row, ys, xs: np.tensordot(factors[row], prototypes[:, ys, xs], 1)


def image_masks(
    regions: NDArray[Any],
    map_hw: tuple[int, int],
    part_of: Callable[[int, slice, slice], NDArray[Any]],
    fit: Fit,
) -> sv.CompactMask:
    """Return where maps are above 0, interpolated linearly: ``bool [N, H, W]``, of which only what is not empty takes memory.

    Args:
        regions: ``[N, 4]``: ``x1, y1, x2, y2`` in pixels of the source image, outside of which there is no mask.
        map_hw: Height and width of a map, which covers the whole input of the network.
        part_of: Gives rows and columns of the map of a detection.
        fit: How the image was fitted into the input.
    """
    import supervision as sv

    runs, shapes, corners = [], [], []
    for row, (x1, y1, x2, y2) in enumerate(np.ceil(regions).astype(int).tolist()):
        xs, ys = _taps(fit, 0, map_hw[1], x1, x2), _taps(fit, 1, map_hw[0], y1, y2)
        mask = np.zeros((0, 0), bool)
        if len(xs.pixels) and len(ys.pixels):
            part = part_of(row, ys.reach, xs.reach)
            above = part > 0
            xs, ys = xs.touching(above.any(axis=0)), ys.touching(above.any(axis=1))
            mask = xs.mixed(ys.mixed(part).T).T > 0
        corner = (0, 0)
        if mask.size:
            corner = (xs.pixels[0], ys.pixels[0])
        else:
            mask = np.zeros((1, 1), bool)
        runs.append(np.array(sv.mask_to_rle(mask), np.int32))
        shapes.append(mask.shape)
        corners.append(corner)
    sides, begins = (np.array(pairs, np.int32).reshape(-1, 2) for pairs in (shapes, corners))
    return sv.CompactMask(runs, sides, begins, fit.image)


class _Taps(NamedTuple):
    """Between which two rows (or columns) of a map those of the image lie.

    Attributes:
        pixels: Rows of the image.
        before, after: The rows of the map, counted from ``start``.
        part: How far each is on the way from the one to the other.
        start: The first row of the map that is needed.
    """

    pixels: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    part: NDArray[np.float32]
    start: int

    @property
    def reach(self) -> slice:
        """The rows of the map that are needed."""
        return slice(self.start, self.start + int(self.after[-1]) + 1)

    def touching(self, rows: Any) -> _Taps:
        """Return those of which one of the two rows is in ``rows`` (``bool``): only there a sum can be above 0."""
        lines = np.flatnonzero(rows[self.before] | rows[self.after])
        a, b = (lines[0], lines[-1] + 1) if len(lines) else (0, 0)
        return _Taps(
            self.pixels[a:b], self.before[a:b], self.after[a:b], self.part[a:b], self.start
        )

    def mixed(self, part: NDArray[Any]) -> NDArray[Any]:
        """Return the rows of the image from rows of the map."""
        weight = self.part[:, None]
        return part[self.before] * (1 - weight) + part[self.after] * weight


def _taps(fit: Fit, axis: int, count: int, first: int, last: int) -> _Taps:
    """Return the taps of rows ``first`` to ``last`` in a map of ``count`` rows. Padding of the input is not looked at."""
    pixels = np.arange(max(first, 0), min(last, fit.image[1 - axis]))
    ratio = count / fit.canvas[1 - axis]
    begin = fit.shift[axis] * ratio
    end = begin + fit.image[1 - axis] / fit.scale[axis] * ratio
    place = ((pixels + 0.5) / fit.scale[axis] + fit.shift[axis]) * ratio - 0.5
    place = place.clip(begin, max(begin, end - 1)).clip(0, count - 1)
    before = np.floor(place).astype(np.int64)
    after = np.minimum(before + 1, count - 1)
    start = int(before[0]) if len(before) else 0
    part = (place - before).astype(np.float32)
    return _Taps(pixels, before - start, after - start, part, start)
