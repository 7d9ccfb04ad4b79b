"""The warm-up says whether a row has one answer: the right verdict is that of bare ONNX Runtime, row by row."""

import re

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto as T
from typer.testing import CliRunner

F32, I64 = np.float32, np.int64
X = [("x", T.FLOAT, ["n", 4])]
Y = [("y", T.FLOAT, ["n", 4])]
AXIS, ONE, ZERO = ("axis", I64([0])), ("one", I64([1])), ("zero", I64([0]))
draw = np.random.default_rng(7)


def lstm(first):
    """Whose second axis is the batch axis in ONNX: ``first`` exports it as if the time were."""
    weights = [(name, draw.normal(size=(1, 20, k)).astype(F32)) for name, k in (("W", 4), ("R", 5))]
    nodes = [("LSTM", ["t", "W", "R"], ["h", "", ""], {"hidden_size": 5})]
    if first:
        nodes = [("Unsqueeze", ["x", "one"], ["t"], {}), *nodes]
    else:
        nodes = [("Unsqueeze", ["x", "axis"], ["t"], {}), *nodes]
    squeezed = ["h", "one"] if first else ["h", "both"]
    nodes.append(("Squeeze", squeezed, ["s"], {}))
    nodes.append(("Reshape", ["s", "shape"], ["y"], {}))
    more = [("both", I64([0, 1])), ("shape", I64([-1, 5]))]
    return nodes, X, [("y", T.FLOAT, ["n", 5])], [*weights, AXIS, ONE, *more]


def numbered(dtype, *after):
    """The place in the batch."""
    scalars = [("from", np.array(0, I64)), ("step", np.array(1, I64))]
    return [
        ("Shape", ["x"], ["s"], {"start": 0, "end": 1}),
        ("Squeeze", ["s"], ["count"], {}),
        ("Range", ["from", "count", "step"], ["r"], {}),
        ("Cast", ["r"], ["f"], {"to": dtype}),
        ("Unsqueeze", ["f", "one"], ["place"], {}),
        *after,
    ], scalars


def batch_id(inside):
    nodes, scalars = numbered(T.FLOAT, ("Mul", ["x", "size"], ["boxes"], {}), inside)
    return nodes, X, [("y", T.FLOAT, ["n", 5])], [*scalars, ONE, ("size", F32([640]))]


def only_at(place):
    """Wrong at one place alone."""
    nodes, scalars = numbered(
        T.FLOAT,
        ("Equal", ["place", "which"], ["e"], {}),
        ("Cast", ["e"], ["c"], {"to": T.FLOAT}),
        ("Add", ["x", "c"], ["y"], {}),
    )
    return nodes, X, Y, [*scalars, ONE, ("which", F32([place]))]


def from_size(size):
    """Wrong in batches of at least this size alone."""
    nodes = [
        ("Shape", ["x"], ["s"], {"start": 0, "end": 1}),
        ("GreaterOrEqual", ["s", "least"], ["g"], {}),
        ("Cast", ["g"], ["c"], {"to": T.FLOAT}),
        ("ReduceMean", ["x"], ["m"], {"axes": [0]}),
        ("Mul", ["m", "c"], ["d"], {}),
        ("Add", ["x", "d"], ["y"], {}),
    ]
    return nodes, X, Y, [("least", I64([size]))]


def mean(weight):
    nodes = [
        ("ReduceMean", ["x"], ["m"], {"axes": [0]}),
        ("Mul", ["m", "w"], ["d"], {}),
        ("Add", ["x", "d"], ["y"], {}),
    ]
    return nodes, X, Y, [("w", F32([weight]))]


def rolled(by):
    nodes = [
        ("Slice", ["x", "by", "end", "axis"], ["a"], {}),
        ("Slice", ["x", "axis", "by", "axis"], ["b"], {}),
        ("Concat", ["a", "b"], ["y"], {"axis": 0}),
    ]
    return nodes, X, Y, [AXIS, ("by", I64([by])), ("end", I64([1 << 40]))]


def second_input(kind):
    """The first input is right, the second one's first row is taken for all."""
    nodes = [
        ("Gather", ["m", "axis"], ["a"], {"axis": 0}),
        ("Cast", ["a"], ["f"], {"to": T.FLOAT}),
        ("Mul", ["x", "f"], ["y"], {}),
    ]
    return nodes, [*X, ("m", kind, ["n", 4])], Y, [AXIS]


