import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pydantic
import pytest

import headrace
import headrace_trt
from headrace.errors import ConfigError, HeadraceError, SetupError
from headrace_trt import BuildSettings, Onnx2Tensorrt, TensorrtInferTensor
from headrace_trt.writing import TENSORRT_TENSOR

ROOT = Path(__file__).parent.parent
WORDS = {
    "LoadTensorrtEngine", "Onnx2Tensorrt", "TensorrtCat", "TensorrtInferTensor", "TensorrtSplit",
}  # fmt: skip


def run(code, **where):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, **where
    )


def test_every_word_is_offered_and_certified():
    found = metadata.entry_points()
    mine = {p.name for p in found.select(group="headrace.backends") if "headrace_trt" in p.value}
    kits = {p.name for p in found.select(group="headrace.conformance") if "headrace_trt" in p.value}
    assert mine == WORDS
    assert kits == {*WORDS, "TensorrtTensor"}
    assert all(getattr(headrace_trt, name).owns_thread for name in WORDS)


def test_explain_and_check_need_no_library(small_net):
    code = (
        "import sys, headrace\n"
        f"told = headrace.explain({{'backend': {TENSORRT_TENSOR!r}.replace('(.trt,.engine,.plan)',"
        f" '(.plan)'), 'model': {str(small_net)!r}, 'precision': 'fp16', 'max': 8,"
        " 'ragged': 'pad', 'output_device': 'device'})\n"
        "heavy = {'tensorrt', 'tensorrt_rtx', 'cuda.bindings', 'numpy', 'onnx', 'torch'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "text = str(told)\n"
        "assert 'Onnx2Tensorrt' in text and 'TensorrtSplit' in text and 'fp16' in text"
    )
    done = run(code)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_definition_is_the_word_that_is_documented(small_net, tmp_path):
    explained = str(
        headrace.explain({"backend": "TensorrtTensor", "model": str(small_net), "max": 4})
    )
    for word in ("Onnx2Tensorrt", "TensorrtInferTensor", "TensorrtCat", "TensorrtSplit"):
        assert word in explained
    assert "'name': 'LoadTensorrtEngine'" not in explained
    for suffix in (".trt", ".engine", ".plan"):
        plan = tmp_path / f"model{suffix}"
        plan.write_bytes(b"plan")
        config = {"backend": "TensorrtTensor", "model": str(plan), "max": 4}
        assert "LoadTensorrtEngine" in str(headrace.explain(config))
    with pytest.raises(ConfigError):
        headrace.explain({"backend": "TensorrtTensor", "model": "model.pt"})


def _device():
    from headrace_trt.libraries.cuda import load_cuda

    return load_cuda().device_count()


@pytest.mark.skipif(_device() > 0, reason="there is a device")
def test_without_a_device_the_error_says_so_and_fallback_goes_on(small_net, rtx):
    config = {
        "backend": "IoC[Onnx2Tensorrt,TensorrtInferTensor;TensorrtInferTensor]",
        "model": str(small_net), "max": 2,
    }  # fmt: skip
    with pytest.raises(SetupError, match="there is no CUDA device"):
        headrace.pipe(config)
    with headrace.pipe({**config, "backend": f"Fallback[{config['backend']},Identity]"}) as pipe:
        assert pipe({"data": 1})["result"] == 1
        assert "there is no CUDA device" in str(pipe.describe())


@pytest.mark.skipif(_device() > 0, reason="there is a device")
def test_fallback_to_onnx_runtime_says_what_it_chose_and_why(small_net, rtx):
    pytest.importorskip("headrace_ort")
    config = {"backend": "Fallback[TensorrtTensor,OnnxTensor]", "model": str(small_net), "max": 4}
    with headrace.pipe(config) as pipe:
        described = str(pipe.describe())
        assert pipe({"data": np.zeros((3, 8, 8), np.float32)})["result"].shape == (10,)
    assert "'chosen': 'OnnxTensor'" in described
    assert "there is no CUDA device" in described


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "exactly one of"),
        ({"network": "a:b", "precision": "fp16"}, "change an ONNX graph"),
        ({"network": "nowhere"}, "package.module:function"),
        ({"keep_fp32": ["a"]}, "goes with precision = fp16 or bf16"),
        ({"precision": "fp16", "calibration": str(ROOT)}, "goes with precision = int8 or fp8"),
        ({"precision": "fp16", "verbosity": "none"}, "hides the types"),
        ({"std": [1.0, 0.0]}, "must not be 0"),
        ({"precision": "int8", "calibration": "no.npz"}, r"no such file or folder: 'no\.npz'"),
        ({"profiles": []}, "at least one"),
        ({"profiles": [{"max": "x:1xa"}]}, "'1xa' is no shape for input 'x'"),
        ({"profiles": [{"min": "x:1"}]}, "max"),
        (
            {"profiles": [{"min": "x:4x3", "opt": "x:2x3", "max": "x:8x3"}]},
            "'x': .* is not min <= opt",
        ),
        ({"profiles": [{"min": {"x": [4, 3]}, "max": "x:2x3"}]}, "is not min <= opt <= max"),
        ({"profiles": [{"min": "x:1", "max": "x:1x3"}]}, "is not min <= opt <= max"),
        ({"profiles": [{"max": ""}]}, "names no input"),
        ({"profiles": [{"min": "x:1,y:1", "max": "x:4"}]}, "input 'y' `min` and no `max`"),
        ({"network": "a b:c"}, "package.module:function"),
        ({"mean": ()}, "one per channel"),
        ({"mean": (1, 2), "std": (1, 2, 3)}, "one per channel"),
        ({"std": 1e-300}, "float32"),
        ({"mean": 1e300}, "float32"),
        ({"workspace_bytes": 1 << 63}, "workspace_bytes: .* less than"),
        ({"weight_streaming_bytes": 1 << 63}, "less than or equal to"),
        ({"optimization_level": 6}, "less than or equal to 5"),
        ({"precision": "int9"}, "fp16"),
    ],
)
def test_options_that_do_not_fit_together(small_net, options, text):
    own = {} if not options or "network" in options else {"model": small_net}
    with pytest.raises(pydantic.ValidationError, match=text):
        Onnx2Tensorrt.Options(**own, **options)


