import ast
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import onnxruntime.datasets
import pydantic
import pytest
from onnx import ModelProto, helper
from onnx import TensorProto as T

import headrace
from headrace.errors import ConfigError, MissingDependencyError, SetupError
from headrace_ort import (
    OnnxTensor,
    builds,
    check_providers,
    choose_providers,
    make_session,
    read_signature,
)

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
OCR_MODEL = (
    Path(importlib.util.find_spec("rapidocr").origin).parent
    / "models"
    / "ch_ppocr_mobile_v2.0_cls_mobile.onnx"
)


@pytest.fixture
def has_cuda(monkeypatch):
    """Let ONNX Runtime say that it has the CUDA and TensorRT providers."""
    names = ["TensorrtExecutionProvider", CUDA, CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: names)


def test_the_model_must_exist_when_options_are_validated(tmp_path):
    with pytest.raises(pydantic.ValidationError, match="no such file"):
        OnnxTensor.Options(model=tmp_path / "missing.onnx")


@pytest.mark.parametrize("content", ["random", "empty", "half", "pointer", "no graph"])
def test_a_broken_file_is_a_setup_error_that_names_it(start, tmp_path, capfd, content):
    data = {
        "random": np.random.default_rng(3).bytes(1000),
        "empty": b"",
        "half": OCR_MODEL.read_bytes()[:200_000],
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
        "no graph": ModelProto(ir_version=8).SerializeToString(),
    }[content]
    path = tmp_path / "broken.onnx"
    path.write_bytes(data)
    with pytest.raises(SetupError) as caught:
        start(path, {"node_name": "classify", "instance_index": 2, "instance_num": 3})
    error = caught.value
    assert str(path) in error.what
    assert (error.node, error.backend, error.instance) == ("classify", "OnnxTensor", 2)
    assert error.hint == (
        f"It is no ONNX model, or only a part of one: it begins with {data[:40]!r}."
    )
    assert error.__cause__ is not None
    assert capfd.readouterr() == ("", "")


