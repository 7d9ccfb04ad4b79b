"""`DecodeMat` and base64: read where it is asked for, named where it is not."""

import base64

import numpy as np
import pytest
from cv_helpers import error_of

from headrace_cv import decode_image
from headrace_cv.decode import DecodeMat

KINDS = ["baseline jpeg", "png", "lossless webp"]
URL = "data:image/x-any;name=a.b;base64,"
FORMS = {
    "standard": base64.b64encode,
    "lines of MIME": base64.encodebytes,
    "url": base64.urlsafe_b64encode,
    "no padding": lambda file: base64.urlsafe_b64encode(file).rstrip(b"="),
    "data url": lambda file: URL.encode() + base64.b64encode(file),
    "upper": lambda file: b" \nDATA:;BASE64,\n" + base64.encodebytes(file),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_base64_gives_the_picture_of_its_file(kit, form, kind):
    backend = kit.ready(DecodeMat, encoding="base64")
    for height in range(20, 26):  # files of different lengths need different padding
        file = kit.encode(kit.smooth_image(height, 31), kind)
        text = FORMS[form](file)
        for data in (text, text.decode(), bytearray(text), np.frombuffer(text, np.uint8)):
            request = kit.run(backend, data=data)
            assert request["color"] == "bgr"
            assert np.array_equal(request["result"], decode_image(file))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", [bytes, bytes.decode, bytearray])
def test_base64_in_place_of_a_file_is_told_what_it_is(kit, form, kind, how):
    text = FORMS[form](kit.encode(kit.smooth_image(20, 31), kind))
    error = error_of(kit, how(text))
    name = {"baseline jpeg": "a JPEG", "png": "a PNG", "lossless webp": "a WebP"}[kind]
    url = form in ("data url", "upper")
    assert error.what == ("this is a data URL" if url else f"this is base64 of {name} file")
    assert "b64decode" in error.hint
    assert 'encoding = "base64"' in error.hint
    assert len(str(error)) < 400


def test_quotes_around_base64_hide_nothing(kit):
    text = base64.b64encode(kit.encode(kit.smooth_image(20, 31)))
    for data in (str(text), f'"{text.decode()}"', f' "{text.decode()}"'.encode()):
        assert error_of(kit, data).what == "this is base64 of a PNG file"


@pytest.mark.parametrize(
    "data",
    ["", "cat.jpg", "images/cat", "data:", "caf\xe9", "\udc80", b"", b"abc", base64.b64encode(b"no picture at all")],
)  # fmt: skip
def test_what_is_no_picture_in_base64_gets_no_such_error(kit, data):
    error = error_of(kit, data)
    assert "base64" not in f"{error.what} {error.hint}"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("cat.jpg", "this is no base64: expected base64 of an image file, got 7 bytes that start with b'cat.jpg'"),
        ("A", "no base64"),
        ("iVB\xe9", "no base64"),
        ("data:image/svg+xml,<svg/>", "no base64"),
        (base64.b64encode(b"no picture at all"), "the image format is not recognised"),
        (URL, "0 bytes"),
        ("", "0 bytes"),
        (None, "got None"),
        (np.zeros((2, 2, 3), np.uint8), "no file in memory"),
    ],
)  # fmt: skip
def test_what_is_no_base64_is_refused(kit, data, said):
    assert said in str(error_of(kit, data, encoding="base64"))


def test_a_file_where_base64_is_read_is_told_to_leave_the_option_out(kit):
    for kind in KINDS:
        error = error_of(kit, kit.encode(kit.smooth_image(9, 9), kind), encoding="base64")
        assert "no base64" in error.what
        assert "Without encoding" in error.hint


def test_limits_hold_for_the_file(kit):
    file = kit.encode(kit.smooth_image(20, 30))
    text = base64.b64encode(file)
    kit.run(kit.ready(DecodeMat, encoding="base64", max_bytes=len(file)), data=text)
    error = error_of(kit, text, encoding="base64", max_bytes=len(file) - 1)
    assert error.got == f"{len(file)} bytes"
    assert "600 pixels" in error_of(kit, text, encoding="base64", max_pixels=599).got
    assert "cut off" in error_of(kit, text[:-40], encoding="base64").what
