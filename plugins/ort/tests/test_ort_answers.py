"""Answers in company are those alone: compared with bare ONNX Runtime, and with sums counted by hand."""

import json
import os
import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto as T
from typer.testing import CliRunner

import headrace
from headrace.errors import BackendError, ConfigError, InputError, SetupError

F32 = np.float32


def bare(path, feeds):
    return onnxruntime.InferenceSession(str(path)).run(None, feeds)


def run(backend, *requests):
    batch = [dict(request) for request in requests]
    assert backend(batch) is None
    return [request["result"] for request in batch]


@pytest.fixture
def scaled(save):
    return save(
        [("Mul", ["x", "scale"], ["y"], {})],
        [("x", T.FLOAT, ["n", 5]), ("scale", T.FLOAT, [])],
        [("y", T.FLOAT, ["n", 5])],
        [("scale", F32(2))],
    )


def test_an_optional_input_is_read_where_a_request_brings_it(start, scaled):
    backend = start(scaled)
    ones = np.ones(5, F32)
    requests = [{"data": ones}, {"data": ones, "scale": F32(7)}, {"data": ones, "scale": 3.0}]
    found = run(backend, *requests, {"data": 2 * ones})
    for result, request in zip(found, [*requests, {"data": 2 * ones}], strict=True):
        feeds = {"x": request["data"][None]}
        if "scale" in request:
            feeds["scale"] = np.asarray(request["scale"], F32)
        np.testing.assert_array_equal(result, bare(scaled, feeds)[0][0])
    built = backend.describe()
    assert (list(built["inputs"]), list(built["optional_inputs"])) == (["x"], ["scale"])
    assert built["optional_inputs"]["scale"]["optional"]
    (renamed,) = run(
        start(scaled, inputs={"scale": "factor"}), {"data": ones, "scale": 9, "factor": 4}
    )
    np.testing.assert_array_equal(renamed, 4 * ones)


def test_an_optional_input_works_in_a_pipeline(scaled):
    with headrace.pipe({"backend": "OnnxTensor", "model": str(scaled)}) as pipe:
        ones = np.ones(5, F32)
        assert pipe({"data": ones})["result"].tolist() == [2] * 5
        assert pipe({"data": ones, "scale": F32(7)})["result"].tolist() == [7] * 5


divides = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 25),
    reason="before ONNX Runtime 1.25 an integer that is divided by 0 ends the process",
)


@divides
def test_a_model_that_refuses_invented_values_is_built_and_warns(start, save, caplog):
    path = save(
        [("Div", ["a", "b"], ["y"], {})],
        [("a", T.INT64, ["n", 2]), ("b", T.INT64, ["n", 2])],
        [("y", T.INT64, ["n", 2])],
    )
    (found,) = run(start(path), {"a": np.array([6, 4]), "b": np.array([3, 2])})
    assert found.tolist() == [2, 2]
    assert "warm_up_input" in caplog.text


def test_an_axis_of_fixed_length_0(start, save):
    path = save(
        [("CastLike", ["x", "like"], ["y"], {})],
        [("x", T.FLOAT, ["n", 3]), ("like", T.DOUBLE, [0])],
        [("y", T.DOUBLE, ["n", 3])],
    )
    ones = np.ones(3, F32)
    found = run(start(path), *[{"x": k * ones, "like": np.zeros(0)} for k in (1, 2)])
    assert [(one.dtype, one.tolist()) for one in found] == [
        (np.float64, [1, 1, 1]),
        (np.float64, [2, 2, 2]),
    ]


def test_all_may_be_without_batch_axis(start, save):
    path = save(
        [("MatMul", ["a", "b"], ["y"], {})],
        [("a", T.FLOAT, [2, 2]), ("b", T.FLOAT, [2, 2])],
        [("y", T.FLOAT, [2, 2])],
    )
    a, b = np.arange(4, dtype=F32).reshape(2, 2), np.eye(2, dtype=F32) * 3
    backend = start(path, unbatched="all")
    assert backend.max == 1
    (found,) = run(backend, {"a": a, "b": b})
    np.testing.assert_array_equal(found, bare(path, {"a": a, "b": b})[0])


