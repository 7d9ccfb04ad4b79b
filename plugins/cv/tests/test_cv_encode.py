"""`EncodeMat`, read again by Pillow, a decoder that is not OpenCV's."""

import io

import numpy as np
import pytest
from cv_helpers import refused

from headrace_cv import check_image_file, decode_image, encode_image
from headrace_cv.encode import EncodeMat

FORMATS = ["jpeg", "png", "webp"]


def read_by_pillow(data):
    pillow = pytest.importorskip("PIL.Image")
    with pillow.open(io.BytesIO(data)) as image:
        return image.format, image.mode, np.asarray(image)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("color", ["rgb", "bgr"])
def test_another_decoder_sees_the_colors_that_were_meant(kit, kind, color):
    rgb = kit.smooth_image(48, 64)
    image = rgb if color == "rgb" else rgb[:, :, ::-1]
    before = image.copy()
    request = kit.run(kit.ready(EncodeMat, format=kind), data=image, color=color)
    assert type(request["result"]) is bytes
    name, mode, seen = read_by_pillow(request["result"])
    assert (name, mode, seen.shape) == (kind.upper(), "RGB", (48, 64, 3))
    difference = np.abs(seen.astype(int) - rgb)
    assert difference.max() <= (0 if kind == "png" else 24)
    assert difference.mean() <= (0 if kind == "png" else 2)
    assert (image == before).all()
    assert request["color"] == color


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("tail", [(), (1,)])
def test_gray_stays_gray_where_the_format_has_it(kit, kind, tail):
    gray = kit.smooth_image(48, 64)[:, :, 0].reshape(48, 64, *tail)
    request = kit.run(kit.ready(EncodeMat, format=kind), data=gray, color="gray")
    _, mode, seen = read_by_pillow(request["result"])
    assert mode == ("RGB" if kind == "webp" else "L")
    seen = seen if seen.ndim == 3 else seen[:, :, None]
    difference = np.abs(seen.astype(int) - gray.reshape(48, 64, 1))
    assert difference.max() <= (0 if kind == "png" else 8)


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_a_higher_quality_is_longer_and_nearer(kit, kind):
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    files = [encode_image(image, "bgr", kind, quality=q) for q in (1, 30, 60, 90, 100)]
    lengths = [len(file) for file in files]
    errors = [np.abs(decode_image(file).astype(int) - image).mean() for file in files]
    assert lengths == sorted(lengths)
    assert errors == sorted(errors, reverse=True)
    by_default = kit.run(kit.ready(EncodeMat, format=kind), data=image, color="bgr")["result"]
    assert by_default == encode_image(image, "bgr", kind, quality=95)


def test_floats_are_refused(kit):
    error = refused(kit, kit.ready(EncodeMat), data=np.zeros((4, 4, 3), np.float32), color="rgb")
    assert (error.key, error.got) == ("data", "float32 [4, 4, 3]")


@pytest.mark.parametrize(("color", "channels"), [("rgb", 1), ("bgr", 4), ("gray", 3), ("rgb", 2)])
def test_an_image_that_does_not_fit_its_color_is_refused(kit, color, channels):
    error = refused(
        kit, kit.ready(EncodeMat), data=np.zeros((4, 4, channels), np.uint8), color=color
    )
    assert (error.key, error.got) == ("data", f"uint8 [4, 4, {channels}]")


@pytest.mark.parametrize(
    ("request_", "got"), [({}, "nothing"), ({"color": "hsv"}, "'hsv'"), ({"color": 3}, "int")]
)
def test_an_image_without_a_known_color_is_refused(kit, request_, got):
    error = refused(kit, kit.ready(EncodeMat), data=np.zeros((4, 4, 3), np.uint8), **request_)
    assert (error.key, error.got) == ("color", got)


@pytest.mark.parametrize(
    ("kind", "longest"), [("jpeg", 65_500), ("webp", 16_383), ("png", 1_000_000)]
)
def test_a_side_beyond_the_format_is_refused_without_a_word(kit, kind, longest, capfd):
    backend = kit.ready(EncodeMat, format=kind)
    image = np.zeros((1, longest + 1), np.uint8)
    data = kit.run(backend, data=image[:, :-1], color="gray")["result"]
    assert check_image_file(data) == (kind, longest, 1)
    error = refused(kit, backend, data=image, color="gray")
    assert error.key == "data"
    assert str(longest) in error.expected
    assert capfd.readouterr() == ("", "")
