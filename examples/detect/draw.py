"""Draw boxes onto pages.

Reads the answers of ``headrace run --json`` from a file, or from the standard input:

    headrace run --json examples/detect/detect.toml PAGE... | python examples/detect/draw.py
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

HERE = Path(__file__).resolve().parent
RED = (220, 50, 47)


def draw_boxes(page: Image.Image, boxes: list[list[list[float]]]) -> Image.Image:
    """Return a copy of the page with the outline of each box, corners in pixels."""
    drawn = page.convert("RGB")
    pen = ImageDraw.Draw(drawn)
    for box in boxes:
        pen.polygon([(x, y) for x, y in box], outline=RED, width=max(1, max(page.size) // 800))
    return drawn


def main() -> int:
    """Run from the command line; 1 where a page was not read."""
    parser = argparse.ArgumentParser(description="Draw boxes onto pages.")
    parser.add_argument("answers", nargs="?", type=argparse.FileType(), default=sys.stdin)
    parser.add_argument("--into", type=Path, default=HERE / "made" / "drawn", metavar="DIR")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    failed = 0
    for line in options.answers:
        answer = json.loads(line)
        path = Path(answer["path"])
        if "result" not in answer:
            failed += 1
            print(f"{path}: was not read", file=sys.stderr)
            continue
        with Image.open(path) as picture:
            page = ImageOps.exif_transpose(picture)
        target = options.into / f"{path.stem}.png"
        draw_boxes(page, answer["result"]["boxes"]).save(target, icc_profile=None)
        print(f"{target}: {len(answer['result']['boxes'])} boxes")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
