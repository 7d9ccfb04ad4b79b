"""Reads pages with ONNX Runtime on the CPU and with TensorRT, and compares boxes and text.

    python examples/detect/compare.py [FOLDER]

Exit status 1 where the boxes cover each other by less than 0.99 in the mean, or more than 0.5 % of
the characters differ.
"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import headrace

HERE = Path(__file__).resolve().parent
OCR = HERE.parent / "ocr"
WANTED_COVER = 0.99
MOST_WRONG = 0.005


def cover(one: Any, other: Any) -> float:
    """Give intersection over union of two convex quadrilaterals, as ``[4, 2]`` corners."""
    first, second = (np.asarray(quad, np.float32).reshape(4, 2) for quad in (one, other))
    common, _ = cv2.intersectConvexConvex(cv2.convexHull(first), cv2.convexHull(second))
    union = cv2.contourArea(first) + cv2.contourArea(second) - common
    return float(common / union) if union > 0 else 0.0


def mean_cover(ours: list[Any], theirs: list[Any]) -> float:
    """Give the mean over ``theirs`` of the best cover by one of ``ours``; boxes too many count 0."""
    if not ours and not theirs:
        return 1.0
    best = [max((cover(a, b) for b in ours), default=0.0) for a in theirs]
    return sum(best) / max(len(ours), len(theirs))


def different(ours: str, theirs: str) -> int:
    """Give how many characters of ``theirs`` are not in ``ours`` at their place."""
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    same = sum(block.size for block in matcher.get_matching_blocks())
    return max(len(ours), len(theirs)) - same


def read(config: str, pages: list[Path]) -> list[dict[str, Any]]:
    """Read pages with a configuration of examples/ocr."""
    with headrace.pipe(str(OCR / config)) as pipe:
        requests = pipe([{"data": page.read_bytes()} for page in pages])
    return [request["result"] for request in requests]


def compare(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> tuple[float, int, int]:
    """Give the mean cover of boxes, characters that differ, and all characters."""
    covers = []
    wrong = total = 0
    for mine, other in zip(ours, theirs, strict=True):
        quads = [[line["quad"] for line in page["lines"]] for page in (mine, other)]
        if any(quads):
            covers.append(mean_cover(*quads))
        texts = ["\n".join(line["text"] for line in page["lines"]) for page in (mine, other)]
        wrong += different(*texts)
        total += len(texts[1])
    return sum(covers) / max(len(covers), 1), wrong, total


def main() -> int:
    """Compare the pages of a folder."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else OCR / "made" / "pages"
    pages = sorted(path for path in folder.iterdir() if path.is_file())
    covered, wrong, total = compare(read("page_trt.toml", pages), read("page.toml", pages))
    print(f"boxes cover each other by {covered:.4f} in the mean")
    print(f"{wrong} of {total} characters differ ({100 * wrong / max(total, 1):.2f} %)")
    return 0 if covered >= WANTED_COVER and wrong <= MOST_WRONG * total else 1


if __name__ == "__main__":
    sys.exit(main())
