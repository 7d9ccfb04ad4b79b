"""What is too large is refused before anything is computed, and before OpenCV sees it."""

import cv2
import numpy as np
import pytest
from cv_helpers import refused
from pydantic import ValidationError

from headrace.errors import InputError
from headrace_cv import (
    convert_color,
    crop_image,
    crop_quad,
    decode_image,
    encode_image,
    filter_detections,
    image_to_tensor,
    letterbox_image,
    resize_image,
    tensor_to_image,
)
from headrace_cv.color import CvtColorMat
from headrace_cv.crop import CropMat, PerspectiveCropMat
from headrace_cv.decode import DecodeMat
from headrace_cv.detection import NMS
from headrace_cv.encode import EncodeMat
from headrace_cv.functions.images import dense
from headrace_cv.functions.transforms import LetterBoxTransform
from headrace_cv.letterbox import LetterBoxMat, TopLeftResizeMat, UnletterBox
from headrace_cv.resize import ResizeMat
from headrace_cv.tensor import Mat2Tensor, Tensor2Mat

ON_IMAGES = [
    (ResizeMat, {"resize_h": 2, "resize_w": 2}),
    (ResizeMat, {"resize_h": 2, "resize_w": 2, "interpolation": "nearest"}),
    (LetterBoxMat, {"resize_h": 2, "resize_w": 2}),
    (TopLeftResizeMat, {"resize_h": 2, "resize_w": 2}),
    (CvtColorMat, {"color": "rgb"}),
    (CropMat, {}),
    (PerspectiveCropMat, {}),
    (Mat2Tensor, {}),
    (EncodeMat, {}),
]
REST = {"color": "bgr", "box": [0, 0, 3, 3], "quad": [[0, 0], [3, 0], [3, 3], [0, 3]]}


def seen_as(value, *shape):
    """An array of one number in memory that stands for one of any size."""
    return np.broadcast_to(np.asarray(value), shape)


@pytest.mark.parametrize(("cls", "options"), ON_IMAGES)
def test_the_size_of_an_image_is_bounded(kit, cls, options):
    backend = kit.ready(cls, max_pixels=12, **options)
    fits = np.zeros((3, 4, 3), np.uint8)
    assert kit.run(backend, data=fits, **REST)["result"] is not None
    error = refused(kit, backend, data=np.zeros((13, 1, 3), np.uint8), **REST)
    assert error.key == "data"
    assert "1 x 13 = 13 pixels" in str(error)
    assert "max_pixels" in str(error)


@pytest.mark.parametrize(("cls", "options"), ON_IMAGES)
@pytest.mark.parametrize("sides", [(100_000, 100_000), (1, 1 << 31), ((1 << 31) + 5, 1)])
def test_an_array_of_one_byte_never_reaches_opencv(kit, cls, options, sides):
    error = refused(kit, kit.ready(cls, **options), data=seen_as(np.uint8(1), *sides, 3), **REST)
    assert "too large" in str(error)


def test_the_largest_limit_there_is_still_refuses_what_opencv_cannot_count():
    """No option can ask for so much; a caller of the function can."""
    image = seen_as(np.uint8(1), 1, 1 << 31)
    with pytest.raises(InputError, match="no side of 2147483648 pixels or more"):
        resize_image(image, 2, 2, max_pixels=1 << 40)


def test_what_a_tensor_becomes_is_bounded(kit):
    backend = kit.ready(Tensor2Mat, max_pixels=12)
    assert kit.run(backend, data=np.zeros((3, 3, 4), np.float32))["result"].shape == (3, 4, 3)
    refused(kit, backend, data=np.zeros((3, 1, 13), np.float32))
    refused(kit, backend, data=seen_as(np.float32(1), 3, 1 << 20, 1 << 20))


def test_a_file_of_one_byte_repeated_is_not_copied(kit):
    error = refused(kit, kit.ready(DecodeMat), data=seen_as(np.uint8(255), 1 << 40))
    assert "too long" in str(error)


