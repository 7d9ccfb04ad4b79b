"""Draw what was read onto the pages: boxes on the page, the text beside it at the same places.

Reads the answers of ``headrace run --json`` from a file or from the standard input, or pictures,
which it reads with `page.toml` itself:

    headrace run --json examples/ocr/page.toml examples/ocr/made/pages | python examples/ocr/draw.py
    python examples/ocr/draw.py letter.png receipt.png --into drawn
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw, ImageFont, ImageOps
from prepare import CJK_FONTS, find_fonts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HERE = Path(__file__).resolve().parent
BOX, SURE, UNSURE = (220, 50, 47), (20, 20, 20), (190, 110, 0)


def answers(inputs: list[str]) -> Iterator[dict[str, Any]]:
    """Return path and result of each page, from pictures or from lines of JSON."""
    pictures = [name for name in inputs if not name.endswith((".json", ".jsonl")) and name != "-"]
    for name in inputs or ["-"]:
        if name not in pictures:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
            yield from (json.loads(line) for line in text.split("\n") if line.strip())
    if pictures:
        import headrace

        requests = [{"data": Path(name).read_bytes(), "path": name} for name in pictures]
        with headrace.pipe(str(HERE / "page.toml")) as pipe:
            yield from pipe(requests)


def draw_answer(
    page: Image.Image, lines: Iterable[dict[str, Any]], font: Path | None
) -> Image.Image:
    """Give the page with its boxes, and to the right of it each text where its line begins."""
    page = page.convert("RGB")
    drawn = Image.new("RGB", (2 * page.width, page.height), "white")
    drawn.paste(page)
    pen = ImageDraw.Draw(drawn)
    stroke = max(1, max(page.size) // 800)
    for line in lines:
        corners = [(float(x), float(y)) for x, y in line["quad"]]
        pen.polygon(corners, outline=BOX, width=stroke)
        (left, top), height = corners[0], abs(corners[3][1] - corners[0][1])
        size = min(max(10, int(0.7 * height)), 200)
        letters: Any = ImageFont.truetype(str(font), size) if font else ImageFont.load_default(size)
        ink = SURE if line["confidence"] >= 0.9 else UNSURE
        pen.text((page.width + left, top), line["text"], font=letters, fill=ink)
    return drawn


def find_font() -> Path | None:
    """Return a font that has most characters: a Chinese one, else DejaVu; None: that of Pillow."""
    fonts = find_fonts()
    names = (name.lower() for name in (*CJK_FONTS, "DejaVuSans"))
    return next((fonts[name] for name in names if name in fonts), None)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Draw boxes and text onto the pages.")
    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="pictures, JSON lines, or -")
    parser.add_argument("--into", type=Path, default=HERE / "made" / "drawn", metavar="DIR")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    font = find_font()
    for answer in answers(options.inputs):
        path = Path(answer["path"])
        if "result" not in answer:
            print(f"{path}: was not read", file=sys.stderr)
            continue
        with Image.open(path) as picture:
            page = ImageOps.exif_transpose(picture)
        target = options.into / f"{path.stem}.png"
        draw_answer(page, answer["result"]["lines"], font).save(target, icc_profile=None)
        print(target)


if __name__ == "__main__":
    main()
