"""Videos and pictures rendered in a folder of the test, and a network that is not one."""

from __future__ import annotations

import functools
import math
import shutil
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

import headrace
from headrace_vision.running import runner
from headrace_vision.sinks import thread

sys.path.insert(0, str(Path(__file__).parent))  # for quick_clock and others

from web_servers import Receiver

PATIENCE_S = 120
"""Seconds of the machine after which something that must happen has not."""


def picture(number, size=(48, 64)):
    """A picture that tells its number by its brightness, with a square that moves."""
    height, width = size
    image = np.full((height, width, 3), 20 + 8 * (number % 20), np.uint8)
    left = (3 * number) % (width - 12)
    image[10:22, left : left + 12] = (0, 0, 255)
    return image


def render(path, count=12, rate=10, size=(48, 64), codec="libx264", times=None, rotation=None):
    """Write a video of `picture`s; `times` in milliseconds replaces the even spacing."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = size
        stream.pix_fmt = {"gif": "rgb8", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
        stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.gop_size = 6
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(picture(number, size), format="bgr24")
            frame.pts = int(1000 * number / rate) if times is None else times[number]
            frame.time_base = Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return str(path)


def plain_loop(path):
    """The pictures and times of a video by PyAV alone."""
    with av.open(str(path)) as container:
        return [(f.to_ndarray(format="bgr24"), f.time) for f in container.decode(video=0)]


@functools.lru_cache(maxsize=4)
def weights(shape):
    return np.arange(1, math.prod(shape) + 1, dtype=np.float64).reshape(shape) % 251


def network(image):
    """A stand-in for a network: numbers that depend on every pixel."""
    return (image * weights(image.shape)).sum((0, 1))


def encoded(image, suffix=".png"):
    return cv2.imencode(suffix, image)[1].tobytes()


def overtaken():
    """Return a model that holds its first image until 20 have come, and the function that feeds them."""
    entered, go = threading.Event(), threading.Event()

    def held(image):
        entered.set()
        go.wait(PATIENCE_S)
        return int(image[0, 0, 0])

    def feed():
        yield np.full((4, 4, 3), 0, np.uint8)
        entered.wait(PATIENCE_S)
        for value in range(1, 20):
            yield np.full((4, 4, 3), value, np.uint8)
        go.set()

    return held, feed


class Kit:
    overtaken = staticmethod(overtaken)
    picture = staticmethod(picture)
    render = staticmethod(render)
    plain_loop = staticmethod(plain_loop)
    network = staticmethod(network)
    encoded = staticmethod(encoded)


@pytest.fixture(scope="session")
def kit():
    return Kit


@pytest.fixture(scope="session", autouse=True)
def _patient():
    """A machine under load may need more than five seconds to end what was begun."""
    patch = pytest.MonkeyPatch()
    patch.setattr(runner, "CLOSE_S", 120.0)
    patch.setattr(thread, "LEEWAY_S", 120.0)
    yield
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def _words():
    headrace.register("VisionNetwork", network)
    headrace.register("VisionDecode", lambda data: np.zeros((10, 20, 3), np.uint8))


@pytest.fixture
def receiver():
    """A web server that takes what is posted."""
    server = Receiver()
    yield server
    server.down()


@pytest.fixture
def disk(tmp_path):
    """A disk of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("this user may mount no disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
