"""Read the pictures of `prepare.py` with this pipeline and with rapidocr; compare with the truth.

Both use the same network, so what differs is what happens around it. rapidocr's recogniser gets
the decoded pictures one by one, the pipeline gets the files from many threads and makes batches.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
from rapidocr import RapidOCR
from rapidocr.ch_ppocr_rec.typings import TextRecInput

import headrace

HERE = Path(__file__).resolve().parent
CLIENTS = 16


def distance(a: str, b: str) -> int:
    """Count the characters to insert, delete or replace to make ``b`` of ``a`` (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
    return row[-1]


def read_with_headrace(config: Path, paths: list[Path]) -> list[str]:
    """Read all pictures, from several threads at once as in a server."""
    with headrace.pipe(str(config)) as pipe, ThreadPoolExecutor(CLIENTS) as threads:
        requests = [{"data": path.read_bytes()} for path in paths]
        answers = list(threads.map(pipe, requests))
    return [answer["result"]["text"] for answer in answers]


def read_with_rapidocr(paths: list[Path]) -> list[str]:
    """Read all pictures, one by one, with nothing but rapidocr's recogniser."""
    engine = RapidOCR(params={"Global.log_level": "error"})
    pictures: list[Any] = [cv2.imread(str(path), cv2.IMREAD_COLOR) for path in paths]
    engine(pictures[0], use_det=False, use_cls=False, use_rec=True)  # makes the recogniser
    recognise: Any = engine.text_rec
    return [recognise(TextRecInput(img=[picture])).txts[0] for picture in pictures]


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Compare with rapidocr and with the truth.")
    parser.add_argument("--made", type=Path, default=HERE / "made", metavar="DIR")
    made: Path = parser.parse_args().made
    if not (made / "expected.tsv").exists():
        raise SystemExit(f"There are no pictures yet: python {HERE / 'prepare.py'}")
    table = (made / "expected.tsv").read_text(encoding="utf-8")
    names, truth = zip(*(line.split("\t") for line in table.splitlines()), strict=True)
    paths = [made / "lines" / name for name in names]
    ours = read_with_headrace(HERE / "line.toml", paths)
    theirs = read_with_rapidocr(paths)

    print("errors: headrace, rapidocr; picture; what it says; what was read, if that differs")
    for name, text, our, their in zip(names, truth, ours, theirs, strict=True):
        print(f"{distance(our, text):3} {distance(their, text):3}  {name:26} {text}")
        if our != text:
            print(f"{'':11}headrace read {our!r}")
        if their != text:
            print(f"{'':11}rapidocr read {their!r}")
    characters = sum(map(len, truth))
    for who, texts in (("headrace", ours), ("rapidocr", theirs)):
        wrong = sum(map(distance, texts, truth))
        print(f"{who}: {wrong} of {characters} characters wrong ({100 * wrong / characters:.2f} %)")
    same = sum(our == their for our, their in zip(ours, theirs, strict=True))
    print(f"headrace and rapidocr read the same in {same} of {len(names)} pictures")


if __name__ == "__main__":
    main()