@pytest.mark.parametrize(
    ("cls", "sides"),
    [
        (ResizeMat, ("resize_h", "resize_w")),
        (LetterBoxMat, ("resize_h", "resize_w")),
        (TopLeftResizeMat, ("resize_h", "resize_w")),
        (PerspectiveCropMat, ("crop_h", "crop_w")),
    ],
)
def test_options_cannot_ask_for_more_than_their_own_limit(cls, sides):
    cls.Options(max_pixels=12, **dict(zip(sides, (3, 4), strict=True)))
    with pytest.raises(ValidationError, match="more than max_pixels"):
        cls.Options(max_pixels=11, **dict(zip(sides, (3, 4), strict=True)))
    with pytest.raises(ValidationError, match="more than max_pixels"):
        cls.Options(**dict.fromkeys(sides, 32_767))


def test_a_side_that_follows_from_the_other_is_bounded(kit):
    backend = kit.ready(ResizeMat, resize_h=10, max_pixels=1000)
    assert kit.run(backend, data=np.zeros((1, 10), np.uint8))["result"].shape == (10, 100)
    assert "110 x 10" in str(refused(kit, backend, data=np.zeros((1, 11), np.uint8)))


def test_crops_that_are_filled_or_enlarged_are_bounded(kit):
    image = np.zeros((4, 4), np.uint8)
    filled = kit.ready(CropMat, outside="fill", max_pixels=100)
    assert kit.run(filled, data=image, box=[0, 0, 10, 10])["result"].shape == (10, 10)
    assert refused(kit, filled, data=image, box=[0, 0, 10, 11]).key == "box"
    quad = kit.ready(PerspectiveCropMat, crop_h=10, max_pixels=100)
    refused(kit, quad, data=image, quad=[[0, 0], [3, 0], [3, 1], [0, 1]])


@pytest.mark.parametrize("shape", [(2, 3000, 1), (3000, 2, 3)])
@pytest.mark.parametrize("size", [(3000, 2), (2, 3000)])
def test_nearest_makes_nothing_larger_than_image_and_result(shape, size):
    """Rows first or columns first, one of the ways would make 3000 x 3000 pixels in between."""
    tracemalloc = pytest.importorskip("tracemalloc")
    image = np.zeros(shape, np.uint8)
    tracemalloc.start()
    result = resize_image(image, *size, interpolation="nearest")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert result.shape == (*size, shape[2])
    assert peak < 1_000_000


ODD_VIEWS = [
    lambda a: a[::-1],
    lambda a: a[:, ::-1],
    lambda a: a[:, ::2],
    lambda a: a[..., ::-1],
    lambda a: a.transpose(1, 0, 2),
    lambda a: a[2:5, 1:6],
    lambda a: a[:1],
    lambda a: a[:, :1],
    lambda a: np.broadcast_to(a[:1], a.shape),
    lambda a: np.broadcast_to(a[:, :1], a.shape),
    lambda a: np.broadcast_to(a[..., :1], a.shape),
]


@pytest.mark.parametrize("view", ODD_VIEWS)
def test_views_give_what_their_copies_give(view):
    image = np.random.default_rng(3).integers(0, 256, (8, 9, 3)).astype(np.uint8)
    odd, plain = view(image), np.ascontiguousarray(view(image))
    assert np.array_equal(dense(odd), plain)
    for function in (
        lambda a: resize_image(a, 5, 6),
        lambda a: convert_color(a, "rgb", "gray"),
        lambda a: letterbox_image(a, 20, 20)[0],
        lambda a: crop_image(a, [-1, -1, 3, 3], outside="fill"),
        lambda a: image_to_tensor(a),
        lambda a: np.frombuffer(encode_image(a, "bgr", "png"), np.uint8),
        lambda a: decode_image(encode_image(a, "rgb", "png")),
        lambda a: tensor_to_image(image_to_tensor(a)),
    ):
        assert np.array_equal(function(odd), function(plain))