def test_missing_external_data_is_a_setup_error(start, save):
    path = save(
        [("Add", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
        [("w", np.float32([1, 2]))],
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    request = {"data": np.float32([1, 1])}
    assert start(path)([request]) is None
    assert request["result"].tolist() == [2, 3]
    (path.parent / "weights.bin").write_bytes(b"half")
    with pytest.raises(SetupError) as caught:
        start(path)
    assert "is shorter than the model says" in caught.value.hint
    (path.parent / "weights.bin").unlink()
    with pytest.raises(SetupError, match=r"weights\.bin"):
        start(path)


@pytest.mark.parametrize("of_the_file", [True, False], ids=["IR version", "opset"])
def test_a_model_that_is_too_new_is_told_as_such(start, one_to_one, of_the_file):
    path = one_to_one(["n", 2])
    model = ModelProto.FromString(path.read_bytes())
    if of_the_file:
        model.ir_version = 1000
    else:
        model.opset_import[0].version = 1000
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SetupError, match="1000") as caught:
        start(path)
    assert "newer than ONNX Runtime" in caught.value.hint


@pytest.mark.parametrize(
    ("names", "device", "expected"),
    [
        (None, None, [(CPU, {})]),
        (None, "cpu", [(CPU, {})]),
        (["cpu"], "cuda:0", [(CPU, {})]),
        (["CPUexecutionprovider"], None, [(CPU, {})]),
        (None, "cuda", [(CUDA, {})]),
        (None, "cuda:3", [(CUDA, {"device_id": "3"})]),
        (
            ["tensorrt", "cuda", "cpu"],
            "cuda:1",
            [
                ("TensorrtExecutionProvider", {"device_id": "1"}),
                (CUDA, {"device_id": "1"}),
                (CPU, {}),
            ],
        ),
    ],
)
@pytest.mark.usefixtures("has_cuda")
def test_providers_and_device(names, device, expected):
    assert choose_providers(names, device) == expected


@pytest.mark.usefixtures("has_cuda")
def test_provider_options_win_over_the_device():
    options = {"cuda": {"device_id": 2, "cudnn_conv_use_max_workspace": False}}
    chosen = choose_providers(["cuda"], "cuda:1", options)
    assert chosen == [(CUDA, {"device_id": "2", "cudnn_conv_use_max_workspace": "0"})]


@pytest.mark.parametrize(
    ("names", "device", "options"),
    [
        (["cudaa"], None, None),
        (["cpu", "CPUExecutionProvider"], None, None),
        (None, "mps", None),
        (["cpu"], None, {"cuda": {}}),
        (["cpu"], None, {"cpu": {"use_arena": False}}),
    ],
)
def test_wrong_providers_are_setup_errors(names, device, options):
    with pytest.raises(SetupError):
        choose_providers(names, device, options)


@pytest.mark.parametrize("device", ["gpu", "GPU:0", "cuda:x", "nvidia"])
def test_a_device_that_is_none_is_named_with_those_that_are(start, one_to_one, device):
    with pytest.raises(SetupError) as caught:
        start(one_to_one(["n", 2]), context={"device": device})
    assert caught.value.what == f"ONNX Runtime has no device {device!r}"
    assert "'cpu', or 'cuda' or 'cuda:0' for a GPU" in caught.value.hint


def test_a_near_name_is_suggested():
    with pytest.raises(SetupError) as caught:
        choose_providers(["cudaa"])
    assert "cuda" in caught.value.hint


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="CUDA is there")
@pytest.mark.parametrize("how", [{"providers": ["cuda", "cpu"]}, {"context": {"device": "cuda:0"}}])
def test_a_provider_that_is_not_installed_is_an_error_that_says_what_is(start, one_to_one, how):
    with pytest.raises(MissingDependencyError) as caught:
        start(one_to_one(["n", 2]), **how)
    assert CPU in caught.value.what
    assert "pip install onnxruntime-gpu cuda-bindings" in caught.value.hint


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="CUDA is there")
@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_session_that_would_run_elsewhere_is_an_error(one_to_one, capfd):
    path = one_to_one(["n", 2])
    with pytest.raises(SetupError):
        make_session(path, [(CUDA, {})])
    with pytest.raises(SetupError, match=CUDA):
        make_session(path, [(CUDA, {}), (CPU, {})])
    assert capfd.readouterr() == ("", "")


def test_providers_are_compared_with_the_real_ones():
    check_providers([CPU], [CPU])
    with pytest.raises(SetupError) as caught:
        check_providers([CUDA, CPU], [CPU])
    assert CUDA in caught.value.what


@pytest.mark.parametrize(
    "options",
    [
        {"outputs": ["output1"]},
        {"inputs": {"imput": "data"}},
        {"unbatched": ["inputs"]},
    ],
    ids=str,
)
def test_unknown_names_are_told_the_nearest_one(start, save, options):
    ports = [("input", T.FLOAT, ["n", 2])], [("output", T.FLOAT, ["n", 2])]
    path = save([("Relu", ["input"], ["output"], {})], *ports)
    with pytest.raises(SetupError, match=r"Did you mean '(in|out)put'\?"):
        start(path, **options)


def test_a_model_without_a_batch_axis_runs_one_request_at_a_time(start, save):
    path = save(
        [("Add", ["x", "x"], ["y"], {}), ("ReduceSum", ["x"], ["total"], {"keepdims": 0})],
        [("x", T.FLOAT, [2, "w"])],
        [("y", T.FLOAT, [2, "w"]), ("total", T.FLOAT, [])],
    )
    backend = start(path, unbatched=["x"])
    assert backend.max == 1
    for width in (3, 1):
        image = np.arange(2 * width, dtype=np.float32).reshape(2, width)
        (request,) = batch = [{"data": image}]
        assert backend(batch) is None
        assert request["result"]["y"].tolist() == (2 * image).tolist()
        assert request["result"]["total"] == image.sum()
    (error,) = backend([{"data": image[None]}])
    assert error.got == "float32 [1, 2, 1]"


def test_the_functions_name_what_they_cannot_take(one_to_one):
    path = one_to_one(["n", 2])
    with pytest.raises(ValueError, match="disabled, basic, extended, all, not 'most'"):
        make_session(path, graph_optimization="most")
    with pytest.raises(ValueError, match=r"log_level is one of .* not 'loud'"):
        make_session(path, log_level="loud")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        make_session(path, intra_op_threads=0)
    with pytest.raises(SetupError, match="says x = -1"):
        read_signature(make_session(path), batch_axis={"x": -1})


