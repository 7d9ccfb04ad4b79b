"""`DecodeMat`: formats, limits, files that are cut off or broken."""

import ctypes
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cv_helpers import error_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import InputError
from headrace_cv import ImageHeader, check_image_file, decode_image
from headrace_cv.decode import DecodeMat
from headrace_cv.files.orientation import webp_orientation
from headrace_formats.jpeg import MAX_SCANS, plain_jpeg_size

pytestmark = pytest.mark.first(
    "decode, resize and crop pictures: within limits, and a bad one fails alone"
)

KINDS = [
    "baseline jpeg",
    "progressive jpeg",
    "jpeg with restarts",
    "png",
    "lossy webp",
    "lossless webp",
]


def with_exif_orientation(jpeg, orientation):
    """Put an APP1 segment with nothing but the orientation tag behind the SOI marker."""
    tiff = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    body = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def png_chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_that_claims(width, height):
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = png_chunk(b"IDAT", zlib.compress(b"\0" * 10))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_gives_the_picture_in_bgr(kit, kind):
    image = kit.smooth_image(40, 60)
    request = kit.run(kit.ready(DecodeMat), data=kit.encode(image, kind))
    assert request["color"] == "bgr"
    assert request["result"].dtype == np.uint8
    assert request["result"].shape == (40, 60, 3)
    difference = np.abs(request["result"].astype(int) - image)
    assert difference.mean() < (0.01 if kind in ("png", "lossless webp") else 5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 301), (257, 2)])
def test_the_header_tells_the_size(kit, kind, height, width):
    data = kit.encode(kit.smooth_image(height, width), kind)
    name = kind.split()[-1] if "jpeg" not in kind else "jpeg"
    assert check_image_file(data) == ImageHeader(name, width, height)


def test_the_header_of_an_extended_webp_tells_the_size(kit):
    bgra = np.dstack([kit.smooth_image(31, 47), np.full((31, 47), 100, np.uint8)])
    simple = kit.encode(bgra, "lossy webp")
    assert check_image_file(simple) == ("webp", 47, 31)
    # The same picture behind an extended header, as written for EXIF data.
    body = kit.encode(kit.smooth_image(31, 47), "lossless webp")[12:]
    extended = b"VP8X" + struct.pack("<I", 10) + bytes(4) + b"\x2e\0\0" + b"\x1e\0\0"
    data = b"RIFF" + struct.pack("<I", 4 + len(extended + body)) + b"WEBP" + extended + body
    assert check_image_file(data) == ("webp", 47, 31)
    assert decode_image(data).shape == (31, 47, 3)


class Exported:
    """A file in an array that has DLPack alone."""

    def __init__(self, file):
        self.row = np.frombuffer(bytearray(file), np.uint8)

    def __dlpack__(self, **how):
        return self.row.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.row.__dlpack_device__()


class Described:
    """A file in an array that has ``__array_interface__`` alone."""

    def __init__(self, file):
        self.row = np.frombuffer(file, np.uint8)

    @property
    def __array_interface__(self):
        return self.row.__array_interface__


@pytest.mark.parametrize(
    "wrap",
    [
        bytes,
        bytearray,
        memoryview,
        lambda b: np.frombuffer(b, np.uint8),
        lambda b: np.repeat(np.frombuffer(b, np.uint8), 2)[::2],
        lambda b: memoryview(b).cast("c"),
        lambda b: SimpleNamespace(__array__=lambda *_: np.frombuffer(b, np.uint8)),  # as torch's
        Exported,
        Described,
        lambda b: (ctypes.c_ubyte * len(b)).from_buffer_copy(b),  # its format is '<B'
        np.bytes_,
    ],
)
def test_all_rows_of_bytes_are_read(kit, wrap):
    image = kit.smooth_image(5, 7)
    assert (kit.run(kit.ready(DecodeMat), data=wrap(kit.encode(image)))["result"] == image).all()


def test_a_gray_file_gives_three_equal_channels(kit):
    gray = kit.smooth_image(6, 8)[:, :, 0]
    result = decode_image(kit.encode(gray))
    assert result.shape == (6, 8, 3)
    assert (result == gray[:, :, None]).all()


def test_alpha_is_dropped_and_not_blended(kit):
    image = kit.smooth_image(6, 8)
    bgra = np.dstack([image, np.full((6, 8), 10, np.uint8)])
    assert (decode_image(kit.encode(bgra)) == image).all()


def test_sixteen_bits_become_eight(kit):
    image = kit.smooth_image(6, 8)
    assert (decode_image(kit.encode(image.astype(np.uint16) * 257)) == image).all()


