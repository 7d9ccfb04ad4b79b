"""`host_array` and `joined` beside numpy: values of callers, and what is refused with which words."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from headrace.errors import InputError
from headrace_tensors import STRING, Port, host_array, joined, rows_apart

F32 = np.float32
ENDLESS = []
ENDLESS.append(ENDLESS)  # a list that contains itself
INFINITE = float("inf")


def port_of(dtype, shape=(None, 2)):
    return Port("x", dtype, shape, True)


def error_of(value, port):
    with pytest.raises(InputError) as caught:
        host_array(value, port, "key")
    assert caught.value.key == "key"
    assert caught.value.expected
    return caught.value


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("float32", [1, 2], [1.0, 2.0]),
        ("float32", (0.5, 2), [0.5, 2.0]),
        ("float32", [0.5, 1 << 64], [0.5, 2.0**64]),
        ("float32", [1 << 70, 0.5], [2.0**70, 0.5]),
        ("float32", [1 << 130, 0.5], None),
        ("float64", [1, 1 << 1024], None),
        ("uint8", [1, 255], [1, 255]),
        ("uint8", [1, 256], None),
        ("uint64", [1, (1 << 64) - 1], [1, (1 << 64) - 1]),
        ("uint64", [1, 1 << 64], None),
        ("uint64", [1, 2.0], None),
        (STRING, ["1", "b"], ["1", "b"]),
        (STRING, ["1", 2], None),
        (STRING, np.array(["a", None], object), None),
        (STRING, np.array([b"x"], object), None),
        (STRING, b"x", None),
        (STRING, 3, None),
        ("int64", [0.5, 1], None),
        ("int64", [True, False], None),
        ("int64", [1 << 70, 1], None),
        ("float16", [1e6, 0.0], None),
        ("bfloat16", [1, 2.5], [1, 2.5]),
        ("bfloat16", [INFINITE, 1], [INFINITE, 1]),
        ("bfloat16", [1e39, 1], None),
        ("bfloat16", [True, False], None),
        ("float8_e4m3fn", [448, 1], [448, 1]),
        ("float8_e4m3fn", [1000, 1], None),
        ("float8_e4m3fn", [INFINITE, 1], None),
        ("float32", [np.float64(1), np.float64(2)], None),
        ("float32", [[1], [1, 2]], None),
        ("float32", ENDLESS, None),
        (STRING, ENDLESS, None),
        ("float32", {"a": 1}, None),
        ("float32", None, None),
    ],
    ids=str,
)
def test_lists_get_the_dtype_only_where_nothing_is_lost(dtype, value, expected):
    if dtype in ("bfloat16", "float8_e4m3fn"):
        pytest.importorskip("ml_dtypes")
    if expected is None:
        error_of(value, port_of(dtype))
        return
    found = host_array(value, port_of(dtype))
    assert (str(found.dtype), found.tolist()) == ("object" if dtype == STRING else dtype, expected)


@pytest.mark.parametrize(
    ("dtype", "numbers", "got"),
    [
        ("uint8", [-1, 300], "-1 to 300 in int64 [2] from list"),
        ("float32", [0, 1e39], "0.0 to 1e+39 in float64 [2] from list"),
        ("float32", [float("nan"), 1e39], "1e+39 to 1e+39 in float64 [2] from list"),
    ],
)
def test_numbers_that_do_not_fit_are_shown(dtype, numbers, got):
    error = error_of(numbers, port_of(dtype))
    assert error.what.startswith("a number does not fit")
    assert error.got == got


def test_half_a_character_is_no_text():
    assert error_of("b\ud800", port_of(STRING, (None,))).got == r"'\ud800'"


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="it has no such dtype")
def test_arrays_of_texts_of_any_length_are_read():
    texts = np.array(["a", "longer"], dtype=np.dtypes.StringDType())
    assert host_array(texts, port_of(STRING)).tolist() == ["a", "longer"]


def test_arrays_come_in_through_dlpack_and_array_protocols():
    def away(*_args, **_kwargs):
        raise RuntimeError("this one lies on another device")

    ones = np.ones(2, F32)
    exports = {"__dlpack__": ones.__dlpack__, "__dlpack_device__": ones.__dlpack_device__}
    only_array = type("OnlyArray", (), {"__array__": lambda self, dtype=None, copy=None: ones})
    for value in (SimpleNamespace(**exports), only_array()):
        assert host_array(value, port_of("float32")).tolist() == [1, 1]
    for names in (("__array__",), ("__dlpack__", "__dlpack_device__")):
        broken = type("Broken", (), dict.fromkeys(names, away))()
        assert "another device" in error_of(broken, port_of("float32")).what


IMAGE = (None, 3, 8, 6)
U8 = np.uint8


@pytest.mark.parametrize(
    ("shape", "dtype", "value"),
    [
        (IMAGE, "float32", np.zeros((3, 8, 6), U8)),  # has the axes of a tensor
        (IMAGE, "float32", np.zeros((8, 6, 3))),  # of another dtype
        (IMAGE, "float32", np.zeros((8, 6, 4), U8)),
        (IMAGE, "float16", np.zeros((8, 6, 3), U8)),  # the word would give float32
        ((None, None, None, 3), "float32", np.zeros((8, 6, 3), U8)),  # channels come last
        ((None, 8, 6), "float32", np.zeros((8, 6, 3), U8)),
        (IMAGE, "float32", np.zeros((1, 8, 6, 3), U8)),
    ],
)
def test_no_other_array_of_a_wrong_type_is_called_a_picture(shape, dtype, value):
    error = error_of(value, port_of(dtype, shape))
    assert "wrong dtype" in error.what
    assert "picture" not in (error.hint or "")


def test_a_picture_and_the_bytes_of_its_file_are_told_the_words_that_make_a_tensor():
    picture = error_of(np.zeros((8, 6, 3), U8), port_of("float32", IMAGE))
    assert "Mat2Tensor of headrace-cv: write it before" in picture.hint
    file = error_of(b"\x89PNG\r\n\x1a\n", port_of("float32", IMAGE))
    assert (file.got, "DecodeMat" in file.hint) == ("8 bytes", True)


@pytest.mark.parametrize("dtype", ["uint8", ">f4", "float64", "bool", object])
@pytest.mark.parametrize("sample", [(), (3,), (2, 0), (3, 100, 100), (1100, 1000)])
@pytest.mark.parametrize("library", [None, "cv2"])
def test_arrays_are_joined_as_numpy_joins_them_and_taken_apart_again(
    dtype, sample, library, monkeypatch
):
    monkeypatch.setitem(sys.modules, "cv2", library and pytest.importorskip(library))
    rng = np.random.default_rng(3)
    arrays = [rng.integers(0, 2, (rows, *sample)).astype(dtype) for rows in (1, 2, 1)]
    for mixed in (arrays, [arrays[0], np.asfortranarray(arrays[1]), arrays[1][::-1]]):
        wanted = np.concatenate(mixed)
        for out in (None, np.empty_like(wanted)):
            found = joined(mixed, out)
            assert found is out or out is None
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)
        for row, expected in zip(rows_apart(wanted), wanted, strict=True):
            assert row.dtype == wanted.dtype
            assert not np.shares_memory(row, wanted)
            np.testing.assert_array_equal(row, expected)
            assert row.shape == sample