@pytest.mark.parametrize("option", ["outputs", "unbatched"])
def test_a_name_twice_is_refused_before_the_model_is_loaded(one_to_one, option):
    config = {"backend": "OnnxTensor", "model": str(one_to_one(["n", 2])), option: ["y", "y"]}
    with pytest.raises(ConfigError, match="'y' is listed twice"):
        headrace.pipe(config)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"providers": ["cuda", "cpu", "CUDAExecutionProvider"]}, "twice"),
        ({"provider_options": {"cuda": {}, "CUDA": {"device_id": 1}}}, "provider_options .* twice"),
        ({"providers": ["cuda", "cpu"], "provider_options": {"tensorrt": {"a": 1}}}, "not name"),
        ({"unbatched": ["s"], "batch_axis": {"s": 1}}, "'s' stands in"),
        ({"intra_op_threads": 5000}, "less than or equal to 4096"),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_configuration(one_to_one, options, problem):
    config = {"backend": "OnnxTensor", "model": str(one_to_one(["n", 2])), **options}
    with pytest.raises(ConfigError, match=problem):
        headrace.PipelineConfig.load(config)


def test_inputs_without_a_common_batch_axis_are_a_setup_error(start, save):
    path = save(
        [("Identity", ["a"], ["y"], {}), ("Identity", ["b"], ["z"], {})],
        [("a", T.FLOAT, [4, 2]), ("b", T.FLOAT, [3, 2])],
        [("y", T.FLOAT, [4, 2]), ("z", T.FLOAT, [3, 2])],
    )
    with pytest.raises(SetupError) as caught:
        start(path)
    assert "unbatched" in caught.value.hint
    backend = start(path, unbatched=["b"])
    rows = {"a": np.ones((4, 2), np.float32), "request_size": 4}
    request = {"data": 0, **rows, "b": np.ones((3, 2), np.float32)}
    assert backend([request]) is None
    assert request["result"]["y"].shape == (4, 2)
    assert request["result"]["z"].shape == (3, 2)


def test_a_scalar_model_has_no_batch_axis(start, one_to_one):
    with pytest.raises(SetupError):
        start(one_to_one([]))


@pytest.mark.parametrize("kind", [T.BFLOAT16, T.FLOAT8E4M3FN])
def test_types_numpy_cannot_hold_are_setup_errors(start, save, kind):
    path = save(
        [("Cast", ["x"], ["y"], {"to": T.FLOAT})]
        if kind == T.BFLOAT16
        else [("Identity", ["x"], ["y"], {})],
        [("x", kind, ["n", 2])],
        [("y", T.FLOAT if kind == T.BFLOAT16 else kind, ["n", 2])],
    )
    with pytest.raises(SetupError):
        start(path)


def test_threads_are_the_instance_s_share(start, one_to_one):
    path = one_to_one(["n", 2])
    built = start(path, {"threads": 3, "instance_num": 2}).describe()
    assert built["intra_op_threads"] == 3
    assert not built["spinning"]
    assert not built["shared_session"]
    backend = start(path, {"threads": 3}, intra_op_threads=1, spin=False)
    assert backend._session.get_session_options().intra_op_num_threads == 1
    assert backend.describe()["shared_session"]


def test_session_options_reach_onnx_runtime(start, one_to_one):
    config = {"session.set_denormal_as_zero": "1"}
    backend = start(
        one_to_one(["n", 2]),
        session_config=config,
        graph_optimization="basic",
        log_level="error",
        spin=True,
    )
    options = backend._session.get_session_options()
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    silent = start(one_to_one(["n", 2]), session_config={"session.intra_op.allow_spinning": "0"})
    assert silent.describe()["spinning"] is False  # what holds, not the option that it overrides
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert options.log_severity_level == 3


