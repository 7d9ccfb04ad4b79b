"""A configuration that contradicts its model is refused when the model is built, as Triton refuses it."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from headrace.errors import ConfigError
from headrace_cli.app import app
from headrace_models import Models
from headrace_serve import Server
from headrace_triton.comparing import check_built
from headrace_triton.reading import read_model

CONFIG = """backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "A" data_type: TYPE_FP32 dims: [4] },
  { name: "B" data_type: TYPE_FP32 dims: [4] }
]
output [
  { name: "SUM" data_type: TYPE_FP32 dims: [4] },
  { name: "DIFF" data_type: TYPE_FP32 dims: [4] }
]
"""


def served(repository, runs=Server):
    """Return what a server that starts says is wrong, as pairs of its place and text."""
    try:
        with runs(str(repository.folder), **({"port": 0} if runs is Server else {})):
            return []
    except ConfigError as error:
        return [(f"{one.line}:{one.column}", one.message) for one in error.problems]


def test_what_the_model_says_too_is_served(repository):
    repository.write("add", CONFIG)
    repository.write(
        "less", CONFIG.replace(',\n  { name: "DIFF" data_type: TYPE_FP32 dims: [4] }', "")
    )
    repository.write("free", CONFIG, shape=(None,))
    whole = CONFIG.replace("max_batch_size: 8", "max_batch_size: 0").replace("[4]", "[2, 4]")
    repository.write("whole", whole, rows=2)
    shaped = CONFIG.replace("dims: [4] }", "dims: [2, 2] reshape { shape: [4] } }")
    repository.write("shaped", shaped)
    assert served(repository) == []


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (
            ('"A" data_type: TYPE_FP32', '"A" data_type: TYPE_INT64'),
            ("4:26", "input 'A' is TYPE_INT64 here, and TYPE_FP32 in the model"),
        ),
        (
            ('"DIFF" data_type: TYPE_FP32', '"DIFF" data_type: TYPE_FP16'),
            ("9:29", "output 'DIFF' is TYPE_FP16 here, and TYPE_FP32 in the model"),
        ),
        (
            ('"A" data_type: TYPE_FP32 dims: [4]', '"A" data_type: TYPE_FP32 dims: [5]'),
            (
                "4:43",
                "input 'A' has the shape [-1, 5] here, with max_batch_size: 8, and [-1, 4] in the model",
            ),
        ),
        (
            ('"A" data_type: TYPE_FP32 dims: [4]', '"A" data_type: TYPE_FP32 dims: [-1]'),
            (
                "4:43",
                "input 'A' has the shape [-1, -1] here, with max_batch_size: 8, and [-1, 4] in the model",
            ),
        ),
        (
            ('"SUM" data_type: TYPE_FP32 dims: [4]', '"SUM" data_type: TYPE_FP32 dims: [4, 1]'),
            (
                "8:45",
                "output 'SUM' has the shape [-1, 4, 1] here, with max_batch_size: 8, and [-1, 4] in the model",
            ),
        ),
        (
            (',\n  { name: "B" data_type: TYPE_FP32 dims: [4] }', ""),
            ("4:3", "the model needs 'B', which is not among these"),
        ),
    ],
)
def test_a_contradiction_has_its_line_and_column(repository, wrong, found):
    assert wrong[0] in CONFIG
    repository.write("add", CONFIG.replace(*wrong))
    assert served(repository) == [found]


def test_all_that_is_wrong_in_a_model_is_told_at_once(repository):
    repository.write("add", CONFIG.replace("TYPE_FP32", "TYPE_INT32").replace("[4]", "[7]"))
    assert len(served(repository)) == 8


def test_models_in_a_program_are_compared_too(repository):
    repository.write("add", CONFIG.replace("[4]", "[7]"))
    assert len(served(repository, Models)) == 4
    repository.write("add", CONFIG)
    assert served(repository, Models) == []


def test_the_command_compares_and_tells_all_models(repository, tmp_path):
    repository.write("add", CONFIG)
    repository.write("ints", CONFIG.replace("FP32", "INT32", 1))
    repository.write("long", CONFIG.replace("[4]", "[7]", 1))
    repository.write("no_onnx", CONFIG)
    (repository.folder / "no_onnx" / "1" / "model.onnx").write_bytes(b"no network")
    words = ["triton", str(repository.folder), "-o", str(tmp_path / "served")]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 2
    said = re.sub(r"\s+", " ", found.stderr)
    assert "ints/config.pbtxt:4:26: input 'A' is TYPE_INT32 here, and TYPE_FP32 in" in said
    assert "long/config.pbtxt:4:43: input 'A' has the shape [-1, 7] here" in said
    assert "no_onnx/config.pbtxt:1:1: version 1 cannot be built here, so it is not compared" in said
    assert not (tmp_path / "served").exists()


def test_a_model_of_fixed_rows_takes_no_batches(repository):
    repository.write("add", CONFIG, rows=1)
    found = served(repository)
    assert [place for place, _ in found] == ["4:43", "5:43", "8:45", "9:46"]
    assert (
        found[0][1] == "the first axis of input 'A' is 1 in the model, so that it takes no batches"
    )


def test_the_shape_inside_is_that_of_reshape(repository):
    text = CONFIG.replace(
        '"A" data_type: TYPE_FP32 dims: [4]',
        '"A" data_type: TYPE_FP32 dims: [4] reshape { shape: [2, 2] }',
    )
    repository.write("add", text)
    (found,) = served(repository)
    assert found == (
        "4:54",
        "input 'A' has the shape [-1, 2, 2] here, with max_batch_size: 8, and [-1, 4] in the model",
    )


ONE = """backend: "{}"
max_batch_size: 8
input [{{ name: "{}" data_type: TYPE_FP16 dims: [3, -1] }}]
output [{{ name: "{}" data_type: TYPE_FP32 dims: [5] }}]
"""


@pytest.mark.parametrize(
    ("backend", "names", "built", "count"),
    [
        (
            "tensorrt",
            "xy",
            {"inputs": {"x": {"dtype": "float16", "shape": [None, 3, None], "range": {}}}},
            0,
        ),
        ("tensorrt", "xy", {"inputs": {"x": {"dtype": "float32", "shape": [None, 3, 8]}}}, 2),
        ("tensorrt", "xy", {"outputs": {"y": {"dtype": "float32", "shape": [None, 6]}}}, 1),
        (
            "pytorch",
            ("INPUT__0", "OUTPUT__0"),
            {"inputs": {"rows": {"dtype": None, "shape": None}}},
            0,
        ),
        (
            "pytorch",
            ("INPUT__0", "OUTPUT__0"),
            {"inputs": {"rows": {"dtype": "int64", "shape": [None, 3, None]}}},
            1,
        ),
        ("pytorch", "xy", {"outputs": None}, 0),
        ("onnxruntime", "xy", {"outputs": {"y": {"dtype": "float32", "shape": []}}}, 0),
    ],
)
def test_each_backend_that_describes_itself_is_compared(repository, backend, names, built, count):
    repository.configure("m", ONE.format(backend, *names), "1")
    for file in ("model.plan", "model.pt", "model.onnx"):
        (repository.folder / "m" / "1" / file).touch()
    model = read_model(repository.folder / "m")
    if not count:
        check_built(model, built)
        return
    with pytest.raises(ConfigError) as caught:
        check_built(model, built)
    assert len(caught.value.problems) == count
