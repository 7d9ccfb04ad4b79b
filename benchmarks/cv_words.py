"""The time that the words of headrace-cv take besides OpenCV: Python code, for which all threads wait.

One thread runs each word on a picture of 16 x 16 pixels, through a pipeline of that word alone. Beside
it run a pipeline of `Identity` and the bare calls of OpenCV or numpy on the same picture; the time of
the word less these two is the word's own Python. The clock is the processor time of the thread. Each figure is
the least of many turns, because other work on the machine only makes a turn longer.

    python -m benchmarks.cv_words [--quick] [--json FILE]

The benchmark needs headrace and headrace-cv.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from benchmarks.load import arguments, environment, print_environment, save

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable


def least_us(call: Callable[[], object], turns: int, calls: int) -> float:
    """Give the least processor time of one call, in microseconds."""
    found = []
    for _ in range(turns):
        began = time.thread_time()
        for _ in range(calls):
            call()
        found.append((time.thread_time() - began) / calls * 1e6)
    return min(found)


def main() -> None:
    given = arguments(__doc__).parse_args()
    turns, calls = (2, 50) if given.quick else (15, 2000)
    about = environment(("headrace", "headrace-cv", "opencv-python-headless", "numpy"))
    print_environment(about)
    cv2.setNumThreads(1)
    coarse = np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8)
    image = cv2.resize(coarse, (16, 16))
    file = cv2.imencode(".jpg", image)[1].tobytes()

    def decode() -> Any:
        return cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)

    def resize() -> Any:
        return cv2.resize(image, (8, 8), interpolation=cv2.INTER_LINEAR)

    def tensor() -> Any:
        planes = np.subtract(image.transpose(2, 0, 1), one, dtype=np.float32)
        return np.multiply(planes, half, planes)

    one, half = np.float32(1), np.float32(0.5)
    border = (2, 2, 0, 0, cv2.BORDER_CONSTANT)
    picture = {"data": image, "color": "bgr", "box": [1.0, 1.0, 9.0, 9.0]}
    cases: dict[str, tuple[dict[str, Any], Callable[[], object]]] = {
        "S[DecodeMat,ResizeMat(8,8)]": ({"data": file}, lambda: (decode(), resize())),
        "DecodeMat": ({"data": file}, decode),
        "ResizeMat(8,8)": (picture, resize),
        "LetterBoxMat(12,8)": (picture, lambda: cv2.copyMakeBorder(resize(), *border)),
        "CropMat": (picture, lambda: None),
        "CvtColorMat(rgb)": (picture, lambda: cv2.cvtColor(image, cv2.COLOR_BGR2RGB)),
        "Mat2Tensor(mean=1,std=2)": (picture, tensor),
        "EncodeMat": (picture, lambda: cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])),
    }
    with headrace.pipe({"backend": "Identity"}) as pipe:
        nothing_us = least_us(lambda: pipe(dict(picture)), turns, calls)
    print(f"a request to Identity: {nothing_us:.2f} us\n")
    figures = {}
    for words, (request, bare) in cases.items():
        with headrace.pipe({"backend": words}) as pipe:
            whole_us = least_us(lambda pipe=pipe, one=request: pipe(dict(one)), turns, calls)  # type: ignore[misc]
        bare_us = least_us(bare, turns, calls)
        own_us = whole_us - nothing_us - bare_us
        figures[words] = {"whole_us": whole_us, "bare_us": bare_us, "own_us": own_us}
        print(
            f"{words:28} {whole_us:6.2f} us, of which bare calls {bare_us:5.2f}, own Python {own_us:5.2f}"
        )
    save(given.json, about, {"identity_us": nothing_us, "words": figures})


if __name__ == "__main__":
    main()