def test_a_changed_file_or_option_gets_a_session_of_its_own(start, one_to_one):
    shared = {"store": headrace.InitContext.Stores()}
    path = one_to_one(["n", 2])
    first, second = start(path, shared), start(path, shared)
    assert first._session is second._session
    assert start(path, shared, graph_optimization="basic")._session is not first._session
    path = one_to_one(["n", 2], op="Exp")
    request = {"data": np.zeros(2, np.float32)}
    assert start(path, shared)([request]) is None
    assert request["result"].tolist() == [1, 1]


def test_describe_tells_what_was_built(start, one_to_one):
    path = one_to_one(["n", 3, None])
    built = start(path, inputs={"x": "pixels"}).describe()
    assert json.loads(json.dumps(built)) == built
    assert built["providers"] == [CPU]
    assert built["model"] == str(path)
    assert built["inputs"] == {
        "x": {"key": "pixels", "dtype": "float32", "shape": [None, 3, None], "batched": True}
    }
    assert built["outputs"]["y"]["dtype"] == "float32"
    assert built["batch"] is None
    assert built["onnxruntime"] == onnxruntime.__version__


@pytest.fixture
def two_builds(tmp_path, monkeypatch):
    """Let the metadata of two builds be found in one folder."""
    for name in ("onnxruntime", "onnxruntime-gpu"):
        folder = tmp_path / f"{name.replace('-', '_')}-1.31.1.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.31.1\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_build_that_is_only_hidden_by_another_folder_harms_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "onnxruntime_gpu-1.31.1.dist-info"
    folder.mkdir()
    text = "Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.31.1\n"
    (folder / "METADATA").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert len(builds.installed_builds()) == 2
    assert builds.two_builds() is None


@pytest.mark.usefixtures("two_builds", "has_cuda")
def test_two_builds_in_one_folder_are_told_with_the_lines_to_type(start, one_to_one):
    with pytest.raises(SetupError, match=r"onnxruntime 1\.\S+ and onnxruntime-gpu 1\.31") as caught:
        start(one_to_one(["n", 2]), {"device": "cuda"})
    assert "`pip uninstall -y onnxruntime onnxruntime-gpu`" in caught.value.hint


@pytest.mark.usefixtures("two_builds")
def test_on_the_cpu_two_builds_are_a_warning(start, one_to_one, caplog):
    request = {"data": np.zeros(2, np.float32)}
    assert start(one_to_one(["n", 2]))([request]) is None
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in caplog.text


def test_without_onnx_runtime_the_line_to_type_is_told(start, one_to_one, monkeypatch):
    path = one_to_one(["n", 2])
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError) as caught:
        start(path)
    assert "`pip install onnxruntime`" in caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="only there a path may be any bytes")
def test_a_path_that_is_no_utf_8_is_an_error_that_says_so(start, one_to_one, tmp_path):
    folder = Path(os.fsdecode(bytes(tmp_path) + b"/\xff"))
    folder.mkdir()
    path = one_to_one(["n", 2]).rename(folder / "model.onnx")
    with pytest.raises(SetupError, match=r"paths in UTF-8.*udcff") as caught:
        start(path)
    assert "Rename" in caught.value.hint


@pytest.mark.skipif(sys.platform != "linux", reason="a number that only Linux has")
def test_an_error_of_the_system_is_told_in_words(tmp_path):
    with pytest.raises(SetupError, match=r"system error number 36 \(File name too long\)"):
        make_session(tmp_path / ("a" * 300), [(CPU, {})])


@pytest.mark.skipif(sys.platform != "linux", reason="only there a path may be any bytes")
def test_a_path_in_utf_8_is_one_in_any_locale(start, one_to_one, tmp_path):
    folder = tmp_path / "k\udcc3\udca4se"  # as Python reads "käse" with LC_ALL=C
    folder.mkdir()
    path = one_to_one(["n", 2]).rename(folder / "model.onnx")
    request = {"data": np.zeros(2, np.float32)}
    assert start(path)([request]) is None


def test_an_input_that_is_a_sequence_is_refused_by_its_type(start, tmp_path):
    taken = helper.make_tensor_sequence_value_info("x", T.FLOAT, [2])
    given = helper.make_tensor_value_info("y", T.FLOAT, ["n"])
    joined = helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    graph = helper.make_graph([joined], "graph", [taken], [given])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(SetupError, match=r"'x' has the type seq\(tensor\(float\)\)") as caught:
        start(path)
    assert "`outputs`" not in caught.value.hint, "it is an input"


