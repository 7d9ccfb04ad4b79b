"""Eight video files, detected and tracked: `VideoRunner` beside the same libraries called by hand.

- ``detect``: ``headrace_vision.detect`` with its defaults, over all eight files at once. It builds the pipeline each time.
- ``loop``: a loop per file, one file after the other: PyAV, OpenCV, ONNX Runtime, supervision and trackers.
- ``threads``: the same loops, each in a thread of its own, with one session that all share.
- ``lean``: as ``threads``, with a session of one thread, which does not spin: the least processor time that such loops need.
- ``live`` and ``lean live``: a ``VideoRunner`` that is built before, with the configuration of ``detect``, and the loops of
  ``lean``, with files that are read at their 25 frames a second: 200 in all, where the machine is fast enough.
- ``save``: ``detect`` with the sink ``SaveVideo`` (mpeg4), beside ``process_video``: the function of supervision, whose
  callback detects, tracks and draws, one file after the other.
- ``runner``: what ``VideoRunner`` alone costs a frame: pictures in memory through a backend that does nothing.
- ``boxes``: what ``YoloDetections`` costs a frame, for an output ``[84, 8400]`` with 30 objects, and ``boxes by hand``: the
  same with NumPy and OpenCV in ``float32``.

What is printed are frames a second and processor milliseconds a frame (of the whole process), medians of the rounds; the
ratios are those of each round to its ``loop``, and their medians.

    python -m benchmarks.vision.files [--quick] [--json FILE]
"""

from __future__ import annotations

import os
import runpy
import statistics
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import cv2
import numpy as np
import onnx
import supervision as sv
import trackers
from benchmarks.load import arguments, environment, print_environment, save

import headrace
import headrace_vision

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime

if TYPE_CHECKING:
    from collections.abc import Callable

PREPARE = Path(__file__).resolve().parents[2] / "examples" / "video" / "prepare.py"
PACKAGES = ("headrace", "headrace-vision", "av", "onnxruntime", "supervision", "trackers")
FILES = 8
SIZE = (360, 640)
SIDE = 320
"""Height and width of the network's input, in pixels."""


def render(path: Path, movers: list[Any], frames: int) -> None:
    """Write a video in which squares move."""
    random = np.random.default_rng(len(movers))
    grain = random.normal(70, 6, (4, *SIZE, 3)).clip(0, 255).astype(np.uint8)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=25, options={"preset": "veryfast"})
        stream.height, stream.width, stream.pix_fmt = *SIZE, "yuv420p"
        for number in range(frames):
            image = grain[number % len(grain)].copy()
            for mover, color in movers:
                x1, y1, x2, y2 = (max(one, 0) * 2 for one in mover.box(number))
                image[y1:y2, x1:x2] = color
            frame = av.VideoFrame.from_ndarray(image, format="bgr24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def prepare(folder: Path, frames: int) -> tuple[list[str], str]:
    """Write the videos and the network; return their paths."""
    made = runpy.run_path(str(PREPARE))
    mover, colors = made["Mover"], made["COLORS"]
    videos = []
    for number in range(FILES):
        red = mover("red", 30 + 20 * number, 60, 0.5, 0.2 * number)
        blue = mover("blue", 250, 40 + 12 * number, -0.7, 0.3)
        path = folder / f"v{number}.mp4"
        render(path, [(red, colors["red"]), (blue, colors["blue"])], frames)
        videos.append(str(path))
    model = folder / "detector.onnx"
    onnx.save(made["detector"](made["SIDE"]), model)
    return videos, str(model)


class Detector:
    """A detector of the layout v8 as a program has it that uses the libraries alone."""

    def __init__(
        self, model: str, *, threads: int = 0, score: float = 0.25, overlap: float = 0.5
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(
            model, options, providers=["CPUExecutionProvider"]
        )
        self._score = score
        self._overlap = overlap

    def __call__(self, image: Any) -> sv.Detections:
        """Return what is in an image [H, W, 3], in its pixels."""
        height, width = image.shape[:2]
        scale = min(SIDE / height, SIDE / width)
        inner = round(height * scale), round(width * scale)
        top, left = (SIDE - inner[0]) // 2, (SIDE - inner[1]) // 2
        fitted = np.full((SIDE, SIDE, 3), 114, np.uint8)
        fitted[top : top + inner[0], left : left + inner[1]] = cv2.resize(image, inner[::-1])
        tensor = cv2.cvtColor(fitted, cv2.COLOR_BGR2RGB).transpose(2, 0, 1).astype(np.float32)
        tensor *= np.float32(1 / 255)
        output = self._session.run(None, {"image": tensor[None]})[0][0]
        scores, classes = output[4:].max(0), output[4:].argmax(0)
        keep = scores >= self._score
        x, y, w, h = output[:4, keep]
        boxes = np.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], 1)
        boxes = (boxes - [left, top, left, top]) / scale
        boxes = boxes.clip(0, [width, height, width, height]).astype(np.float32)
        found = sv.Detections(boxes, confidence=scores[keep], class_id=classes[keep])
        return found.with_nms(self._overlap)