def is_drawn_into(image):
    """Say whether OpenCV takes the array itself, and needs no copy: into a copy it would draw in vain."""
    if image.flags.c_contiguous:
        return True  # also where nobody may write
    try:
        cv2.rectangle(image, (0, 0), (0, 0), 0)
    except cv2.error:
        return False
    return True


@pytest.mark.parametrize("view", [*ODD_VIEWS, lambda a: a])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [3, 1, None])
def test_what_opencv_can_read_in_place_is_not_copied_and_nothing_else_comes_to_it(
    channels, dtype, view
):
    odd = view(np.zeros((8, 9, channels or 1), dtype))
    if channels is None:
        odd = odd[..., 0]
    assert is_drawn_into(dense(odd))
    assert (dense(odd) is odd) == is_drawn_into(odd)


@pytest.mark.parametrize(
    "rows",
    [
        lambda: seen_as(np.float32(1), 1 << 30, 6),
        lambda: seen_as(np.int64(1), 6, 1 << 30),
        lambda: [[0.0] * 100_000] * 100_000,
        lambda: [seen_as(1.0, 1 << 40)] * 6,
    ],
)
def test_boxes_are_counted_before_they_are_copied(kit, rows):
    assert refused(kit, kit.ready(NMS), data=rows()).key == "data"
    place = LetterBoxTransform(1, 1, 1, 1, 1, 1, 0, 0)
    assert refused(kit, kit.ready(UnletterBox), data=rows(), letterbox=place).key == "data"


def test_lists_in_lists_in_lists_are_no_boxes(kit):
    nested = [0.0] * 6
    for _ in range(6):
        nested = [nested] * 1000
    error = refused(kit, kit.ready(NMS), data=nested)
    assert "these are no boxes" in str(error)


def test_how_many_boxes_are_compared_is_bounded(kit):
    rows = np.zeros((100_001, 6), np.float32)
    rows[:5, 4] = 1
    assert "at most 100000 rows" in str(refused(kit, kit.ready(NMS), data=rows))
    assert len(kit.run(kit.ready(NMS, score_threshold=0.5), data=rows)["result"]) == 5


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda image: resize_image(image, 2, 2, interpolation="foo"), "lanczos, not 'foo'"),
        (lambda image: resize_image(image), "both None"),
        (lambda image: resize_image(image, 0, 2), "height .* not 0"),
        (lambda image: resize_image(image, 2, 2.5), r"width .* not 2\.5"),
        (lambda image: letterbox_image(image, 2, -1), "width .* not -1"),
        (lambda image: convert_color(image, "yuv", "rgb"), "source is one of .* not 'yuv'"),
        (lambda image: convert_color(image, "rgb", "yuv"), "target is one of .* not 'yuv'"),
        (lambda image: crop_image(image, [0, 0, 2, 2], outside="foo"), "refuse, fill, not 'foo'"),
        (lambda image: crop_quad(image, REST["quad"], 0), "height .* not 0"),
        (lambda image: crop_quad(image, REST["quad"], interpolation="area"), "not 'area'"),
        (lambda image: encode_image(image, "rgb", "gif"), "format is one of .* not 'gif'"),
        (lambda image: crop_quad(image, REST["quad"], rotate_upright=0), "rotate_upright .* not 0"),
        (lambda image: encode_image(image, "rgb", quality=101), "1 to 100, not 101"),
        (lambda image: encode_image(image, "rgb", quality=90.5), r"1 to 100, not 90\.5"),
        (lambda _: filter_detections(np.zeros((3, 6)), iou_threshold=50), "0 to 1, not 50"),
        (lambda _: filter_detections(np.zeros((3, 6)), max_boxes=-1), "max_boxes .* not -1"),
    ],
)
def test_functions_name_the_words_they_know(call, says):
    with pytest.raises(ValueError, match=says):
        call(np.zeros((4, 4, 3), np.uint8))
