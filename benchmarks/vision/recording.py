"""What a recorder costs beside reading: ``SaveVideo(codec="copy")``, and with ``libx264``.

- ``none``: a ``VideoRunner`` that reads and decodes a video, whose backend does nothing.
- ``copy`` and ``libx264``: the same with this recorder, up to the finished file.

What is printed is processor time a frame (of the whole process), the median of the rounds, and that of each round above its
``none``: what the recorder costs. The last line is copying over ``libx264``.

    python -m benchmarks.vision.recording [--quick] [--json FILE]
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import av
import cv2
import numpy as np
from benchmarks.load import arguments, environment, print_environment, save

from headrace_vision import SaveVideo, VideoRunner

PACKAGES = ("headrace", "headrace-vision", "av")
SIZE = (360, 640)
"""Height and width of the pictures in pixels."""


def render(path: Path, frames: int) -> None:
    """Write a video of a camera that pans over a landscape of blurred noise, with grain."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (SIZE[0] // 8, SIZE[1] // 4, 3), np.uint8)
    scene = cv2.resize(noise, (2 * SIZE[1], SIZE[0]), interpolation=cv2.INTER_CUBIC)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "50", "preset": "veryfast"})
        stream.height, stream.width = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            grain = rng.normal(0, 3, (*SIZE, 1))
            left = 2 * number % SIZE[1]
            image = np.clip(scene[:, left : left + SIZE[1]] + grain, 0, 255).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(image, format="bgr24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


def ms_of(video: Path, folder: Path, codec: str | None, frames: int) -> float:
    """Return milliseconds of processor time a frame."""
    began = time.process_time()
    sinks = [] if codec is None else [SaveVideo(folder / codec, codec=codec, draw=False)]
    with VideoRunner({"backend": "Identity"}, sinks=sinks) as runner:
        found = sum(1 for _ in runner.run(video))
    assert found == frames
    return 1000 * (time.process_time() - began) / frames


def main() -> None:
    """Measure and print."""
    args = arguments(__doc__).parse_args()
    rounds, frames = (1, 30) if args.quick else (9, 100)
    found: dict[str, list[float]] = {"none": [], "copy": [], "libx264": []}
    with tempfile.TemporaryDirectory() as name:
        video = Path(name) / "video.mp4"
        render(video, frames)
        for turn in range(rounds + 1):  # the first one imports
            for side, row in found.items():
                codec = None if side == "none" else side
                ms = ms_of(video, Path(name) / str(turn), codec, frames)
                row += [ms] if turn else []
    own = {
        side: [a - b for a, b in zip(row, found["none"], strict=True)]
        for side, row in found.items()
    }
    ratios = [a / b for a, b in zip(own["copy"], own["libx264"], strict=True)]
    about = environment(PACKAGES)
    print_environment(about)
    print(f"{frames} frames, {SIZE[1]} x {SIZE[0]}; medians of {rounds}")
    print(f"{'side':10} {'ms CPU':>8} {'of it the recorder':>20}")
    for side, row in found.items():
        print(f"{side:10} {statistics.median(row):8.3f} {statistics.median(own[side]):20.3f}")
    print(f"processor time of copying over libx264: {statistics.median(ratios):.3f}")
    save(args.json, about, {"ms": found, "ratios": ratios})


if __name__ == "__main__":
    main()
