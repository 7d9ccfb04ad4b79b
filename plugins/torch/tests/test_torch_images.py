"""Image words against OpenCV, Pillow and numpy; each tolerance is the one that its docstring states."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from headrace.errors import InputError
from headrace_torch.backends.color import CvtColorTensor, NormalizeTensor
from headrace_torch.backends.geometry import CropTensor, PadTensor, ResizeTensor


def noise(height, width, channels=3, dtype=np.uint8, seed=0):
    """An image ``[H, W, C]`` and the same as a tensor ``[C, H, W]``."""
    random = np.random.default_rng(seed)
    if dtype is np.uint8:
        image = random.integers(0, 256, (height, width, channels), dtype)
    else:
        image = random.standard_normal((height, width, channels)).astype(dtype)
    return image, torch.from_numpy(image).permute(2, 0, 1).contiguous()


def far(tensor, image):
    """The greatest difference between ``[C, H, W]`` and ``[H, W, C]``."""
    got = tensor.permute(1, 2, 0).double().numpy()
    image = image.reshape(got.shape).astype(np.float64)
    assert got.shape == image.shape
    return np.abs(got - image).max()


SIZES = [(31, 47), (200, 90), (7, 120), (64, 64)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("how", ["linear", "cubic"])
def test_resize_is_opencvs(bench, size, dtype, how):
    image, tensor = noise(64, 48, dtype=dtype)
    one = bench()
    resize = one.start(ResizeTensor, resize_h=size[0], resize_w=size[1], interpolation=how)
    (result,) = one.run(resize, {"data": tensor})
    flag = {"linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC}[how]
    expected = cv2.resize(image, size[::-1], interpolation=flag)
    assert result.dtype == tensor.dtype
    assert far(result, expected) <= (1 if dtype is np.uint8 else 1e-4 * np.abs(image).max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("how", "flag", "within"), [("linear", Image.BILINEAR, 1), ("cubic", Image.BICUBIC, 2)]
)
def test_resize_with_antialias_is_pillows(bench, size, how, flag, within):
    image, tensor = noise(150, 130)
    one = bench()
    options = {"resize_h": size[0], "resize_w": size[1], "interpolation": how}
    resize = one.start(ResizeTensor, antialias=True, **options)
    (result,) = one.run(resize, {"data": tensor})
    expected = np.asarray(Image.fromarray(image).resize(size[::-1], flag))
    assert far(result, expected) <= within


@pytest.mark.parametrize("size", [(99, 1), (4, 1), (1, 99), (1, 1), (33, 1)])
@pytest.mark.parametrize("sides", [(33, 5), (33, 1), (1, 7)])
def test_a_result_of_one_column_is_averaged_as_any(bench, size, sides):
    """torch itself gives wrong values for an image of one column that lies row by row."""
    for how, flag in (("linear", Image.BILINEAR), ("cubic", Image.BICUBIC)):
        one = bench()
        options = {"resize_h": size[0], "resize_w": size[1], "interpolation": how}
        resize = one.start(ResizeTensor, antialias=True, **options)
        image = np.random.default_rng(0).integers(90, 160, (*sides, 3), np.uint8)
        tensor = torch.from_numpy(image).permute(2, 0, 1).contiguous()
        (result,) = one.run(resize, {"data": tensor})
        assert far(result, np.asarray(Image.fromarray(image).resize(size[::-1], flag))) <= 2
        (floating,) = one.run(resize, {"data": tensor.double()})
        assert far(floating - result, np.zeros((*size, 3))) <= 2


def test_antialias_rounds_halves_as_pillow_does(bench):
    image, tensor = noise(37, 53)
    one = bench()
    resize = one.start(ResizeTensor, resize_h=74, resize_w=106, antialias=True)  # many halves
    (result,) = one.run(resize, {"data": tensor})
    expected = np.asarray(Image.fromarray(image).resize((106, 74), Image.BILINEAR))
    assert far(result, expected) == 0


def test_nearest_takes_the_pixel_that_holds_the_centre(bench):
    image, tensor = noise(10, 9)
    one = bench()
    resize = one.start(ResizeTensor, resize_h=4, resize_w=23, interpolation="nearest")
    (result,) = one.run(resize, {"data": tensor})
    rows = [int((i + 0.5) * 10 / 4) for i in range(4)]
    columns = [int((i + 0.5) * 9 / 23) for i in range(23)]
    assert far(result, image[rows][:, columns]) == 0
    small = (tensor > 127).to(torch.float8_e5m2)
    (result,) = one.run(resize, {"data": small})
    assert torch.equal(result.float(), small.float()[:, rows][..., columns])


@pytest.mark.parametrize(("h", "w", "expected"), [(30, None, (30, 15)), (None, 5, (10, 5))])
def test_a_free_side_follows_the_aspect_ratio(bench, h, w, expected):
    _, tensor = noise(20, 10)
    one = bench()
    (result,) = one.run(one.start(ResizeTensor, resize_h=h, resize_w=w), {"data": tensor})
    assert tuple(result.shape[1:]) == expected


def test_sizes_may_come_with_the_request_and_differ_in_one_batch(bench):
    one = bench()
    resize = one.start(ResizeTensor, size_key="hw")
    image, tensor = noise(20, 10)
    sizes = [(5, 6), np.array([40, 30]), (5, 6), torch.tensor([20, 10])]
    results = one.run(resize, *({"data": tensor, "hw": hw} for hw in sizes))
    assert [tuple(r.shape[1:]) for r in results] == [(5, 6), (40, 30), (5, 6), (20, 10)]
    for result in results:
        assert far(result, cv2.resize(image, result.shape[:0:-1])) <= 1
    for wrong in ((5,), (0, 5), "5x6", (5.5, 6), (5, True), (20_000, 5001), None):
        error = one.error(resize, {"data": tensor, "hw": wrong})
        assert isinstance(error, InputError)
        assert error.key == "hw"


def test_the_size_it_has_already_is_no_copy_and_a_batch_of_rows_stays_one(bench):
    one = bench()
    resize = one.start(ResizeTensor, resize_h=20, resize_w=10)
    _, tensor = noise(20, 10)
    (result,) = one.run(resize, {"data": tensor})
    assert result.data_ptr() == tensor.data_ptr()
    rows = torch.stack([tensor, tensor.flip(1)]).repeat(1, 1, 2, 2)
    (result,) = one.run(resize, {"data": rows, "request_size": 2})
    assert result.shape == (2, 3, 20, 10)
    assert torch.equal(result[0], one.run(resize, {"data": rows[0]})[0])


def test_images_of_one_shape_are_worked_on_in_one_call(bench, monkeypatch):
    one = bench()
    resize = one.start(ResizeTensor, resize_h=8, resize_w=8)
    calls = []
    real = torch.nn.functional.interpolate

    def counted(images, *args, **kwargs):
        calls.append(tuple(images.shape))
        return real(images, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "interpolate", counted)
    tensors = [noise(20 + i % 2, 10, seed=i)[1] for i in range(6)]
    results = one.run(resize, *({"data": t} for t in tensors))
    assert calls == [(3, 3, 20, 10), (3, 3, 21, 10)]
    for tensor, result in zip(tensors, results, strict=True):
        (alone,) = one.run(resize, {"data": tensor})
        assert torch.equal(alone, result)


def test_a_chain_takes_the_rows_of_the_word_before_as_one_tensor(bench, monkeypatch):
    one = bench()
    first = one.start(ResizeTensor, resize_h=8, resize_w=8)
    second = one.start(NormalizeTensor, scale=2.0)
    joins = []
    real = torch.stack
    monkeypatch.setattr(torch, "stack", lambda parts: joins.append(len(parts)) or real(parts))
    batch = [{"data": noise(20, 10, seed=i)[1]} for i in range(4)]
    assert first(batch) is None
    for request in batch:
        request["data"] = request.pop("result")
    rows = [request["data"].clone() for request in batch]
    assert second(batch) is None
    assert joins == [4]  # at the first word; the second takes them as they are
    for row, request in zip(rows, batch, strict=True):
        assert torch.equal(request["result"], row.float() * 2)
    # In another order, or one fewer, they are no longer that tensor's rows.
    for changed in (batch[::-1], batch[:3]):
        for request in changed:
            request["data"] = request["result"]
        second(changed)
        for request in changed:
            assert torch.equal(request["result"], request["data"] * 2)


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2, 4, 4),
        torch.zeros(4, 4),
        torch.zeros(3, 0, 4),
        torch.zeros(3, 4, 4, dtype=torch.int32),
        torch.zeros(3, 4, 4, dtype=torch.complex64),
        torch.zeros(3, 4, 4).to_sparse(),
        "a text",
        None,
        [[1, 2], [3, 4]],
    ],
    ids=str,
)
def test_what_is_no_image_fails_alone(bench, wrong):
    one = bench()
    resize = one.start(ResizeTensor, resize_h=8, resize_w=8)
    good = noise(20, 10)[1]
    found = one.outcomes(resize, {"data": good}, {"data": wrong}, {"data": good})
    assert found[0] is found[2] is None
    assert isinstance(found[1], InputError)
    assert found[1].key == "data"
    assert "expected an image: uint8 or floating [C, H, W]" in str(found[1])


def test_a_crop_holds_the_pixels_of_its_box(bench):
    one = bench()
    crop = one.start(CropTensor)
    image, tensor = noise(20, 30)
    boxes = [(2, 3, 10, 9), (2.5, 3.49, 10, 9), np.array([-5, -5, 4, 4, 0.9]), (25, 15, 99, 99)]
    results = one.run(crop, *({"data": tensor, "box": box} for box in boxes))
    cut = [image[3:9, 2:10], image[3:9, 3:10], image[:4, :4], image[15:, 25:]]
    for result, expected in zip(results, cut, strict=True):
        assert far(result, expected) == 0
        assert result.is_contiguous()
        assert result.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    found = np.float32([2, 3, 10, 9])  # a detector's row, as a list and as other libraries have it
    through = SimpleNamespace(__dlpack__=found.__dlpack__, __dlpack_device__=lambda: (1, 0))
    for box in (list(found), tuple(torch.from_numpy(found)), [np.int64(2), 3, 10, 9], through):
        assert far(one.run(crop, {"data": tensor, "box": box})[0], cut[0]) == 0
    for box in (
        b"0123",
        torch.zeros(4, device="meta"),
        (30, 0, 40, 5),
        (5, 5, 5, 9),
        (1, 2, 3),
        "box",
        (0, 0, float("nan"), 4),
        None,
        (10**400, 0, 1, 1),
    ):
        error = one.error(crop, {"data": tensor, "box": box})
        assert isinstance(error, InputError)
        assert error.key == "box"


def test_crops_from_options(bench):
    one = bench()
    image, tensor = noise(20, 31)
    (fixed,) = one.run(one.start(CropTensor, box=(1, 2, 11, 8)), {"data": tensor})
    (middle,) = one.run(one.start(CropTensor, crop_h=10, crop_w=16), {"data": tensor})
    assert far(fixed, image[2:8, 1:11]) == 0
    assert far(middle, image[5:15, 7:23]) == 0
    assert one.start(CropTensor, crop_h=10, crop_w=16).reads == ("data",)


def test_a_crop_outside_is_refused_or_filled(bench):
    one = bench()
    image, tensor = noise(6, 8)
    request = {"data": tensor, "box": (-2, 1, 5, 9)}
    error = one.error(one.start(CropTensor, outside="refuse"), dict(request))
    assert ("leaves the image" in str(error), error.key) == (True, "box")
    by_size = one.start(CropTensor, outside="refuse", crop_h=7, crop_w=2)
    assert one.error(by_size, {"data": tensor}).key == "data"  # no key holds that box
    fill = one.start(CropTensor, outside="fill", fill_value=(1, 2, 3))
    (result,) = one.run(fill, dict(request))
    expected = np.empty((8, 7, 3))
    expected[:] = (1, 2, 3)
    expected[:5, 2:] = image[1:6, :5]
    assert far(result, expected) == 0
    assert "too large" in str(one.error(fill, {"data": tensor, "box": (0, 0, 32_768, 4)}))
    four = one.start(CropTensor, outside="fill", fill_value=(1, 2, 3, 4))
    assert isinstance(one.error(four, dict(request)), InputError)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_what_fills_a_floating_image_is_limited_to_what_its_dtype_holds(bench, dtype):
    one = bench()
    image = torch.ones(3, 2, 2, dtype=getattr(torch, dtype))
    most = torch.finfo(image.dtype).max
    for value in (1e300, (-1e300, 0.5, 1e300)):
        pad = one.start(PadTensor, pad_h=3, pad_w=3, fill_value=value)
        (padded,) = one.run(pad, {"data": image})
        limited = [
            min(max(x, -most), most) for x in (value if type(value) is tuple else [value] * 3)
        ]
        assert padded[:, 2, 2].tolist() == limited
        assert torch.equal(padded[:, :2, :2], image)


def test_pad_puts_an_image_into_a_corner_or_the_middle(bench):
    one = bench()
    image, tensor = noise(5, 6)
    (corner,) = one.run(one.start(PadTensor, pad_h=8, pad_w=9, fill_value=7), {"data": tensor})
    assert far(corner, np.pad(image, ((0, 3), (0, 3), (0, 0)), constant_values=7)) == 0
    for values in (
        -3,
        2.5,
        3.5,
        300,
    ):  # rounded, halves to the even one, and limited: as in headrace-cv
        (filled,) = one.run(
            one.start(PadTensor, pad_h=6, pad_w=6, fill_value=values), {"data": tensor}
        )
        assert filled[:, 5].unique().tolist() == [min(max(round(values), 0), 255)]
    (middle,) = one.run(one.start(PadTensor, pad_h=8, pad_w=9, centered=True), {"data": tensor})
    assert far(middle, np.pad(image, ((1, 2), (1, 2), (0, 0)))) == 0
    (step,) = one.run(one.start(PadTensor, multiple=4), {"data": tensor})
    assert step.shape == (3, 8, 8)
    by_key = one.start(PadTensor, size_key="hw")
    (sized,) = one.run(by_key, {"data": tensor, "hw": [5, 7]})
    assert sized.shape == (3, 5, 7)
    assert one.error(by_key, {"data": tensor, "hw": [4, 7]}).key == "data"
    assert one.error(by_key, {"data": tensor, "hw": [20_000, 5001]}).key == "hw"


COLORS = {("rgb", "gray"): cv2.COLOR_RGB2GRAY, ("bgr", "gray"): cv2.COLOR_BGR2GRAY}


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("target", ["rgb", "bgr", "gray"])
def test_colours_are_opencvs(bench, target, dtype):
    one = bench()
    convert = one.start(CvtColorTensor, color=target)
    within = 1 if dtype is np.uint8 else 1e-5
    image, tensor = noise(9, 7, dtype=dtype)
    _, gray = noise(9, 7, 1, dtype=dtype)
    batch = [
        {"data": tensor, "color": "rgb"},
        {"data": tensor, "color": "bgr"},
        {"data": gray, "color": "gray"},
    ]
    results = one.run(convert, *batch)
    assert [request["color"] for request in batch] == [target] * 3
    for source, result in zip(("rgb", "bgr"), results, strict=False):
        if target == "gray":
            assert far(result, cv2.cvtColor(image, COLORS[source, target])) <= within
        else:
            assert far(result, image if source == target else image[..., ::-1]) == 0
    assert torch.equal(results[2], gray if target == "gray" else gray.repeat(3, 1, 1))


def test_colours_that_do_not_fit_are_refused(bench):
    one = bench()
    convert = one.start(CvtColorTensor, color="gray")
    _, tensor = noise(4, 4)
    for request, key in (
        ({"data": tensor}, "color"),
        ({"data": tensor, "color": "hsv"}, "color"),
        ({"data": tensor, "color": 3}, "color"),
        ({"data": tensor, "color": "gray"}, "data"),
        ({"data": torch.zeros(4, 4, 4), "color": "rgb"}, "data"),
    ):
        before = dict(request)
        error = one.error(convert, request)
        assert (type(error), error.key) == (InputError, key)
        assert request.get("color") == before.get("color")


def test_normalize_is_the_formula(bench):
    one = bench()
    image, tensor = noise(6, 5)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalize = one.start(NormalizeTensor, scale=1 / 255, mean=mean, std=std)
    (result,) = one.run(normalize, {"data": tensor})
    assert result.dtype == torch.float32
    assert far(result, (image.astype(np.float64) / 255 - mean) / std) <= 1e-5
    half = one.start(NormalizeTensor, scale=1 / 255, dtype="float16")
    (result,) = one.run(half, {"data": tensor})
    assert result.dtype == torch.float16
    assert far(result, image / 255) <= 1e-3
    values = tensor.double()
    (kept,) = one.run(one.start(NormalizeTensor), {"data": values})
    assert kept.dtype == torch.float64
    assert kept.data_ptr() != values.data_ptr()
    assert torch.equal(kept, values)
    assert one.error(normalize, {"data": torch.zeros(1, 2, 2)}).key == "data"


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
@pytest.mark.parametrize(
    "options",
    [
        {"mean": 127.5, "std": 127.5},
        {"mean": (123.675, 116.28, 103.53), "std": (58.395, 57.12, 57.375)},
        {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
        {"scale": -2.0, "mean": 101.0},
        {"scale": 0.0, "mean": 2.0},
        {"scale": 1e-30, "mean": 2.0},
    ],
)
def test_values_near_the_mean_keep_their_digits(bench, options, dtype):
    tensor = torch.arange(256).repeat(3, 1).reshape(3, 16, 16).to(getattr(torch, dtype))
    before = tensor.clone()
    one = bench()
    (result,) = one.run(one.start(NormalizeTensor, **options), {"data": tensor})
    scale, mean, std = (
        np.reshape(options.get(key, default), (-1, 1, 1))
        for key, default in [("scale", 1), ("mean", 0), ("std", 1)]
    )
    expected = (before.numpy().astype(np.float64) * scale - mean) / std
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=0)
    assert torch.equal(tensor, before)


def test_what_is_normalized_is_told_to_later_elements(bench):
    """Onnx2Tensorrt then does not fold in the same mean and std, which the keys of the node give it, too."""
    one = bench()
    one.start(NormalizeTensor, scale=0.5)
    assert one.instance.get("normalized", None) is None
    one.start(NormalizeTensor, mean=[1, 2, 3], std=2)
    assert one.instance.get("normalized", None) == [((1, 2, 3), 2)]


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_normalize_in_one_kernel_is_the_same(bench, dtype):
    one = bench()
    word = one.start(NormalizeTensor, scale=1 / 255, mean=(0.4, 0.5, 0.6), std=0.25)
    tensor = noise(9, 7)[1].to(getattr(torch, dtype))
    (expected,) = one.run(word, {"data": tensor})
    word._normalization._in_one = True  # as on a CUDA device
    (result,) = one.run(word, {"data": tensor})
    assert result.dtype == expected.dtype
    assert torch.allclose(result, expected, rtol=1e-6, atol=1e-2 if dtype == "float16" else 1e-5)


def test_what_was_found_out_of_one_batch_is_not_taken_for_another(bench):
    one = bench()
    crop = one.start(CropTensor, crop_h=4, crop_w=4)
    rows = torch.stack([noise(12, 12, seed=i)[1] for i in range(2)])
    for wide in (rows, rows[:, :, 2:10, 1:11], rows):  # the middle is another one
        left, top = (wide.shape[3] - 4) // 2, (wide.shape[2] - 4) // 2
        for request in ({"data": wide, "request_size": 2}, *({"data": row} for row in wide)):
            (result,) = one.run(crop, request)
            expected = request["data"][..., top : top + 4, left : left + 4]
            assert torch.equal(result, expected)
    for wrong in (rows.int(), rows[:, :2]):
        assert one.error(crop, {"data": wrong, "request_size": 2}).key == "data"
        found = one.outcomes(crop, {"data": wrong[0]}, {"data": rows[0]}, {"data": wrong[1]})
        assert [type(error) for error in found] == [InputError, type(None), InputError]
    # Equal boxes in two lists are one; the same list, changed in place, is another box.
    by_key, box = one.start(CropTensor), [0, 0, 4, 4]
    for shift in (0, 3):
        box[:] = [shift, shift, shift + 4, shift + 4]
        batch = [
            {"data": row, "box": where} for row, where in zip(rows, (box, list(box)), strict=True)
        ]
        for row, result in zip(rows, one.run(by_key, *batch), strict=True):
            assert torch.equal(result, row[:, shift : shift + 4, shift : shift + 4])


def test_nothing_is_done_in_place(bench):
    one = bench()
    _, tensor = noise(16, 12)
    before = tensor.clone()
    words = [
        (ResizeTensor, {"resize_h": 8, "resize_w": 9}),
        (CropTensor, {"box": (0, 0, 5, 5)}),
        (PadTensor, {"pad_h": 20, "pad_w": 20}),
        (CvtColorTensor, {"color": "gray"}),
        (NormalizeTensor, {"mean": 3.0}),
    ]
    for cls, options in words:
        (result,) = one.run(one.start(cls, **options), {"data": tensor, "color": "rgb"})
        result = result.clone()
        result.zero_()
        assert torch.equal(tensor, before), cls