ROW_0 = [("Gather", ["x", "axis"], ["a"], {"axis": 0}), ("Shape", ["x"], ["s"], {})]
WRONG = {
    "row 0 for all": ([*ROW_0, ("Expand", ["a", "s"], ["y"], {})], X, Y, [AXIS]),
    "sum so far": ([("CumSum", ["x", "from"], ["y"], {})], X, Y, [("from", np.array(0, I64))]),
    "sum behind": (
        [("CumSum", ["x", "from"], ["y"], {"reverse": 1})],
        X,
        Y,
        [("from", np.array(0, I64))],
    ),
    "LSTM along the batch": lstm(True),
    "batch id in front": batch_id(("Concat", ["place", "boxes"], ["y"], {"axis": 1})),
    "place, only 1": only_at(1),
    "place, only 2": only_at(2),
    "place, only 5": only_at(5),
    "place, only the last": only_at(7),
    "mean": mean(1),
    "a little of the mean": mean(1e-4),
    "from 3 rows": from_size(3),
    "from 8 rows": from_size(8),
    "rolled": rolled(1),
    "rolled back": rolled(-1),
    "reversed": (
        [("Slice", ["x", "begin", "end", "axis", "begin"], ["y"], {})],
        X,
        Y,
        [AXIS, ("begin", I64([-1])), ("end", I64([-(1 << 40)]))],
    ),
    "softmax over the batch": ([("Softmax", ["x"], ["y"], {"axis": 0})], X, Y, []),
    "rank in the batch": (
        [
            ("Shape", ["x"], ["s"], {"start": 0, "end": 1}),
            ("TopK", ["x", "s"], ["v", "y"], {"axis": 0}),
        ],
        X,
        [("y", T.INT64, ["n", 4])],
        [],
    ),
    "second input, floats": second_input(T.FLOAT),
    "second input, integers": second_input(T.INT64),
    "one of two outputs": (
        [*ROW_0, ("Expand", ["a", "s"], ["z"], {}), ("Neg", ["x"], ["y"], {})],
        X,
        [*Y, ("z", T.FLOAT, ["n", 4])],
        [AXIS],
    ),
    "texts": (
        [*numbered(T.STRING)[0][:-1], ("Unsqueeze", ["f", "one"], ["y"], {})],
        X,
        [("y", T.STRING, ["n", 1])],
        [*numbered(T.STRING)[1], ONE],
    ),
    "NaN by place": (
        [*only_at(1)[0][:-1], ("Div", ["c", "c"], ["d"], {}), ("Add", ["x", "d"], ["y"], {})],
        *only_at(1)[1:],
    ),
}