def test_graphs_have_scratch_memory_of_their_own():
    with pytest.raises(pydantic.ValidationError, match="leave one of them out"):
        TensorrtInferTensor.Options(cuda_graph=True, context_memory="on_profile_change")
    assert TensorrtInferTensor.Options(cuda_graph=True, context_memory="shared").cuda_graph


def test_options_become_settings(small_net):
    options = Onnx2Tensorrt.Options(
        model=small_net, mean=5.0, strip=True, weight_streaming_bytes=10,
        profiles=[{"min": "x:1", "max": {"x": [4]}}],
    )  # fmt: skip
    settings = options.settings(min=1, max=4)
    assert (settings.mean, settings.refit, settings.strip) == ((5.0,), True, True)
    assert (settings.weight_streaming, settings.verbosity) == (True, "detailed")
    assert settings.profiles == ({"min": "x:1", "max": {"x": [4]}},)
    assert (settings.min, settings.max) == (1, 4)


def test_paths_of_plugin_libraries_are_relative_to_the_file_that_names_them(tmp_path, monkeypatch):
    from headrace_trt.backends.options import BuildOptions

    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("it.so", "net.onnx"):
        (folder / name).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    written = {"model": "net.onnx", "plugins": ["it.so", "package.module:Creator"]}
    read = BuildOptions.model_validate(written, context={"base": folder})
    assert read.plugins == (str(folder / "it.so"), "package.module:Creator")
    with pytest.raises(ValueError, match=r"no such file: 'it\.so'"):
        BuildOptions.model_validate({"network": "a:b", "plugins": ["it.so"]})


def test_a_plugin_that_is_registered_already_is_not_registered_again(tmp_path, monkeypatch):
    """The registry logs an error when it is asked for a creator that is not there."""
    from headrace_trt.building.plugin_libraries import load_plugins
    from headrace_trt.libraries.tensorrt import Library

    class Registry:
        def __init__(self, *creators):
            self.all_creators = list(creators)

        def register_creator(self, creator, namespace):
            self.all_creators.append(creator)
            return True

    (tmp_path / "own_creators.py").write_text("class Made: pass\nclass Again: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_creators

    for cls in (own_creators.Made, own_creators.Again):
        cls.name, cls.plugin_version, cls.plugin_namespace = "Double", "1", ""
    registry = Registry()
    trt = SimpleNamespace(
        init_libnvinfer_plugins=lambda *_: True,
        get_plugin_registry=lambda: registry,
        INetworkDefinition=SimpleNamespace(add_plugin_v3=1),
    )
    monkeypatch.setattr("headrace_trt.building.plugin_libraries.logger_for", lambda _: None)
    for plugin in ("own_creators:Made", "own_creators:Again", "own_creators:Made"):
        load_plugins(Library(trt, "fake", "1"), (plugin,))
    assert len(registry.all_creators) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("inputs", {"x": ""}), ("outputs", ["y", "y"]), ("ragged", "cut"), ("pad_multiple", 0)],
)
def test_a_wrong_option_of_a_run_is_refused_with_its_place(small_net, key, value):
    config = {"backend": "TensorrtTensor", "model": str(small_net), key: value}
    with pytest.raises(ConfigError) as caught:
        headrace.PipelineConfig.load(config)
    assert [problem.path for problem in caught.value.problems] == [f"main.{key}"]


