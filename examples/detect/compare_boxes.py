"""Find the lines on all pages with the engine and with ONNX Runtime; say how far boxes lie apart.

Boxes are paired by their overlap. The measure is the mean over all boxes of either side of the
intersection over the union (IoU) with the partner; a box without a partner counts as 0.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np

import headrace

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
LEAST = 0.99


def iou(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """Return the intersection over the union of two convex quadrangles, corners ``[x, y]``."""
    first, second = (np.asarray(quad, np.float32) for quad in (a, b))
    shared = cv2.intersectConvexConvex(first, second)[0]
    union = cv2.contourArea(first) + cv2.contourArea(second) - shared
    return float(shared / union) if union > 0 else 0.0


def overlaps(ours: Sequence[Any], theirs: Sequence[Any]) -> list[float]:
    """Pair boxes, those that overlap most first; give an IoU per pair and 0 per box left over."""
    pairs = sorted(
        ((iou(a, b), i, k) for i, a in enumerate(ours) for k, b in enumerate(theirs)), reverse=True
    )
    found: list[float] = []
    left, right = set(range(len(ours))), set(range(len(theirs)))
    for value, i, k in pairs:
        if value > 0 and i in left and k in right:
            found.append(value)
            left.remove(i)
            right.remove(k)
    return found + [0.0] * (len(left) + len(right))


def boxes_of(config: Path, pages: Sequence[bytes], clients: int) -> list[list[Any]]:
    """Return the boxes of each page, read from so many threads at once."""
    with headrace.pipe(str(config)) as pipe, ThreadPoolExecutor(clients) as threads:
        answers = list(threads.map(pipe, [{"data": page} for page in pages]))
    return [answer["result"]["boxes"] for answer in answers]


def compare(config: Path, against: Path, paths: Sequence[Path], clients: int = 4) -> float:
    """Compare two pipelines, print a line per page, and give the mean IoU of all boxes."""
    pages = [path.read_bytes() for path in paths]
    ours, theirs = (boxes_of(which, pages, clients) for which in (config, against))
    every: list[float] = []
    for path, our, their in zip(paths, ours, theirs, strict=True):
        found = overlaps(our, their)
        every += found
        mean = f"mean IoU {np.mean(found):.4f}" if found else "no text on either side"
        print(f"{len(our):4} and {len(their):4} boxes, {mean}  {path.name}")
    return float(np.mean(every)) if every else 1.0


def main() -> int:
    """Run from the command line; 1 where the boxes lie too far apart."""
    parser = argparse.ArgumentParser(description="Compare boxes with those of ONNX Runtime.")
    parser.add_argument("--pages", type=Path, default=HERE / "made" / "pages", metavar="DIR")
    parser.add_argument("--config", type=Path, default=HERE / "detect.toml")
    parser.add_argument("--against", type=Path, default=HERE / "detect_onnx.toml")
    options = parser.parse_args()
    paths = sorted(options.pages.glob("*"))
    if not paths:
        raise SystemExit(f"There are no pages in {options.pages}: README.md says how to make them.")
    mean = compare(options.config, options.against, paths)
    print(f"mean IoU {mean:.4f} (wanted {LEAST}) on {len(paths)} pages")
    return 0 if mean >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