MATRIX = [
    ("w", draw.normal(size=(4, 40)).astype(F32)),
    ("v", draw.normal(size=(40, 4)).astype(F32)),
]
DEEP = [
    ("MatMul", ["x", "w"], ["a"], {}),
    ("Tanh", ["a"], ["b"], {}),
    ("MatMul", ["b", "v"], ["c"], {}),
]
TIES = [("t", np.repeat(draw.normal(size=(4, 1)), 9, axis=1).astype(F32))]
RIGHT = {
    "softmax": ([("Softmax", ["x"], ["y"], {"axis": 1})], X, Y, []),
    "matrices": ([*DEEP, ("Identity", ["c"], ["y"], {})], X, Y, MATRIX),
    "LSTM along the row": lstm(False),
    "noise enlarged ten thousand times": (
        [*DEEP, ("Mul", ["c", "many"], ["d"], {}), ("Sin", ["d"], ["y"], {})],
        X,
        Y,
        [*MATRIX, ("many", F32([1e4]))],
    ),
    "argmax": (
        [*DEEP, ("ArgMax", ["c"], ["y"], {"axis": 1})],
        X,
        [("y", T.INT64, ["n", 1])],
        MATRIX,
    ),
    "argmax of ties": (
        [("MatMul", ["x", "t"], ["a"], {}), ("ArgMax", ["a"], ["y"], {"axis": 1})],
        X,
        [("y", T.INT64, ["n", 1])],
        TIES,
    ),
    "top 3": (
        [("MatMul", ["x", "t"], ["a"], {}), ("TopK", ["a", "k"], ["v", "y"], {"axis": 1})],
        X,
        [("v", T.FLOAT, ["n", 3]), ("y", T.INT64, ["n", 3])],
        [*TIES, ("k", I64([3]))],
    ),
    "NaN": ([("Log", ["m"], ["y"], {}), ("Neg", ["x"], ["m"], {})][::-1], X, Y, []),
    "infinite": ([("Div", ["x", "zeros"], ["y"], {})], X, Y, [("zeros", F32([0]))]),
    "drawn at random": (
        [("RandomUniformLike", ["x"], ["r"], {}), ("Add", ["x", "r"], ["y"], {})],
        X,
        Y,
        [],
    ),
    "labels drawn at random": (
        [("Multinomial", ["x"], ["y"], {"sample_size": 1, "dtype": T.INT32})],
        X,
        [("y", T.INT32, ["n", 1])],
        [],
    ),
    "8 bits": (
        [
            ("QuantizeLinear", ["x", "s", "z"], ["q"], {}),
            ("MatMulInteger", ["q", "w8"], ["a"], {}),
            ("Cast", ["a"], ["f"], {"to": T.FLOAT}),
            ("QuantizeLinear", ["f", "big", "z"], ["y"], {}),
        ],
        X,
        [("y", T.UINT8, ["n", 4])],
        [
            ("s", F32(8 / 255)),
            ("z", np.uint8(0)),
            ("big", F32(100)),
            ("w8", draw.integers(0, 9, (4, 4)).astype(np.uint8)),
        ],
    ),
    "halves": (
        [
            ("Cast", ["x"], ["h"], {"to": T.FLOAT16}),
            ("MatMul", ["h", "wh"], ["y"], {}),
        ],
        X,
        [("y", T.FLOAT16, ["n", 4])],
        [("wh", draw.normal(size=(4, 4)).astype(np.float16))],
    ),
    "texts": (
        [("Cast", ["x"], ["y"], {"to": T.STRING})],
        X,
        [("y", T.STRING, ["n", 4])],
        [],
    ),
    "an empty answer": (
        [("Slice", ["x", "axis", "axis", "one"], ["y"], {})],
        X,
        [("y", T.FLOAT, ["n", 0])],
        [AXIS, ONE],
    ),
    "tokens of a small table": (
        [("Gather", ["table", "ids"], ["y"], {})],
        [("ids", T.INT64, ["n", 3])],
        [("y", T.FLOAT, ["n", 3])],
        [("table", F32([0.5, 0.25]))],
    ),
    "free axes": (
        [("Relu", ["x"], ["y"], {})],
        *[[(k, T.FLOAT, ["n", "h", "w"])] for k in "xy"],
        [],
    ),
}


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
            if one.dtype.kind in "fc":
                if not np.allclose(one[place], other[0], rtol=1e-5, atol=1e-5, equal_nan=True):
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


SEEN_ANYWHERE = ["row 0 for all", "sum so far", "LSTM along the batch", "batch id in front", "mean"]
ALL_RIGHT = ["matrices", "LSTM along the row", "argmax of ties"]


def fixed(ports, rows):
    return [(name, kind, [rows, *axes[1:]]) for name, kind, axes in ports]


@pytest.mark.parametrize("how", ["fixed", "sizes", "two", "real"])
@pytest.mark.parametrize("name", [*SEEN_ANYWHERE, *ALL_RIGHT])
def test_it_is_seen_in_any_range_of_batches_and_on_real_rows(
    start, save, caplog, tmp_path, name, how
):
    nodes, takes, gives, weights = (WRONG if name in WRONG else RIGHT)[name]
    if how == "fixed":
        start(save(nodes, fixed(takes, 4), fixed(gives, 4), weights))
        assert ("export it for 1" in caplog.text) is (name in WRONG)
    elif how == "real":
        np.save(tmp_path / "real.npy", F32([0.3, 0.1, 0.7, 0.2]))
        path = save(nodes, takes, gives, weights)
        start(path, {"batch": {"max": 8}}, warm_up_input=tmp_path / "real.npy")
    else:
        sizes = {"sizes": (2, 4)} if how == "sizes" else {"max": 2}
        start(save(nodes, takes, gives, weights), {"batch": sizes})
    assert ("depends on its batch" in caplog.text) is (name in WRONG)


def test_check_tells_the_size_and_the_place(save):
    app = pytest.importorskip("headrace_cli.app").app
    path = save(*WRONG["place, only 5"])
    command = ["check", "--build", f"OnnxTensor(model='{path}')", "--set", "max=8"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert re.search("at place [56] of a batch of 8", done.stderr)


def test_a_sequence_model_is_told_of_the_option_for_its_other_axis(start, save, caplog):
    nodes = [("CumSum", ["x", "zero"], ["y"], {})]
    ports = [(name, T.FLOAT, [None, None, 3]) for name in "xy"]
    start(save(nodes, ports[:1], ports[1:], [("zero", I64([0]))]), {"batch": {"max": 8}})
    assert "batch_axis = {x = 1, y = 1}" in caplog.text