def test_exif_orientation_is_followed_or_not_as_asked(kit):
    upright = kit.encode(kit.smooth_image(20, 40), "baseline jpeg")
    turned = with_exif_orientation(upright, 6)
    plain = decode_image(upright)
    followed = kit.run(kit.ready(DecodeMat), data=turned)["result"]
    ignored = kit.run(kit.ready(DecodeMat, exif_orientation=False), data=turned)["result"]
    assert (ignored == plain).all()
    assert (followed == np.rot90(plain, -1)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_anywhere_is_refused(kit, kind):
    data = kit.encode(kit.smooth_image(64, 96), kind)
    assert decode_image(data).shape == (64, 96, 3)
    for length in range(len(data)):
        with pytest.raises(InputError):
            check_image_file(data[:length])
    for percent in (25, 50, 75, 95):
        error_of(kit, data[: len(data) * percent // 100])
    for missing in (1, 2, 3, 4):
        assert "cut off" in error_of(kit, data[:-missing]).what


def test_a_header_as_most_have_it_is_read_as_exactly_as_any_other(kit):
    data = kit.encode(kit.smooth_image(64, 96), "baseline jpeg")
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    assert check_image_file(data) == ("jpeg", 96, 64)
    flat = data[: frame + 5] + b"\0\0" + data[frame + 7 :]
    assert "96 x 0 pixels" in error_of(kit, flat).got
    assert (plain_jpeg_size(data), plain_jpeg_size(flat)) == ((96, 64), None)
    # The scan says that it holds one of three components: the others are missing.
    one_of_three = data[: scan + 4] + b"\x01" + data[scan + 5 :]
    assert check_image_file(one_of_three) == ("jpeg", 96, 64)
    error_of(kit, one_of_three[:-2])
    # An end marker inside of the header of the scan is none.
    error_of(kit, data[: scan + 12] + b"\xff\xd9")
    with_comment = data[:2] + b"\xff\xfe\x00\x06abcd" + data[2:]
    assert (decode_image(with_comment) == decode_image(data)).all()
    assert (plain_jpeg_size(with_comment), check_image_file(with_comment)) == (
        None,
        ("jpeg", 96, 64),
    )
    # After a scan of one component there are others, and a broken one before the end marker is noticed.
    first = data.replace(b"\xff\xda\x00\x0c\x03", b"\xff\xfe\x00\x02\xff\xda\x00\x0c\x01")
    assert (plain_jpeg_size(first), check_image_file(first)) == (None, ("jpeg", 96, 64))
    broken = first[:-2] + b"\xff\xda\x00\x01" + first[-2:]
    assert "without a length" in error_of(kit, broken).got
    wrong_length = data[:2] + b"\xff\xfe\x00\x01abcd" + data[2:]
    assert "without a length" in error_of(kit, wrong_length).got


def test_a_cut_jpeg_with_a_whole_thumbnail_is_refused(kit):
    thumbnail = kit.encode(kit.smooth_image(8, 8), "baseline jpeg")
    data = kit.encode(kit.smooth_image(64, 96), "baseline jpeg")
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    data = data[:2] + segment + data[2:]
    assert decode_image(data).shape == (64, 96, 3)
    assert check_image_file(data) == ("jpeg", 96, 64)
    error_of(kit, data[:-2])


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_the_file_is_not_looked_at(kit, kind):
    data = kit.encode(kit.smooth_image(64, 96), kind)
    assert (decode_image(data + b"more") == decode_image(data)).all()


def test_what_we_refuse_prints_nothing():
    program = """
import cv2, numpy as np
from headrace.errors import InputError
from headrace_cv import decode_image
image = (np.arange(64 * 96 * 3) % 251).astype(np.uint8).reshape(64, 96, 3)
for suffix in (".jpg", ".png", ".webp"):
    data = cv2.imencode(suffix, image)[1].tobytes()
    for percent in (0, 1, 25, 50, 75, 95, 99):
        try:
            decode_image(data[: len(data) * percent // 100])
        except InputError:
            continue
        raise SystemExit(f"{suffix} cut at {percent} %")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_damaged_png_is_noticed_by_its_checksum(kit):
    data = bytearray(kit.encode(kit.smooth_image(30, 30)))
    data[data.index(b"IDAT") + 20] ^= 0xFF
    assert "checksum" in error_of(kit, bytes(data)).got


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"GIF89a" + bytes(20), b"BM" + bytes(60), b"RIFF\0\0\0\0WAVE", b"<svg/>"],
)
def test_another_format_is_refused_with_the_accepted_ones(kit, data):
    error = error_of(kit, data)
    assert error.expected == "a JPEG, PNG or WebP file"
    assert repr(data[:12]) in error.got or error.got == "0 bytes"


@pytest.mark.parametrize(
    "data",
    [None, "a.jpg", Path("a.jpg"), 7, [1, 2], {"a": 1}, np.zeros((2, 2), np.uint8), np.zeros(9)],
)
def test_what_is_no_row_of_bytes_is_refused(kit, data):
    error = error_of(kit, data)
    assert "bytes" in error.expected
    assert type(data).__name__.removesuffix("Type") in error.got
    assert ("read_bytes" in (error.hint or "")) == isinstance(data, (str, Path))


def test_a_bomb_is_refused_before_memory_is_taken(kit):
    error = error_of(kit, png_that_claims(60_000, 60_000))
    assert "60000 x 60000 = 3600000000 pixels" in error.got
    assert "100000000" in error.expected


def test_the_limit_of_pixels_is_inclusive(kit):
    data = kit.encode(kit.smooth_image(10, 20), "baseline jpeg")
    kit.run(kit.ready(DecodeMat, max_pixels=200), data=data)
    error_of(kit, data, max_pixels=199)


def test_the_limit_of_bytes_is_inclusive(kit):
    data = kit.encode(kit.smooth_image(10, 20))
    kit.run(kit.ready(DecodeMat, max_bytes=len(data)), data=data)
    assert "bytes" in error_of(kit, data, max_bytes=len(data) - 1).got


def test_what_only_the_decoder_refuses_is_an_input_error(kit, capfd):
    # Whole by its structure, but the pixels are far too few, and one side is beyond OpenCV's limit.
    error_of(kit, png_that_claims(50, 50))
    error_of(kit, png_that_claims(2_000_000, 2))
    capfd.readouterr()


@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_an_empty_picture_is_refused(kit, size):
    assert "0" in error_of(kit, png_that_claims(*size)).got


def test_a_jpeg_of_too_many_scans_is_refused(kit):
    data = kit.encode(kit.smooth_image(16, 16), "progressive jpeg")
    at = data.index(b"\xff\xda")
    assert "scans" in error_of(kit, data[:at] + b"\xff\xda\0\2" * MAX_SCANS + data[at:]).got


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8\xff\xe0\0\1\xff\xd9",
        b"\xff\xd8\xff\x01\xff\xd8" * 60_000 + b"\xff\xd9",
        b"\xff\xd8\xff\xc0\0\2\xff\xd9",
        b"RIFF\x0c\0\0\0WEBPVP8 \0\0\0\0",
        b"RIFF\x0c\0\0\0WEBPVP8 \xff\0\0\0",
        b"RIFF\4\0\0\0WEBP",
        b"RIFF\x1a\0\0\0WEBPVP8L\5\0\0\0\x2f\0\0\0\0\0" + b"ALPH\1\0\0\0",  # ends with a header
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IEND", b""),
        b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", bytes(12)),
        png_that_claims(3, 3)[:33] + png_chunk(b"IEND", b""),
        png_that_claims(3, 3)[:33] + png_that_claims(3, 3)[8:],
        png_that_claims(3, 3)[:33] + png_chunk(b"tEXt", b"") * 100_000,
    ],
)
def test_a_file_of_wrong_parts_is_refused(kit, data):
    assert "file is broken" in error_of(kit, data).what  # the decoder did not see it


def with_orientation_in_webp(webp, order, orientation, kind=3):
    """Put the picture of a lossless WebP file behind a VP8X chunk, and EXIF data with an orientation behind it."""
    size = [(side - 1).to_bytes(3, "little") for side in (12, 10)]
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    exif = mark + struct.pack(f"{order}IHHHIHHI", 8, 1, 0x0112, kind, 1, orientation, 0, 0)
    chunks = [
        b"VP8X",
        struct.pack("<IB3x", 10, 0x08),
        *size,
        webp[12:],
        b"EXIF",
        struct.pack("<I", len(exif)),
        exif,
    ]
    body = b"WEBP" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


@pytest.mark.parametrize("order", "<>")
def test_webp_files_are_turned_as_they_ask(kit, order):
    stored = kit.smooth_image(10, 12)
    across = stored.transpose(1, 0, 2)
    upright = [
        stored, stored[:, ::-1], stored[::-1, ::-1], stored[::-1],
        across, across[:, ::-1], across[::-1, ::-1], across[::-1],
    ]  # fmt: skip
    webp = kit.encode(stored, "lossless webp")
    for orientation, expected in enumerate(upright, 1):
        file = with_orientation_in_webp(webp, order, orientation)
        assert np.array_equal(kit.run(kit.ready(DecodeMat), data=file)["result"], expected)
        as_stored = kit.run(kit.ready(DecodeMat, exif_orientation=False), data=file)["result"]
        assert np.array_equal(as_stored, stored)
    for file in (
        with_orientation_in_webp(webp, order, 0),
        with_orientation_in_webp(webp, order, 9),
        with_orientation_in_webp(webp, order, 6, kind=2),
        with_orientation_in_webp(webp, order, 6).replace(
            b"\x08\0\0\0\x0b", b"\0\0\0\0\x0b"
        ),  # not announced
        with_orientation_in_webp(webp, order, 6).replace(b"EXIF", b"XMP "),
        with_orientation_in_webp(webp, order, 6)
        .replace(b"II*\0", b"II*\1")
        .replace(b"MM\0*", b"MM\1*"),
    ):
        assert np.array_equal(kit.run(kit.ready(DecodeMat), data=file)["result"], stored)


@pytest.mark.parametrize(
    "exif", [b"", b"II", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff\0"]
)
def test_exif_data_that_are_cut_off_turn_nothing(exif):
    chunks = b"WEBPVP8X" + struct.pack("<IB9x", 10, 0x08) + b"EXIF" + struct.pack("<I", len(exif))
    file = b"RIFF" + struct.pack("<I", len(chunks) + len(exif)) + chunks + exif
    assert webp_orientation(memoryview(file)) == 1


def frame_control(number, width, height):
    return png_chunk(b"fcTL", struct.pack(">5I2H2B", number, width, height, 0, 0, 1, 10, 0, 0))


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ([(2, frame_control(0, 12, 10))], [frame_control(1, 12, 10)]),
        ([(2, b"")], [frame_control(0, 12, 10)]),  # the still picture is none of the animation
        ([(3, b"")], []),
        ([(2, frame_control(0, 5, 4))], []),
        ([(1, b""), (2, b"")], []),
    ],
    ids=["animation", "hidden", "no pictures", "a small first one", "announced twice"],
)
def test_of_an_animated_png_file_the_still_picture_is_decoded(kit, before, behind):
    image = kit.smooth_image(10, 12)
    still = kit.encode(image, "png")
    at = still.index(b"IDAT") - 4
    rows = np.insert((255 - image).reshape(10, -1), 0, 0, axis=1)
    other = png_chunk(b"fdAT", struct.pack(">I", len(behind) + 1) + zlib.compress(rows.tobytes()))
    start = b"".join(
        png_chunk(b"acTL", struct.pack(">II", count, 0)) + frame for count, frame in before
    )
    end = b"".join(frame + other for frame in behind)
    data = still[:at] + start + still[at:-12] + end + still[-12:]
    assert np.array_equal(kit.run(kit.ready(DecodeMat), data=data)["result"], image)


def test_two_frame_headers_are_refused(kit):
    data = kit.encode(kit.smooth_image(16, 16), "baseline jpeg")
    at = data.index(b"\xff\xc0")
    length = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    assert "broken" in error_of(kit, data[:at] + data[at : at + length] + data[at:]).what


def test_the_input_is_left_as_it_was(kit):
    data = bytearray(kit.encode(kit.smooth_image(9, 9), "baseline jpeg"))
    before = bytes(data)
    request = kit.run(kit.ready(DecodeMat), data=data)
    assert request["data"] is data
    assert data == before
    data.clear()  # nothing keeps the buffer locked


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(KINDS),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(max_size=6)), max_size=8),
    keep=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_mutated_files_give_a_picture_or_an_input_error(kit, kind, edits, keep):
    data = bytearray(kit.encode(kit.smooth_image(24, 33), kind))
    for where, piece in edits:
        at = int(where * len(data))
        data[at : at + len(piece)] = piece
    data = bytes(data[: int(keep * len(data))])
    try:
        result = decode_image(data, max_pixels=1_000_000)
    except InputError:
        return
    assert result.dtype == np.uint8
    assert result.ndim == 3
    header = check_image_file(data)
    assert sorted(result.shape) == sorted((header.height, header.width, 3))


@settings(max_examples=300, deadline=None)
@given(
    start=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\x20\0\0\0WEBPVP8 "]),
    rest=st.binary(max_size=200),
)
def test_random_bytes_are_an_input_error(start, rest):
    with pytest.raises(InputError):
        decode_image(start + rest)
