"""Images and files made in memory, and backends that are ready to be called."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

import headrace

sys.path.insert(0, str(Path(__file__).parent))  # for the module beside this one

FORMATS = {
    "baseline jpeg": (".jpg", []),
    "progressive jpeg": (".jpg", [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]),
    "jpeg with restarts": (".jpg", [cv2.IMWRITE_JPEG_RST_INTERVAL, 2]),
    "png": (".png", []),
    "lossy webp": (".webp", [cv2.IMWRITE_WEBP_QUALITY, 90]),
    "lossless webp": (".webp", [cv2.IMWRITE_WEBP_QUALITY, 101]),
}


def smooth_image(height, width):
    """A picture in which left, right, top and bottom differ, and so do the channels."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * x / width, 255 * y / height, 255 * (x + y) / (height + width)]
    return np.stack(planes, -1).astype(np.uint8)


def encode(image, kind="png"):
    suffix, params = FORMATS[kind]
    done, encoded = cv2.imencode(suffix, image, params)
    assert done
    return encoded.tobytes()


def ready(backend_class, **options):
    """Return a backend of this class after `init`."""
    backend = backend_class()
    backend._start(backend_class.Options(**options), headrace.InitContext())
    return backend


def run(backend, **request):
    """Run one request and give it back; raise its error."""
    outcomes = backend([request])
    if outcomes is not None:
        raise outcomes[0]
    return request


class Kit:
    formats = FORMATS
    smooth_image = staticmethod(smooth_image)
    encode = staticmethod(encode)
    ready = staticmethod(ready)
    run = staticmethod(run)


@pytest.fixture(scope="session")
def kit():
    return Kit
