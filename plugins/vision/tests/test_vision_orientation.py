"""Each kind of input is turned and mirrored as a viewer shows it, in all eight ways. The right answers are written by hand."""

from __future__ import annotations

import io
import struct

import av
import numpy as np
import pytest
from PIL import Image

from headrace_vision import VideoRunner

COLOURS = {"r": (255, 0, 0), "g": (0, 255, 0), "b": (0, 0, 255), "w": (255, 255, 255)}
STORED = "rg bw"  # the quarters of the upper row, then those of the lower row

WAYS = {  # EXIF 2.32, tag 274: a b c d of ISO/IEC 14496-12, section 8.3.2, and the quarters as they are shown
    1: ((1, 0, 0, 1), "rg bw"),
    2: ((-1, 0, 0, 1), "gr wb"),
    3: ((-1, 0, 0, -1), "wb gr"),
    4: ((1, 0, 0, -1), "bw rg"),
    5: ((0, 1, 1, 0), "rb gw"),
    6: ((0, 1, -1, 0), "br wg"),
    7: ((0, -1, -1, 0), "wg br"),
    8: ((0, -1, 1, 0), "gw rb"),
}


def stored():
    """A picture of 64 x 48 with four quarters."""
    made = np.zeros((48, 64, 3), np.uint8)
    for row, names in enumerate(STORED.split()):
        for column, name in enumerate(names):
            made[24 * row : 24 * row + 24, 32 * column : 32 * column + 32] = COLOURS[name]
    return Image.fromarray(made)


def quarters(image):
    """The colours in the middle of each quarter of a picture (blue, green, red), the nearest of the four."""
    height, width = image.shape[:2]
    rows = []
    for y in (height // 4, 3 * height // 4):
        seen = [image[y, x, ::-1].astype(int) for x in (width // 4, 3 * width // 4)]
        rows += ["".join(min(COLOURS, key=lambda n: abs(one - COLOURS[n]).sum()) for one in seen)]
    return " ".join(rows)


def exif(way):
    made = Image.Exif()
    made[0x0112] = way
    return made.tobytes()


def film(a, b, c, d):
    """An MP4 whose track header has this matrix."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for index in range(2):
            picture = av.VideoFrame.from_image(stored()).reformat(format="yuv420p")
            picture.pts = index
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    data = bytearray(file.getvalue())
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    numbers = (a, b, 0, c, d, 0, 0, 0, 1 << 14)
    data[at : at + 36] = struct.pack(">9i", *(round(one * 65536) for one in numbers))
    return bytes(data)


def saved(kind, way, **more):
    file = io.BytesIO()
    stored().save(file, kind, exif=exif(way), **more)
    return file.getvalue()


def animated(kind, way):
    other = Image.fromarray(255 - np.asarray(stored()))
    return saved(kind, way, save_all=True, append_images=[other], duration=40)


def opened(kind, way, **more):
    return Image.open(io.BytesIO(saved(kind, way, **more)))


def motion_jpeg(way):
    """An AVI of JPEG files."""
    file, data = io.BytesIO(), saved("JPEG", way)
    with av.open(file, "w", format="avi") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        for index in range(2):
            packet = av.Packet(data)
            packet.stream, packet.pts, packet.dts = stream, index, index
            container.mux(packet)
    return file.getvalue()


INPUTS = {
    "film": lambda way: film(*WAYS[way][0]),
    "film of JPEG files": motion_jpeg,
    "animated PNG": lambda way: animated("PNG", way),
    "animated WebP": lambda way: animated("WEBP", way),
    "JPEG file": lambda way: saved("JPEG", way),
    "PNG file": lambda way: saved("PNG", way),
    "WebP file": lambda way: saved("WEBP", way, lossless=True),
    "TIFF file": lambda way: saved("TIFF", way),
    "image of Pillow, from JPEG": lambda way: opened("JPEG", way),
    "image of Pillow, from PNG": lambda way: opened("PNG", way),
    "image of Pillow, from TIFF": lambda way: opened("TIFF", way),
    "image of Pillow, from WebP": lambda way: opened("WEBP", way),
}


def images(given):
    with VideoRunner({"backend": "Identity"}) as runner:
        frames = list(runner.run(given))
    assert [frame.error for frame in frames] == [None] * len(frames)
    return [frame.image for frame in frames]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", INPUTS)
def test_each_kind_of_input_is_shown_in_each_of_eight_ways(kind, way):
    pytest.importorskip("headrace_cv")
    image = images(INPUTS[kind](way))[0]
    assert quarters(image) == WAYS[way][1]
    assert image.shape == ((48, 64, 3) if way < 5 else (64, 48, 3))
    assert image.flags.c_contiguous


def test_each_picture_of_an_animation_is_turned():
    for kind in ("PNG", "WEBP"):
        first, second = images(animated(kind, 6))
        assert first.shape == second.shape == (64, 48, 3)
        assert np.abs(first.astype(int) - (255 - second.astype(int))).mean() < 8


def test_a_matrix_that_stretches_or_turns_by_another_angle_gives_the_nearest_way():
    turned = 0.866, 0.5, -0.5, 0.866  # by 30 degrees
    assert quarters(images(film(*turned))[0]) == STORED
    steep = 0.5, 0.866, -0.866, 0.5  # by 60 degrees
    assert quarters(images(film(*steep))[0]) == WAYS[6][1]
    assert quarters(images(film(-2, 0, 0, 1))[0]) == WAYS[2][1]


@pytest.mark.parametrize("data", [b"", b"Exif\0\0", b"no", b"Exif\0\0MM\0*\xff\xff\xff\xff"])
def test_exif_data_that_cannot_be_read_turn_nothing(data):
    file = io.BytesIO()
    stored().save(file, "WEBP", exif=data, save_all=True, append_images=[stored()], duration=40)
    image = stored()
    image.info["exif"] = data
    for given in (file.getvalue(), image):
        assert quarters(images(given)[0]) == STORED