def by_hand(detector: Detector, video: str, *, is_live: bool = False) -> int:
    """Detect and track in one file, perhaps at its speed; return its frames."""
    tracker, count = trackers.ByteTrackTracker(), 0
    began = time.monotonic()
    with av.open(video) as container:
        for frame in container.decode(video=0):
            if is_live:
                time.sleep(max(began + (frame.time or 0.0) - time.monotonic(), 0.0))
            image = frame.to_ndarray(format="bgr24")
            tracker.update(detector(image), timestamp=frame.time)
            count += 1
    return count


def in_threads(detector: Detector, videos: list[str], *, is_live: bool = False) -> int:
    """Detect and track in all files, each in a thread."""
    counts: list[int] = []

    def work(video: str) -> None:
        counts.append(by_hand(detector, video, is_live=is_live))

    threads = [threading.Thread(target=work, args=[one]) for one in videos]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def with_headrace(model: str, videos: list[str], **options: Any) -> int:
    """Detect and track in all files with the defaults, and options beside them."""
    count = 0
    for frame in headrace_vision.detect(model, videos, track="bytetrack", **options):
        if frame.error is not None:
            raise frame.error
        count += 1
    return count


def live(runner: headrace_vision.VideoRunner, videos: list[str]) -> int:
    """Detect and track in all files at their speed."""
    count = 0
    for frame in runner.run(videos, realtime=True, frames="every"):
        if frame.error is not None:
            raise frame.error
        count += 1
    return count


def with_supervision(detector: Detector, videos: list[str], folder: Path, frames: int) -> int:
    """Detect, track, draw and save with ``supervision.process_video``."""
    boxes, labels = sv.BoxAnnotator(), sv.LabelAnnotator()
    for number, video in enumerate(videos):
        tracker = trackers.ByteTrackTracker()

        def work(image: Any, number: int, tracker: Any = tracker) -> Any:
            found = tracker.update(detector(image), timestamp=number / 25)
            names = [f"#{one}" for one in found.tracker_id]
            return labels.annotate(boxes.annotate(image, found), found, labels=names)

        sv.process_video(video, str(folder / f"supervision{number}.mp4"), work)
    return frames * len(videos)


def runner_alone(frames: int) -> int:
    """Send pictures in memory through a backend that does nothing, from eight sources."""
    picture = np.zeros((*SIZE, 3), np.uint8)
    sources = {f"s{number}": [picture] * frames for number in range(FILES)}
    with headrace_vision.VideoRunner({"backend": "Identity", "max": 8}) as runner:
        return sum(1 for _ in runner.run(sources))


def yolo_output() -> Any:
    """Return what a YOLOv8 says of a picture of 640 x 640 with 30 objects."""
    random = np.random.default_rng(0)
    output = (0.2 * random.random((84, 8400)) ** 8).astype(np.float32)
    for number in range(30):
        output[:4, 200 * number] = [*random.integers(50, 600, 2), 40, 60]
        output[4 + number, 200 * number] = 0.9
    return output


