"""The warm-up says whether a row has one answer: the right verdict is that of bare ONNX Runtime, row by row.

Which differences count is tested with functions of numpy in libs/tensors. These graphs show what ONNX Runtime computes.
"""

import re

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto as T
from typer.testing import CliRunner

F32, I64 = np.float32, np.int64
X = [("x", T.FLOAT, ["n", 4])]
Y = [("y", T.FLOAT, ["n", 4])]
AXIS, ONE = ("axis", I64([0])), ("one", I64([1]))
draw = np.random.default_rng(7)


def lstm(first):
    """Whose second axis is the batch axis in ONNX: ``first`` exports it as if the time were."""
    weights = [(name, draw.normal(size=(1, 20, k)).astype(F32)) for name, k in (("W", 4), ("R", 5))]
    nodes = [
        ("Unsqueeze", ["x", "one" if first else "axis"], ["t"], {}),
        ("LSTM", ["t", "W", "R"], ["h", "", ""], {"hidden_size": 5}),
        ("Squeeze", ["h", "one" if first else "both"], ["s"], {}),
        ("Reshape", ["s", "shape"], ["y"], {}),
    ]
    more = [("both", I64([0, 1])), ("shape", I64([-1, 5]))]
    return nodes, X, [("y", T.FLOAT, ["n", 5])], [*weights, AXIS, ONE, *more]


PLACE = [
    ("Shape", ["x"], ["s"], {"start": 0, "end": 1}),
    ("Squeeze", ["s"], ["count"], {}),
    ("Range", ["from", "count", "step"], ["r"], {}),
    ("Unsqueeze", ["r", "one"], ["place"], {}),
]
SCALARS = [("from", np.array(0, I64)), ("step", np.array(1, I64)), ONE]
ONLY_5 = (
    [*PLACE, ("Equal", ["place", "which"], ["e"], {}), ("Cast", ["e"], ["c"], {"to": T.FLOAT}),
     ("Add", ["x", "c"], ["y"], {})],
    X, Y, [*SCALARS, ("which", I64([5]))],
)  # fmt: skip
TEXTS = [("y", T.STRING, ["n", 1])]
WRONG = {
    "place, only 5": ONLY_5,
    "LSTM along the batch": lstm(True),
    "rank in the batch": (
        [PLACE[0], ("TopK", ["x", "s"], ["v", "y"], {"axis": 0})],
        X,
        [("y", T.INT64, ["n", 4])],
        [],
    ),
    "first row of the second input": (
        [("Gather", ["m", "axis"], ["a"], {"axis": 0}), ("Cast", ["a"], ["f"], {"to": T.FLOAT}),
         ("Mul", ["x", "f"], ["y"], {})],
        [*X, ("m", T.INT64, ["n", 4])], Y, [AXIS],
    ),
    "texts": ([*PLACE, ("Cast", ["place"], ["y"], {"to": T.STRING})], X, TEXTS, SCALARS),
}  # fmt: skip

DEEP = [
    ("MatMul", ["x", "w"], ["a"], {}),
    ("Tanh", ["a"], ["b"], {}),
    ("MatMul", ["b", "v"], ["c"], {}),
]
MATRIX = [(k, draw.normal(size=s).astype(F32)) for k, s in (("w", (4, 40)), ("v", (40, 4)))]
RIGHT = {
    "LSTM along the row": lstm(False),
    "noise enlarged ten thousand times": (
        [*DEEP, ("Mul", ["c", "many"], ["d"], {}), ("Sin", ["d"], ["y"], {})],
        X, Y, [*MATRIX, ("many", F32([1e4]))],
    ),
    "argmax of ties": (
        [("MatMul", ["x", "t"], ["a"], {}), ("ArgMax", ["a"], ["y"], {"axis": 1})],
        X, [("y", T.INT64, ["n", 1])],
        [("t", np.repeat(draw.normal(size=(4, 1)), 9, axis=1).astype(F32))],
    ),
    "labels drawn at random": (
        [("Multinomial", ["x"], ["y"], {"sample_size": 1, "dtype": T.INT32})],
        X, [("y", T.INT32, ["n", 1])], [],
    ),
    "8 bits": (
        [("QuantizeLinear", ["x", "s", "z"], ["q"], {}), ("MatMulInteger", ["q", "w8"], ["a"], {}),
         ("Cast", ["a"], ["f"], {"to": T.FLOAT}), ("QuantizeLinear", ["f", "big", "z"], ["y"], {})],
        X, [("y", T.UINT8, ["n", 4])],
        [("s", F32(8 / 255)), ("z", np.uint8(0)), ("big", F32(100)),
         ("w8", draw.integers(0, 9, (4, 4)).astype(np.uint8))],
    ),
    "halves": (
        [("Cast", ["x"], ["h"], {"to": T.FLOAT16}), ("MatMul", ["h", "wh"], ["y"], {})],
        X, [("y", T.FLOAT16, ["n", 4])], [("wh", draw.normal(size=(4, 4)).astype(np.float16))],
    ),
    "texts": ([("Cast", ["x"], ["y"], {"to": T.STRING})], X, [("y", T.STRING, ["n", 4])], []),
    "tokens of a small table": (
        [("Gather", ["table", "ids"], ["y"], {})],
        [("ids", T.INT64, ["n", 3])], [("y", T.FLOAT, ["n", 3])], [("table", F32([0.5, 0.25]))],
    ),
}  # fmt: skip


