"""JPEG files against OpenCV's decoder; whatever is wrong with one, its neighbours are decoded."""

import io
import subprocess
import sys

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from headrace.errors import InputError, MissingDependencyError
from headrace_torch.backends.decode import DecodeTensor
from headrace_torch.images.jpeg import view_of_bytes


def picture(height=40, width=56):
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * x / width, 255 * y / height, 255 * (x + y) / (height + width)]
    return np.stack(planes, -1).astype(np.uint8)


def jpeg(image=None, *params):
    done, file = cv2.imencode(".jpg", picture() if image is None else image, list(params))
    assert done
    return file.tobytes()


def with_orientation(number):
    image = Image.fromarray(picture()[..., ::-1])
    exif = image.getexif()
    exif[0x0112] = number
    file = io.BytesIO()
    image.save(file, "jpeg", exif=exif, quality=95)
    return file.getvalue()


def by_opencv(file):
    decoded = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    return torch.from_numpy(decoded[..., ::-1].copy()).permute(2, 0, 1)


def cmyk():
    file = io.BytesIO()
    Image.fromarray(picture()).convert("CMYK").save(file, "jpeg")
    return file.getvalue()


@pytest.mark.parametrize(
    "file",
    [
        jpeg(),
        jpeg(picture()[..., 0]),
        jpeg(None, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        jpeg(None, cv2.IMWRITE_JPEG_RST_INTERVAL, 2),
        *map(with_orientation, range(1, 9)),
    ],
    ids=["colour", "grey", "progressive", "restarts", *(f"exif {n}" for n in range(1, 9))],
)
def test_files_are_what_opencv_reads(bench, file):
    one = bench()
    request = {"data": file}
    (result,) = one.run(one.start(DecodeTensor), request)
    expected = by_opencv(file)
    assert (result.dtype, result.shape) == (torch.uint8, expected.shape)
    assert (result.int() - expected.int()).abs().max() <= 2  # other versions of the same algorithm
    assert request["color"] == "rgb"


def test_all_rows_of_bytes_are_read():
    class Through:
        def __dlpack__(self, **how):
            return row.__dlpack__(**how)

        def __dlpack_device__(self):
            return row.__dlpack_device__()

    row = np.frombuffer(bytearray(jpeg()), np.uint8)
    for file in (bytearray(jpeg()), np.bytes_(jpeg()), row, row.repeat(2)[::2], Through()):
        assert bytes(view_of_bytes(file)) == jpeg()


def test_the_orientation_may_be_ignored(bench):
    one = bench()
    decode = one.start(DecodeTensor, exif_orientation=False)
    (result,) = one.run(decode, {"data": with_orientation(6)})
    assert result.shape == (3, 40, 56)


def broken():
    """Files that are no whole JPEG, each with a word of its error."""
    good = jpeg()
    header = good.index(b"\xff\xc0")
    huge = bytearray(good)
    huge[header + 5 : header + 9] = b"\xff\xff\xff\xff"
    flat = bytearray(good)
    flat[header + 5 : header + 7] = b"\0\0"
    table = good.index(b"\xff\xc4")
    tables = bytearray(good)
    tables[table + 5 : table + 21] = b"\xff" * 16
    return [
        (b"", "no JPEG"),
        (b"\x89PNG\r\n\x1a\n" + good, "no JPEG"),
        (good[:200], "cut off"),
        (good[:-2], "cut off"),
        (good[:2] + b"\xff\xd9", "before any picture"),
        (bytes(huge), "too large"),
        (bytes(flat), "0 pixels"),
        (bytes(tables), "broken"),
        (cmyk(), "not supported"),
        ("a text", "no file"),
        (None, "no file"),
        (np.zeros((4, 4), np.uint8), "no file"),
    ]


@pytest.mark.parametrize(("file", "word"), broken())
def test_a_broken_file_fails_alone(bench, file, word):
    one = bench()
    decode = one.start(DecodeTensor, max_pixels=1_000_000)
    good = jpeg()
    batch = [{"data": good}, {"data": file}, {"data": memoryview(good)}]
    found = one.outcomes(decode, *batch)
    assert found[0] is found[2] is None
    assert isinstance(found[1], InputError)
    assert found[1].key == "data"
    assert word in str(found[1])
    assert torch.equal(batch[0]["result"], batch[2]["result"])


def test_files_in_other_buffers(bench):
    one = bench()
    decode = one.start(DecodeTensor)
    good = jpeg()
    kinds = [good, bytearray(good), memoryview(good), np.frombuffer(good, np.uint8)]
    kinds.append(torch.frombuffer(bytearray(good), dtype=torch.uint8))  # as torchvision reads files
    results = one.run(decode, *({"data": kind} for kind in kinds))
    assert all(torch.equal(result, results[0]) for result in results)


def test_the_limit_of_pixels_is_inclusive(bench):
    one = bench()
    assert one.run(one.start(DecodeTensor, max_pixels=2240), {"data": jpeg()})
    assert "2240" in str(one.error(one.start(DecodeTensor, max_pixels=2239), {"data": jpeg()}))


def test_what_is_unusual_may_be_given_to_the_decoder_of_the_cpu(bench):
    one = bench()
    decode = one.start(DecodeTensor, on_unsupported="cpu")
    four, usual = {"data": cmyk()}, {"data": jpeg()}
    assert one.outcomes(decode, four, usual) == [None, None]
    assert four["result"].shape == usual["result"].shape


@pytest.mark.parametrize(
    "found", ["", "import torch\ntorch.ops.image = object()"], ids=["missing", "without operators"]
)
def test_a_torchvision_that_cannot_decode_is_named(tmp_path, found):
    if found:
        (tmp_path / "torchvision.py").write_text(found)
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
if {not found}:
    sys.modules["torchvision"] = None
import headrace
headrace.pipe({{"backend": "DecodeTensor", "device": "cpu"}})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert MissingDependencyError.__name__ in done.stderr
    assert ("headrace-torch[decode]" if not found else "build of torchvision") in done.stderr