def test_plugins_are_refused_where_imports_are(small_net, rtx):
    from headrace_trt.building.plugin_libraries import load_plugins

    for plugin in ("some.so", "package.module:Creator"):
        with pytest.raises(SetupError, match="imports are refused"):
            load_plugins(rtx, (plugin,), allow_import=False)
    load_plugins(rtx, (), allow_import=False)
    whole = {
        "backend": "TensorrtTensor",
        "model": str(small_net),
        "plugins": ["package.module:Made"],
    }
    code = {"backend": "TensorrtInferTensor[Onnx2Tensorrt]", "network": "package.module:make"}
    for config, key in ((whole, "plugins"), (code, "network")):
        with pytest.raises(ConfigError, match="imports are refused") as caught:
            headrace.PipelineConfig.load(config, allow_import=False)
        assert [problem.path for problem in caught.value.problems] == [f"main.{key}"]
        headrace.PipelineConfig.load(config)


def test_settings_take_known_names_only(small_net):
    for name in ("library", "precision", "hardware_compatibility", "verbosity"):
        with pytest.raises(ValueError, match=f"{name}: Input should be .*, not 'fp32'"):
            BuildSettings(model=small_net, **{name: "fp32"})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimization_level": 6}, "optimization_level: .* less than or equal to 5, not 6"),
        ({"workspace_bytes": -1}, "workspace_bytes: .* or equal to 0, not -1"),
        ({"max": 0}, "max: .* or equal to 1, not 0"),
        ({"min": 9, "max": 8}, "`min` = 9 is more than `max` = 8"),
        ({"min": 3}, "`min` = 3 is more than `max` = 1"),
        ({"profiles": [{"max": None}]}, "profile 0 must have `max`"),
        ({"profiles": [{"max": "x:1x3"}, {"max": "x:1x3", "mx": "x:9x3"}]}, "profile 1 .* 'mx'"),
        ({"keep_fp32": ("fc",)}, "goes with precision = fp16 or bf16"),
        ({"keep_fp32": "fc", "precision": "fp16"}, "keep_fp32: .* tuple, not 'fc'"),
        ({"profiles": {"max": "x:1x3"}}, "profiles: .* tuple, not {'max': 'x:1x3'}"),
        ({"calibration": "samples"}, "goes with precision = int8 or fp8"),
        ({"std": (1, 0, 1)}, "`std` must not be 0"),
        ({"mean": float("nan")}, "mean: .* finite number"),
        ({"std": [True]}, "std: .* number, not"),
        ({"tf32": "no"}, "tf32: .* boolean, not 'no'"),
        ({"optimization_level": "3"}, "optimization_level: .* integer, not '3'"),
        ({"max": 8.0}, "max: .* integer"),
        ({"mark_outputs": [3]}, "mark_outputs: .* string"),
        ({"profiles": ["x:1x3"]}, "profiles: "),
        ({"timing_cache": 3}, "timing_cache: .*Path, not 3"),
        ({"network": "package.module:make"}, "exactly one of `model` and `network`"),
    ],
)
def test_settings_that_do_not_hold_are_refused_from_python_too(small_net, settings, message):
    with pytest.raises(ValueError, match=message):
        BuildSettings(model=small_net, **settings)


def test_settings_take_what_numpy_offers(small_net):
    settings = BuildSettings(
        model=small_net,
        mean=np.array([1, 2, 3]),
        std=np.float32(2),
        optimization_level=np.int64(3),
        tf32=np.bool_(False),
        max=np.int32(8),
    )
    assert json.loads(json.dumps(settings.that_matter())) == {
        "mean": [1, 2, 3],
        "std": [2],
        "optimization_level": 3,
        "tf32": False,
        "max": 8,
    }


@pytest.mark.parametrize("shapes", [8, None, {"x": 8}, {"x": [8.5, 3]}])
def test_shapes_of_a_wrong_type_are_told_once(small_net, shapes):
    config = {"backend": "TensorrtTensor", "model": str(small_net), "profiles": [{"max": shapes}]}
    with pytest.raises(ConfigError, match="max is a text such as") as caught:
        headrace.PipelineConfig.load(config)
    assert [problem.path for problem in caught.value.problems] == ["main.profiles"]


def test_settings_take_what_python_offers(small_net):
    settings = BuildSettings(
        model=str(small_net), precision="fp16", mean=1.5, std=[2, 3, 4], keep_fp32=["a"], strip=True
    )
    assert settings.model == small_net
    assert (settings.mean, settings.std) == ((1.5,), (2, 3, 4))
    assert (settings.keep_fp32, settings.refit) == (("a",), True)


def test_every_error_of_the_package_can_be_pickled():
    import pickle

    from headrace_trt import BuildCancelledError

    error = pickle.loads(pickle.dumps(BuildCancelledError("given up")))
    assert isinstance(error, HeadraceError)
    assert (error.what, error.code) == ("given up", "cancelled")
