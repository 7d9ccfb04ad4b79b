"""Headers of JPEG files, against files that OpenCV and Pillow write, and files of wrong parts made by hand."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_formats import FormatError
from headrace_formats.jpeg import (
    MAX_SCANS,
    MAX_SEGMENTS,
    JpegError,
    JpegHeader,
    exif_orientation,
    plain_jpeg_size,
    read_jpeg_header,
)

cv2 = pytest.importorskip("cv2")
Image = pytest.importorskip("PIL.Image")

PROGRESSIVE = (cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
RESTARTS = (cv2.IMWRITE_JPEG_RST_INTERVAL, 2)


def picture(height=40, width=56):
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * x / width, 255 * y / height, 255 * (x + y) / (height + width)]
    return np.stack(planes, -1).astype(np.uint8)


def jpeg(*parameters, image=None):
    return cv2.imencode(".jpg", picture() if image is None else image, parameters)[1].tobytes()


def by_pillow(mode="RGB", orientation=None):
    image, file = Image.fromarray(picture()).convert(mode), io.BytesIO()
    exif = image.getexif()
    if orientation:
        exif[0x0112] = orientation
    image.save(file, "jpeg", exif=exif)
    return file.getvalue()


def read(file):
    return read_jpeg_header(memoryview(file))


def problem_of(file):
    with pytest.raises(JpegError) as caught:
        read(file)
    assert isinstance(caught.value, FormatError)
    return caught.value.problem, caught.value.got


@pytest.mark.parametrize(
    ("file", "header"),
    [
        (jpeg(), (56, 40, 3, True, 1, 0)),
        (jpeg(image=picture()[..., 0]), (56, 40, 1, True, 1, 0)),
        (jpeg(*PROGRESSIVE), (56, 40, 3, True, 1, 0)),
        (jpeg(*RESTARTS), (56, 40, 3, True, 1, 0)),
        (by_pillow("CMYK"), (56, 40, 4, False, 1, 0)),
        *((by_pillow(orientation=n), (56, 40, 3, True, n)) for n in range(1, 9)),
    ],
)
def test_a_header_is_what_was_written(file, header):
    assert read(file)[: len(header)] == header
    assert read(file + b"more")[: len(header)] == header  # what follows the file is not looked at


def test_the_place_of_the_orientation_is_that_of_its_segment():
    file = by_pillow(orientation=6)
    assert file[read(file).exif_at :].startswith(b"Exif\0\0")


@pytest.mark.parametrize("parameters", [(), PROGRESSIVE, RESTARTS])
def test_a_file_cut_anywhere_is_refused(parameters):
    file = jpeg(*parameters)
    for length in range(3, len(file)):
        with pytest.raises(JpegError):
            read(file[:length])
    assert problem_of(file[:-2]) == (
        "cut off",
        f"{len(file) - 2} bytes that end before the end-of-image marker",
    )


def test_a_thumbnail_is_not_the_picture():
    thumbnail, file = jpeg(image=picture(8, 8)), jpeg()
    segment = b"\xff\xe1" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    file = file[:2] + segment + file[2:]
    assert read(file)[:2] == (56, 40)
    assert problem_of(file[:-2])[0] == "cut off"


def test_a_header_as_most_have_it_is_read_at_once():
    file = jpeg()
    assert plain_jpeg_size(file) == (56, 40)
    frame, scan = file.index(b"\xff\xc0"), file.index(b"\xff\xda")
    flat = file[: frame + 5] + b"\0\0" + file[frame + 7 :]
    one_of_three = file[: scan + 4] + b"\x01" + file[scan + 5 :]
    for other in (
        flat,
        one_of_three,
        file[:-2],
        file + b"more",
        jpeg(*PROGRESSIVE),
        b"",
        b"\xff\xd9",
    ):
        assert plain_jpeg_size(other) is None
    assert problem_of(flat) == ("broken", "a header that says 56 x 0 pixels")
    assert read(one_of_three)[:2] == (56, 40)
    assert problem_of(one_of_three[:-2])[0] == "cut off"


def test_an_end_marker_inside_of_the_header_of_a_scan_is_none():
    file = jpeg()
    scan = file.index(b"\xff\xda")
    assert problem_of(file[: scan + 12] + b"\xff\xd9")[0] == "cut off"


def frame(length=11):
    return b"\xff\xc0" + struct.pack(">HBHHB", length, 8, 4, 4, 1) + b"\1\x11\0"


@pytest.mark.parametrize(
    ("parts", "got"),
    [
        (b"\xff\xd9", "before any picture"),
        (frame() + b"\xff\xd9", "before any picture"),
        (b"\xff\xe0\0\1\xff\xd9", "segment 0xe0 without a length"),
        (b"\xff\xc0\0\2\xff\xd9", "too short"),
        (frame() * 2, "two frame headers"),
        (b"\xff\xd8" * (MAX_SEGMENTS + 1), f"more than {MAX_SEGMENTS} segments"),
        (frame() + b"\xff\xda\0\2" * (MAX_SCANS + 1), f"more than {MAX_SCANS} scans"),
    ],
)
def test_a_file_of_wrong_parts_is_broken(parts, got):
    problem, found = problem_of(b"\xff\xd8\xff" + parts)
    assert problem == "broken"
    assert got in found


def test_scans_are_counted_in_a_progressive_file_too():
    file = jpeg(*PROGRESSIVE)
    at = file.index(b"\xff\xda")
    scan = file[at : file.index(b"\xff\xc4", at)]
    assert "scans" in problem_of(file[:at] + scan * MAX_SCANS + file[at:])[1]


@given(st.binary(max_size=200))
def test_random_bytes_are_a_header_or_an_error(rest):
    try:
        found = read(b"\xff\xd8\xff" + rest)
    except JpegError:
        return
    assert isinstance(found, JpegHeader)


@pytest.mark.parametrize("order", "<>")
def test_exif_data_tell_the_orientation(order):
    def exif(orientation, tag=0x0112, kind=3):
        mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
        return mark + struct.pack(f"{order}IHHHIHHI", 8, 1, tag, kind, 1, orientation, 0, 0)

    for orientation in range(1, 9):
        assert exif_orientation(exif(orientation)) == orientation
        assert exif_orientation(b"Exif\0\0" + exif(orientation)) == orientation
    for wrong in (
        exif(0),
        exif(9),
        exif(6, tag=0x0111),
        exif(6, kind=2),
        exif(6)[:19],
        b"",
        b"II*\0\xff\xff\xff\xff",
    ):
        assert exif_orientation(wrong) is None