def boxes_with_headrace(output: Any, frames: int) -> int:
    """Find the boxes of one output again and again."""
    config = {"backend": "YoloDetections(v8)", "input_size": [640, 640]}
    request = {"data": output, "image": np.zeros((640, 640, 3), np.uint8)}
    with headrace.pipe(config) as pipe:
        found = [len(pipe(dict(request))["result"]) for _ in range(frames)]
    assert set(found) == {30}
    return frames


def boxes_by_hand(output: Any, frames: int) -> int:
    """Find the same boxes as a program of one's own does."""
    suppress: Any = cv2.dnn
    for _ in range(frames):
        scores = output[4:].max(0)
        kept = np.flatnonzero(scores >= 0.25)
        boxes, classes = output[:4, kept].T.astype(float), output[4:, kept].argmax(0)
        boxes[:, :2] -= boxes[:, 2:] / 2
        found = suppress.NMSBoxesBatched(boxes, scores[kept], classes.astype(np.int32), 0.0, 0.5)
        assert len(found) == 30
    return frames


def timed(work: Callable[[], int]) -> dict[str, float]:
    """Return ``fps`` and ``ms`` of processor time a frame."""
    began, cpu = time.perf_counter(), time.process_time()
    frames = work()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    return {"fps": frames / wall, "ms": 1000 * cpu / frames}


def main() -> None:
    """Measure and print."""
    args = arguments(__doc__).parse_args()
    rounds, frames = (1, 12) if args.quick else (9, 60)
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        videos, model = prepare(folder, frames)
        detector, lean, output = Detector(model), Detector(model, threads=1), yolo_output()
        config = headrace_vision.detect(model, []).config
        runner = headrace_vision.VideoRunner(config, ordered="Track")
        sides: dict[str, Callable[[], int]] = {
            "loop": lambda: sum(by_hand(detector, video) for video in videos),
            "threads": lambda: in_threads(detector, videos),
            "lean": lambda: in_threads(lean, videos),
            "lean live": lambda: in_threads(lean, videos, is_live=True),
            "detect": lambda: with_headrace(model, videos),
            "live": lambda: live(runner, videos),
            "process_video": lambda: with_supervision(detector, videos, folder, frames),
            "save": lambda: with_headrace(
                model, videos, sinks=[headrace_vision.SaveVideo(folder / "out", codec="mpeg4")]
            ),
            "runner": lambda: runner_alone(10 * frames),
            "boxes": lambda: boxes_with_headrace(output, 10 * frames),
            "boxes by hand": lambda: boxes_by_hand(output, 10 * frames),
        }
        for work in sides.values():
            work()  # imports, pools, caches
        for _ in range(rounds):
            for side, work in sides.items():
                found.setdefault(side, []).append(timed(work))
        runner.close()
    about = environment(PACKAGES)
    print_environment(about)
    print(f"{FILES} files of {frames} frames, {SIZE[1]} x {SIZE[0]}; medians of {rounds}")
    print(f"{'side':14} {'frames/s':>9} {'ms CPU':>8}   over loop: frames/s, CPU")
    for side, rows in found.items():
        fps, ms = (statistics.median(one[key] for one in rows) for key in ("fps", "ms"))
        pairs = list(zip(rows, found["loop"], strict=True))
        ratios = [statistics.median(a[key] / b[key] for a, b in pairs) for key in ("fps", "ms")]
        print(f"{side:14} {fps:9.1f} {ms:8.3f}   {ratios[0]:19.2f} {ratios[1]:5.2f}")
    ratios = [a["ms"] / b["ms"] for a, b in zip(found["live"], found["lean live"], strict=True)]
    print(f"processor time of live over lean live: {statistics.median(ratios):.2f}")
    save(args.json, about, {"sides": found})


if __name__ == "__main__":
    main()
