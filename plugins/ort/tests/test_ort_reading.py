"""A bare model file as a configuration: what it stands for, and its answers beside numpy's."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from typer.testing import CliRunner

import headrace

FLOAT = TensorProto.FLOAT
WEIGHT = np.array([2, 3], dtype=np.float32)


def adds(save, x, y, out, **more):
    """Write a model of two inputs."""
    ports = [("x", FLOAT, x), ("y", FLOAT, y)]
    return save([("Add", ["x", "y"], ["z"], {})], ports, [("z", FLOAT, out)], **more)


@pytest.mark.parametrize(
    ("x", "y", "out", "most"),
    [
        (["n", 2], ["n", 2], ["n", 2], 8),
        ([None, 2], ["m", 2], [None, 2], 8),
        (["n", 2], ["n", 2], None, 8),  # outputs need not tell
        (["n", 2], [1, 2], ["n", 2], None),
        ([4, 2], [4, 2], [4, 2], None),
        (["n", 2], ["n", 2], [1, 2], None),
        ([], [], [], None),
        (None, None, None, None),
    ],
)
def test_batches_are_for_models_whose_first_axes_are_free(save, x, y, out, most):
    path = adds(save, x, y, out)
    tables = headrace.plugins.tables_of(path)
    assert tables.pop("max", None) == most
    assert tables == {"backend": "OnnxTensor", "model": "model.onnx"}


def test_an_input_with_a_weight_of_its_name_does_not_count(save):
    ports = [("x", FLOAT, ["n", 2]), ("w", FLOAT, [2])]
    nodes = [("Mul", ["x", "w"], ["z"], {})]
    path = save(nodes, ports, [("z", FLOAT, ["n", 2])], [("w", WEIGHT)], name="cost $1.onnx")
    assert headrace.plugins.tables_of(path)["max"] == 8
    with headrace.pipe(path) as pipe:
        x = np.array([[1, 5]], dtype=np.float32)
        np.testing.assert_array_equal(pipe({"data": x})["result"], x * WEIGHT)


def test_an_ort_file_runs_a_request_at_a_time(save, tmp_path):
    path = adds(save, ["n", 2], ["n", 2], ["n", 2])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    with headrace.pipe(tmp_path / "m.ort") as pipe:
        x, y = np.ones((1, 2), np.float32), np.full((1, 2), 4, np.float32)
        np.testing.assert_array_equal(pipe({"x": x, "y": y, "data": x})["result"], x + y)
        assert pipe.describe()["nodes"]["main"]["range"] == [1, 1]


@pytest.mark.parametrize("content", [b"", b"\x08", b"\x3a\xff\x00", b"no model \xff"])
def test_what_is_no_model_is_refused_when_it_is_built_and_not_before(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert "max" not in headrace.plugins.tables_of(path)
    headrace.PipelineConfig.load(path)
    with pytest.raises(headrace.errors.SetupError, match=r"m\.onnx"):
        headrace.pipe(path)


def test_no_library_is_loaded_to_know_what_a_file_stands_for(save):
    path = adds(save, ["n", 2], ["n", 2], ["n", 2])
    code = (
        f"import sys, headrace; headrace.PipelineConfig.load({str(path)!r});"
        "print(sorted({'onnxruntime', 'onnx', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def says(*arguments, status=0):
    from headrace_cli.app import app

    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == status, done.output
    return done


def test_the_command_line_takes_the_file(save):
    path = adds(save, ["n", 2], ["n", 2], ["n", 2])
    shown = says("check", path).stdout
    assert shown.startswith(
        f'# {path} stands for\nbackend = "OnnxTensor"\nmodel = "model.onnx"\nmax = 8\n'
    )
    assert "ok: 1 node" in shown
    found = json.loads(says("check", path, "--json", "--set", "instance_num=2").stdout)
    assert found["stands_for"] == {"backend": "OnnxTensor", "model": "model.onnx", "max": 8}
    plan = json.loads(says("explain", path, "--set", "max=3", "--json").stdout)
    assert plan["nodes"]["main"]["range"] == [1, 3]


def test_a_bare_model_is_tried_from_the_command_line_with_files_of_numpy(save, tmp_path):
    path = adds(save, ["n", 2], ["n", 2], ["n", 2])
    x, y = np.array([[1, 2]], np.float32), np.array([[0.5, 4]], np.float32)
    np.savez(tmp_path / "in.npz", x=x, y=y)
    found = json.loads(says("run", path, tmp_path / "in.npz", "--json", "-q").stdout)
    assert found["result"] == (x + y).tolist()
    one = save(
        [("Neg", ["x"], ["y"], {})],
        [("x", FLOAT, ["n", 2])],
        [("y", FLOAT, ["n", 2])],
        name="one.onnx",
    )
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "named.npz", x=y)  # by the name of the input, whose key is `data`
    lines = says("run", one, tmp_path / "x.npy", tmp_path / "named.npz", "--json", "-q").stdout
    found = [json.loads(line)["result"] for line in lines.splitlines()]
    assert found == [(-x).tolist(), (-y).tolist()]


@pytest.mark.parametrize("dtype", [FLOAT, TensorProto.INT64, TensorProto.UINT8])
def test_bench_makes_rows_for_the_inputs_of_a_model(save, dtype):
    pytest.importorskip("headrace_observe", reason="bench comes with headrace-observe")
    ports = [("x", dtype, ["n", 2]), ("y", dtype, ["n", None])]
    path = save([("Concat", ["x", "y"], ["z"], {"axis": 1})], ports, [("z", dtype, ["n", None])])
    done = says("bench", path, "--seconds", "0.05", "--warm-up", 0, "--clients", 1, "--json")
    (point,) = json.loads(done.stdout)["configurations"][0]["points"]
    assert point["ok"] > 0
    assert point["failed"] == {}
    assert "random rows are sent" in done.stderr
    assert "(1, 1)" in done.stderr