def differs(path, inputs):
    """Whether ONNX Runtime gives rows that differ from those alone in a batch of eight."""
    session = onnxruntime.InferenceSession(str(path))
    rows = {
        name: (9 * draw.random((8, 4))).astype(F32 if t == T.FLOAT else I64)
        for name, t, _ in inputs
    }
    whole = session.run(None, rows)
    for place in range(8):
        alone = session.run(None, {name: one[place : place + 1] for name, one in rows.items()})
        for one, other in zip(whole, alone, strict=True):
            if one.dtype.kind == "f":
                if not np.allclose(one[place], other[0], rtol=1e-5, atol=1e-5):
                    return True
            elif not np.array_equal(one[place], other[0]):
                return True
    return False


@pytest.mark.parametrize("name", WRONG)
def test_a_row_whose_answer_others_change_is_a_warning(start, save, caplog, name):
    path = save(*WRONG[name])
    assert differs(path, WRONG[name][1])
    start(path, {"batch": {"max": 8}})
    assert "of a row depends on its batch" in caplog.text
    caplog.clear()
    start(path, {"batch": {"max": 1}})
    assert not caplog.text


@pytest.mark.parametrize("name", RIGHT)
def test_a_row_that_has_one_answer_is_no_warning(start, save, caplog, name):
    start(save(*RIGHT[name]), {"batch": {"max": 8}})
    assert not caplog.text


@pytest.mark.parametrize("how", [{"sizes": (2, 4)}, {"max": 2}, "fixed", "real"], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_it_is_seen_in_any_range_of_batches_and_on_real_rows(
    start, save, caplog, tmp_path, first, how
):
    nodes, (x,), (y,), weights = lstm(first)
    if how == "fixed":
        x, y = ((name, kind, [4, *axes[1:]]) for name, kind, axes in (x, y))
    path = save(nodes, [x], [y], weights)
    np.save(tmp_path / "real.npy", F32([0.3, 0.1, 0.7, 0.2]))
    real = {"warm_up_input": tmp_path / "real.npy"} if how == "real" else {}
    batch = {"max": 8} if how == "real" else {} if how == "fixed" else how
    start(path, {"batch": batch}, **real)
    assert ("export it for 1" in caplog.text) is (first and how == "fixed")
    assert ("depends on its batch" in caplog.text) is first


def test_check_tells_the_size_and_the_place(save):
    app = pytest.importorskip("headrace_cli.app").app
    command = ["check", "--build", f"OnnxTensor(model='{save(*ONLY_5)}')", "--set", "max=8"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert re.search("at place [56] of a batch of 8", done.stderr)


def test_a_sequence_model_is_told_of_the_option_for_its_other_axis(start, save, caplog):
    nodes = [("CumSum", ["x", "zero"], ["y"], {})]
    ports = [(name, T.FLOAT, [None, None, 3]) for name in "xy"]
    start(save(nodes, ports[:1], ports[1:], [("zero", I64([0]))]), {"batch": {"max": 8}})
    assert "batch_axis = {x = 1, y = 1}" in caplog.text