def test_a_classifier_of_scikit_learn_with_a_zipmap_is_told_the_way_out(start):
    """The file comes with ONNX Runtime; `outputs` as the hint writes it gives the labels that ONNX Runtime gives."""
    path = Path(onnxruntime.datasets.get_example("logreg_iris.onnx"))
    with pytest.raises(SetupError, match=r"'probabilities' has the type seq\(map") as caught:
        start(path)
    assert "options={'zipmap': False}" in caught.value.hint
    assert "{id(model): {'zipmap': False}}" in caught.value.hint
    (way,) = re.findall("`outputs = (.*)`", caught.value.hint)
    rows = 9 * np.random.default_rng(0).random((3, 2)).astype(np.float32)
    request = {"data": rows, "request_size": 3}
    assert start(path, outputs=ast.literal_eval(way))([request]) is None
    labels, _ = onnxruntime.InferenceSession(str(path)).run(None, {"float_input": rows})
    assert request["result"].tolist() == labels.tolist()


def test_a_model_without_inputs_runs_once_unbatched_names_its_output(start, save):
    path = save([("RandomNormal", [], ["y"], {"shape": [2]})], [], [("y", T.FLOAT, [2])])
    with pytest.raises(SetupError, match="the model has no input") as caught:
        start(path)
    assert "`unbatched`" in caught.value.hint
    request = {"data": None}
    assert start(path, unbatched=["y"])([request]) is None
    assert request["result"].shape == (2,)


def test_the_key_of_an_input_has_a_name(one_to_one):
    with pytest.raises(pydantic.ValidationError, match="at least 1 character"):
        OnnxTensor.Options(model=one_to_one(["n", 2]), inputs={"x": ""})


def test_what_onnx_runtime_would_do_by_default_is_set(start, one_to_one):
    """All cores for each session, threads that spin, a pool between operators, each error printed besides."""
    path = one_to_one(["n", 2])
    session = start(path)._session.get_session_options()
    bare = onnxruntime.SessionOptions()
    shown = [
        (one.intra_op_num_threads, one.inter_op_num_threads, one.log_severity_level)
        for one in (bare, session)
    ]
    assert shown == [(0, 0, -1), (1, 1, 4)]
    with pytest.raises(RuntimeError):  # not set, which is to spin
        bare.get_session_config_entry("session.intra_op.allow_spinning")
    assert session.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_nothing_runs_on_the_cpu_that_was_not_asked_for(start, one_to_one):
    """Bare ONNX Runtime runs there what another provider does not have, and says nothing."""
    path, other = one_to_one(["n", 2], op="Neg"), "AzureExecutionProvider"
    if other not in onnxruntime.get_available_providers():
        pytest.skip(f"this build has no {other}")
    bare = onnxruntime.InferenceSession(str(path), providers=[other])
    assert bare.run(None, {"x": np.ones((1, 2), np.float32)})[0].tolist() == [[-1, -1]]
    with pytest.raises(SetupError, match="CPU"):
        start(path, providers=[other])
    start(path, providers=[other, "cpu"])


def test_weights_outside_of_the_folder_of_the_model_are_not_read(start, save, tmp_path):
    weights = [("w", np.ones(4096, np.float32))]
    ports = [("x", T.FLOAT, ["n", 4096])], [("y", T.FLOAT, ["n", 4096])]
    path = save(
        [("Add", ["x", "w"], ["y"], {})], *ports, weights, save_as_external_data=True, location="w"
    )
    start(path)
    model = onnx.load(str(path), load_external_data=False)
    (tmp_path / "w").rename(tmp_path.parent / f"{tmp_path.name}-w")
    for location in (f"../{tmp_path.name}-w", str(tmp_path.parent / f"{tmp_path.name}-w")):
        model.graph.initializer[0].external_data[0].value = location
        path.write_bytes(model.SerializeToString())
        with pytest.raises(SetupError, match=r"(?i)external data"):
            start(path)