def external(save, weights):
    return save(
        [("Add", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", len(weights)])],
        [("y", T.FLOAT, ["n", len(weights)])],
        [("w", F32(weights))],
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )


@pytest.mark.parametrize("how", ["overwritten", "cut"])
def test_weights_that_are_written_to_fail_requests_until_the_model_is_loaded_again(
    start, save, how
):
    path = external(save, [1] * 4096)
    request = {"data": np.zeros(4096, F32)}
    backend = start(path)
    (before,) = run(backend, request)
    assert set(before.tolist()) == {1}
    weights = path.parent / "weights.bin"
    about = weights.stat()
    with weights.open("r+b") as file:
        file.truncate(0 if how == "cut" else about.st_size)
        file.write(F32([2] * (0 if how == "cut" else 4096)).tobytes())
    os.utime(weights, ns=(about.st_atime_ns, about.st_mtime_ns + 1_000_000))
    (error,) = backend([dict(request)])
    assert isinstance(error, BackendError)
    assert "rename" in error.hint
    if how == "overwritten":
        (after,) = run(start(path), request)
        assert set(after.tolist()) == {2}


def test_weights_that_are_replaced_by_a_rename_leave_a_loaded_model_as_it_is(start, save):
    path = external(save, [1] * 4096)
    request = {"data": np.zeros(4096, F32)}
    backend = start(path)
    new = path.parent / "new.bin"
    new.write_bytes(F32([2] * 4096).tobytes())
    new.replace(path.parent / "weights.bin")
    assert set(run(backend, request)[0].tolist()) == {1}
    assert set(run(start(path), request)[0].tolist()) == {2}


@pytest.mark.parametrize(("most", "warns"), [(8, True), (1, False)])
def test_operators_that_scale_the_whole_batch_are_a_warning(start, save, caplog, most, warns):
    path = save(
        [
            ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
            ("DequantizeLinear", ["q", "s", "z"], ["y"], {}),
        ],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
    )
    start(path, {"batch": {"max": most}})
    assert ("DynamicQuantizeLinear" in caplog.text and "max = 1" in caplog.text) is warns


def checked(path, most, *flags):
    command = ["check", "--build", f"OnnxTensor(model='{path}')", "--set", f"max={most}", *flags]
    from headrace_cli.app import app

    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    return done.stdout, done.stderr


@pytest.mark.parametrize(("most", "warns"), [(8, True), (1, False)])
def test_the_plan_warns_of_such_operators_without_building_anything(save, most, warns):
    path = save(
        [
            ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {}),
            ("DequantizeLinear", ["q", "s", "z"], ["y"], {}),
        ],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
    )
    config = {"backend": "OnnxTensor", "model": str(path), "max": most}
    element = headrace.plugins.resolve(config)
    told = [*element.cls.lint(element.options, most)]
    assert len(told) == warns
    assert all("DynamicQuantizeLinear" in one and "max = 1" in one for one in told)


@pytest.mark.parametrize("dynamic", [True, False])
def test_check_runs_a_row_alone_and_in_company_and_says_if_that_changes_its_results(save, dynamic):
    """Right is what ONNX Runtime itself gives for a row alone and beside one of greater numbers."""
    pytest.importorskip("headrace_cli")
    quantize = ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], {})
    fixed = ("QuantizeLinear", ["x", "s", "z"], ["q"], {})
    path = save(
        [quantize if dynamic else fixed, ("DequantizeLinear", ["q", "s", "z"], ["y"], {})],
        [("x", T.FLOAT, ["n", 4])],
        [("y", T.FLOAT, ["n", 4])],
        [] if dynamic else [("s", F32(8 / 255)), ("z", np.uint8(0))],
    )
    rows = F32([[0.1, 0.2, 0.3, 0.4], [5, 6, 7, 8]])
    alone, company = (bare(path, {"x": few})[0][0] for few in (rows[:1], rows))
    assert np.allclose(alone, company, rtol=0, atol=1e-3) is not dynamic
    for most, said in ((4, dynamic), (1, False)):
        _, told = checked(path, most)
        assert ("node 'main': output 'y' of a row depends on its batch" in told) is said
        assert ("max = 1 runs each" in told) is said
    warnings = json.loads(checked(path, 4, "--json")[0])["warnings"]
    told = [one["message"] for one in warnings if one["code"] == "backend_warning"]
    assert any("output 'y'" in one for one in told) is dynamic


def test_the_arena_and_the_spinning_of_idle_threads_are_options(start, one_to_one):
    path = one_to_one(["n", 2])
    spins = "session.intra_op.allow_spinning"
    for options, arena, spin in (({}, True, "0"), ({"arena": False, "spin": True}, False, "1")):
        found = start(path, **options)._session.get_session_options()
        assert found.enable_cpu_mem_arena is arena
        assert found.enable_mem_pattern is arena
        assert found.get_session_config_entry(spins) == spin
    assert start(path, spin=True).describe()["spinning"]


