"""Compare what ``headrace video examples/video/video.toml`` wrote with the truth: mAP, MOTA, IDF1, HOTA.

A line per clip. The truth and the answers are also written as files of the MOT Challenge, for other tools.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import supervision as sv
from supervision.metrics import MeanAveragePrecision
from trackers.eval import evaluate_mot_sequence

MADE = Path(__file__).parent / "made"
CLASSES = {"red": 0, "blue": 1}

Rows = dict[int, list[tuple[int, int, float, list[float]]]]
"""By frame: number of the object, class, score, box."""


def truth_of(clip: str) -> Rows:
    """Return what is in a clip."""
    rows: Rows = defaultdict(list)
    with (MADE / f"{clip}.csv").open(newline="", encoding="utf-8") as file:
        for frame, number, kind, *box in csv.reader(file):
            rows[int(frame)].append((int(number), CLASSES[kind], 1.0, [float(one) for one in box]))
    return rows


def answers() -> tuple[dict[str, Rows], dict[str, Any]]:
    """Return what was found, and the last counts, by clip."""
    found: dict[str, Rows] = {}
    counts: dict[str, Any] = {}
    with (MADE / "out" / "all.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            one = json.loads(line)
            rows = found.setdefault(one["source"], defaultdict(list))
            counts[one["source"]] = one["counts"]["middle"]
            # The last run counts: each adds its lines to the file.
            rows[one["frame"]] = [
                (record["track_id"], record["class_id"], record["score"], record["box"])
                for record in one["detections"]
            ]
    return found, counts


def write_mot(path: Path, rows: Rows) -> Path:
    """Write rows in the format of the MOT Challenge: frames and objects from 1; unconfirmed ones are left out."""
    with path.open("w", encoding="utf-8") as file:
        for frame in sorted(rows):
            for number, _, score, (x1, y1, x2, y2) in rows[frame]:
                if number >= 0:
                    place = f"{x1:.2f},{y1:.2f},{x2 - x1:.2f},{y2 - y1:.2f}"
                    file.write(f"{frame + 1},{number + 1},{place},{score:.4f},1,1\n")
    return path


def detections(rows: list[tuple[int, int, float, list[float]]]) -> sv.Detections:
    """Return the rows of one frame as detections."""
    if not rows:
        return sv.Detections.empty()
    _, kinds, scores, boxes = zip(*rows, strict=True)
    xyxy, confidence = np.array(boxes, np.float32), np.array(scores, np.float32)
    return sv.Detections(xyxy, confidence=confidence, class_id=np.array(kinds))


def main() -> None:
    """Print a line per clip."""
    found, counts = answers()
    print(f"{'clip':10} {'mAP50':>6} {'MOTA':>6} {'IDF1':>6} {'HOTA':>6}   in  out")
    for clip in sorted(found):
        truth = truth_of(clip)
        crossed = f"{counts[clip]['in']:4} {counts[clip]['out']:4}"
        if not truth:
            wrong = sum(map(len, found[clip].values()))
            print(f"{clip:10} nothing is there, {wrong} found{'':6} {crossed}")
            continue
        frames = range(1 + max([*truth, *found[clip]]))
        precision = MeanAveragePrecision()
        precision.update(
            [detections(found[clip][n]) for n in frames], [detections(truth[n]) for n in frames]
        )
        scores = evaluate_mot_sequence(
            write_mot(MADE / f"{clip}_truth.txt", truth),
            write_mot(MADE / f"{clip}_found.txt", found[clip]),
            metrics=["CLEAR", "HOTA", "Identity"],
        )
        numbers: list[float] = [
            precision.compute().map50,
            scores.CLEAR.MOTA,  # type: ignore[union-attr]
            scores.Identity.IDF1,  # type: ignore[union-attr]
            scores.HOTA.HOTA,  # type: ignore[union-attr]
        ]
        print(f"{clip:10} {' '.join(f'{one:6.3f}' for one in numbers)} {crossed}")


if __name__ == "__main__":
    main()
