"""The pictures that the benchmarks decode."""

from __future__ import annotations

import cv2
import numpy as np

__all__ = ["make_pictures"]


def make_pictures(count: int = 8) -> list[bytes]:
    """Return JPEG files of 640 x 480: blurred noise with grain, about 90 KB each."""
    rng = np.random.default_rng(11)
    files = []
    for _ in range(count):
        coarse = rng.integers(0, 256, (12, 16, 3), np.uint8)
        picture = cv2.resize(coarse, (640, 480), interpolation=cv2.INTER_CUBIC).astype(np.float32)
        picture += rng.normal(0, 6, picture.shape)
        ok, file = cv2.imencode(
            ".jpg", np.clip(picture, 0, 255).astype(np.uint8), [cv2.IMWRITE_JPEG_QUALITY, 90]
        )
        if not ok:
            raise SystemExit("OpenCV cannot write JPEG here")
        files.append(file.tobytes())
    return files