GROWN = """
import sys, numpy as np, headrace
from pathlib import Path
def kept():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
model, arena = sys.argv[1:]
with headrace.pipe({"backend": "OnnxTensor", "model": model, "arena": arena == "True"}) as pipe:
    pipe({"data": np.zeros((3, 700, 700), np.float32)})
    before = kept()
    for number in range(150):
        pipe({"data": np.zeros((3, 100 + 4 * number, 690 - 3 * number), np.float32)})
    print(kept() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="reads the memory of the process as Linux tells it"
)
def test_without_the_arena_the_memory_of_ever_new_shapes_is_given_back(save):
    """At most what the arena, made for that, keeps of the same shapes beside the largest one."""
    weights = [(f"w{n}", np.ones((16, n, 3, 3), F32)) for n in (3, 16)]
    path = save(
        [
            ("Conv", ["x", "w3"], ["a"], {"pads": [1] * 4}),
            ("Relu", ["a"], ["b"], {}),
            ("Conv", ["b", "w16"], ["c"], {"pads": [1] * 4}),
            ("GlobalAveragePool", ["c"], ["y"], {}),
        ],
        [("x", T.FLOAT, ["n", 3, "h", "w"])],
        [("y", T.FLOAT, ["n", 16, 1, 1])],
        weights,
    )
    command = [sys.executable, "-c", GROWN, str(path)]
    grown = [
        int(
            subprocess.run(
                [*command, arena], capture_output=True, text=True, timeout=300, check=True
            ).stdout
        )
        for arena in ("True", "False")
    ]
    assert grown[1] < max(200, 1.5 * grown[0]), grown


def test_libraries_with_operators_are_loaded_and_bring_in_code(start, one_to_one, tmp_path):
    path, library = one_to_one(["n", 2]), tmp_path / "ops.so"
    library.write_bytes(b"no library")
    with pytest.raises(SetupError, match=r"ops\.so"):
        start(path, custom_ops=[library])
    config = {"backend": "OnnxTensor", "model": str(path), "custom_ops": [str(library)]}
    with pytest.raises(ConfigError, match="imports are refused"):
        headrace.PipelineConfig.load(config, allow_import=False)
    with pytest.raises(SetupError, match="imports are refused"):
        start(path, {"allow_import": False}, custom_ops=[library])


U8 = np.uint8


@pytest.mark.parametrize(
    ("axes", "channels"), [(["n", 3, 8, 6], 3), (["n", 1, "h", "w"], 1), (["n", "c", 8, 6], 4)]
)
def test_a_picture_where_a_tensor_belongs_is_told_the_word_that_makes_one(
    one_to_one, axes, channels
):
    """And with that word in front it is taken."""
    pytest.importorskip("headrace_cv")
    config = {"model": str(one_to_one(axes)), "backend": "OnnxTensor"}
    picture = np.arange(8 * 6 * channels, dtype=U8).reshape(8, 6, channels)
    with headrace.pipe(config) as pipe, pytest.raises(InputError) as caught:
        pipe({"data": picture})
    assert "Mat2Tensor of headrace-cv: write it before" in caught.value.hint
    with headrace.pipe({**config, "backend": "S[Mat2Tensor,OnnxTensor]"}) as pipe:
        found = pipe({"data": picture})["result"]
    assert np.array_equal(found, picture.transpose(2, 0, 1).astype(F32))


def test_a_sample_shorter_than_the_kernel_fails_alone_among_longer_ones(save):
    path = save(
        [("Conv", ["x", "w"], ["y"], {"strides": [5]})],
        [("x", T.FLOAT, ["n", 1, "t"])],
        [("y", T.FLOAT, ["n", 1, "frames"])],
        [("w", np.ones((1, 1, 10), F32))],
    )
    config = {"backend": "OnnxTensor", "model": str(path), "max": 4, "ragged": "pad"}
    with headrace.pipe(config) as pipe:
        lone, long = pipe.submit([{"data": np.ones((1, n), F32)} for n in (6, 20)])
        assert long.result()["result"].shape == (1, 3)
        with pytest.raises(headrace.errors.HeadraceError):
            lone.result()


def test_names_of_two_batch_axes_are_read_from_the_file(start, save):
    path = save(
        [("Transpose", ["b"], ["across"], {}), ("MatMul", ["a", "across"], ["y"], {})],
        [("a", T.FLOAT, ["image", 4]), ("b", T.FLOAT, ["text", 4])],
        [("y", T.FLOAT, ["image", "text"])],
    )
    with pytest.raises(SetupError, match=r"output y .*'image', 'text'.* two batch axes"):
        start(path, batch_axis={"y": 0})
    start(path, {"batch": {"max": 1}})
