"""Draw pictures of handwritten digits, in several sizes and formats, and one file that is none.

They come from the data set inside scikit-learn; nothing is downloaded. Written into ``made/`` beside
this file, or into the folder that is named: ``0042-7.png`` is number 42 of the data set, a seven.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent / "made"

images, digits = load_digits(return_X_y=True)
FOLDER.mkdir(parents=True, exist_ok=True)
for number in range(0, len(images), 30):
    ink = (images[number].reshape(8, 8) * 255 / 16).astype(np.uint8)
    side = 8 * (2 + number % 7)
    picture = Image.fromarray(ink).resize((side, side), Image.Resampling.NEAREST).convert("RGB")
    suffix = (".png", ".jpg", ".webp", ".bmp")[number // 30 % 4]
    picture.save(FOLDER / f"{number:04}-{digits[number]}{suffix}")
(FOLDER / "none.png").write_bytes(b"no picture at all")
