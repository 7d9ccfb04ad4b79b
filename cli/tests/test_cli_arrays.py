"""How ``headrace run`` prints arrays: a few numbers as Python prints them, more by type and shape."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.printing import as_line

np = pytest.importorskip("numpy")


class Library:
    """An array of a library that has neither numpy's methods nor its attributes, but its protocols."""

    def __init__(self, array, protocols):
        self.kept = array
        for name in protocols:
            setattr(self, name, getattr(array, name))


class Tensor:
    """Names its type as tensors of torch do."""

    def __init__(self, values, dtype):
        self.values, self.shape, self.dtype = values, (len(values),), dtype

    def tolist(self):
        return self.values


class Lost(Tensor):
    def tolist(self):
        raise RuntimeError("the device is lost")


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([1.5, 2, 3], np.float32), "[1.5, 2.0, 3.0]"),
        (np.array([0.1, 1 / 3, 1e-20], np.float32), "[0.1, 0.33333334, 1e-20]"),
        (np.array([0.1], np.float16), "[0.1]"),
        (np.array([0.1, 1 / 3]), "[0.1, 0.3333333333333333]"),
        (np.array([0.1], ">f4"), "[0.1]"),
        (np.array([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
        (np.array([True, False]), "[True, False]"),
        (np.array([np.nan, np.inf, -np.inf], np.float32), "[nan, inf, -inf]"),
        (np.array(0.1, np.float32), "0.1"),
        (np.float32(0.1), "0.1"),
        (np.bool_(True), "True"),
        (np.int64(7), "7"),
        (np.float64("nan"), "nan"),
        (np.ma.array([0.1, 2], np.float32, mask=[0, 1]), "[0.1, None]"),
        (np.arange(10, dtype=np.uint8), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"),
        (np.arange(11, dtype=np.uint8), "uint8 [11]"),
        (np.zeros((3, 224, 224), np.float32), "float32 [3, 224, 224]"),
        (np.zeros((0, 4)), "float64 [0, 4]"),
        (np.array(["a", "b"]), "<U1 [2]"),
        (np.array("a"), "a"),
        (Tensor([0.10000000149011612, 2.0], "torch.float32"), "[0.1, 2.0]"),
        (Tensor([0.5], "torch.bfloat16"), "[0.5]"),
        (Lost([1.0, 2.0], "torch.float32"), "float32 [2]"),
        (Library(np.array([0.1, 2], np.float32), ["__array_interface__"]), "[0.1, 2.0]"),
        (Library(np.array([[1, 2]]), ["__dlpack__", "__dlpack_device__"]), "[[1, 2]]"),
        (True, "True"),
        (float("inf"), "inf"),
    ],
)
def test_few_numbers_are_printed_as_python_prints_them(array, text):
    assert as_line("a.png", array) == f"a.png\t{text}"
    assert as_line("a.png", {"x": array, "y": "z"}) == f"a.png\t{text}\tz"


def test_few_numbers_within_a_list_are_lists_of_json():
    boxes = [{"box": np.array([0.1, 2], np.float32), "sure": np.array([True])}]
    assert as_line("a.png", boxes) == 'a.png\t[{"box": [0.1, 2.0], "sure": [true]}]'


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_text_of_a_float32_is_the_shortest_that_reads_back_as_it(number):
    text = as_line("", np.array([number], np.float32)).strip("\t[]")
    assert text == repr(float(text))
    assert np.float32(float(text)) == np.float32(number)
    digits = "".join(map(str, Decimal(text).normalize().as_tuple().digits))
    with np.errstate(over="ignore"):  # with fewer digits it may be above the greatest float32
        for fewer in range(len(digits) - 1):
            assert np.float32(float(f"{number:.{fewer}e}")) != np.float32(number)


def sees(tmp_path, backend, file):
    """Run a file through a function that tells what it got; return the answer, or the error's text."""
    code = (
        "def told(data: 'bytes | object'): return [type(data).__name__, getattr(data, 'tolist', list)()]\n"
        "def of_bytes(data: bytes): return [type(data).__name__, len(data)]\n"
        "import headrace\nheadrace.register('Told', told)\nheadrace.register('OfBytes', of_bytes)\n"
    )
    (tmp_path / "told.py").write_text(code)
    (tmp_path / "line.toml").write_text(f'import = "told.py"\nbackend = "{backend}"\n')
    done = CliRunner().invoke(app, ["run", str(tmp_path / "line.toml"), str(file), "--json", "-q"])
    found = json.loads(done.stdout)
    return found["error"]["message"] if "error" in found else found["result"]


def test_a_file_of_numpy_is_an_array_unless_the_first_word_reads_bytes(tmp_path):
    array = np.array([[1.5, 2.0]], dtype=np.float32)
    np.save(tmp_path / "x.npy", array)
    np.savez(tmp_path / "x.npz", data=array, other=array)
    told = ["ndarray", [[1.5, 2.0]]]
    assert sees(tmp_path, "S[Told]", tmp_path / "x.npy") == told
    assert sees(tmp_path, "Told", tmp_path / "x.npz") == told
    size = (tmp_path / "x.npy").stat().st_size
    assert sees(tmp_path, "S[OfBytes]", tmp_path / "x.npy") == ["bytes", size]
    (tmp_path / "x.bin").write_bytes(b"\x01\x02")
    assert sees(tmp_path, "Told", tmp_path / "x.bin") == ["bytes", []]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"no array", b"PK\x03\x04"])
@pytest.mark.parametrize("name", ["x.npy", "x.npz"])
def test_what_is_no_array_fails_alone(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert "numpy reads no array in it" in sees(tmp_path, "Told", tmp_path / name)


def test_a_file_without_arrays_fails_alone(tmp_path):
    np.savez(tmp_path / "x.npz")
    assert sees(tmp_path, "Told", tmp_path / "x.npz") == "there is no array in it"


def test_no_pickle_is_opened(tmp_path):
    np.save(tmp_path / "x.npy", np.array([Decimal(1)], dtype=object))
    np.savez(tmp_path / "x.npz", x=np.array([Decimal(1)], dtype=object))
    for name in ("x.npy", "x.npz"):
        assert "without pickle" in sees(tmp_path, "Told", tmp_path / name)
