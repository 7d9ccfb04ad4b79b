"""Plans built for real by TensorRT for RTX, on a machine without a GPU."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from headrace.errors import MissingDependencyError, SetupError
from headrace_trt import BuildCancelledError, BuildSettings, build_plan, quantize
from headrace_trt.engines.layers import Layer, count_types, layers_from_json, verify_precision
from headrace_trt.libraries.logs import collecting, logger_for
from headrace_trt.libraries.tensorrt import load_library

PROFILE = {"min": "x:1x3x16x16", "opt": "x:4x3x16x16", "max": "x:8x3x32x32"}


def build(rtx, model, **settings):
    settings.setdefault("profiles", (PROFILE,))
    settings.setdefault("optimization_level", 0)
    return build_plan(BuildSettings(model=model, **settings), library=rtx)


def nodes_of(built):
    return {node for layer in built.layers for node in layer.nodes}


def test_a_plan_with_its_profiles_and_layers(rtx, small_net):
    built = build(rtx, small_net)
    assert len(built.plan) > 1000
    assert built.library == rtx.text
    assert set(count_types(built.layers)) == {"fp32"}
    assert {"conv_0", "matmul_4"} <= nodes_of(built)
    (profile,) = built.profiles
    assert profile.ranges["x"].opt == (4, 3, 16, 16)
    assert built.describe()["plan_bytes"] == len(built.plan)


def test_a_range_that_no_profile_can_have_is_told(rtx, save):
    model = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])]
    )
    for settings in ({"profiles": ({"max": "x:2147483648x2"},)}, {"profiles": None, "max": 10**12}):
        with pytest.raises(SetupError, match=r"'x': .* has an axis longer than 2147483647"):
            build(rtx, model, **settings)


@pytest.mark.parametrize(
    ("rows", "most", "told"), [(1, 8, True), (8, 8, False), (1, None, False), ("n", 8, False)]
)
def test_a_max_that_a_fixed_batch_leaves_without_effect_is_a_warning(rtx, save, rows, most, told):
    model = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, [rows, 2])], [("y", T.FLOAT, [rows, 2])]
    )
    found = [*build(rtx, model, profiles=None, max=most).warnings]
    assert [one for one in found if "changes nothing" in one] == found[: int(told)]
    assert len(found) == int(told)


def test_float64_that_becomes_float32_is_a_warning(rtx, save):
    model = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.DOUBLE, ["n", 2])], [("y", T.DOUBLE, ["n", 2])]
    )
    (warning,) = build(rtx, model, profiles=None).warnings
    assert "no float64: 'x'" in warning


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_precision_that_was_built_is_read_back(rtx, small_net, precision):
    assert precision in count_types(build(rtx, small_net, precision=precision).layers)
    kept = build(rtx, small_net, precision=precision, keep_fp32=("matmul_*",))
    assert set(count_types(kept.layers)) == {precision, "fp32"}


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_quantized_plans(rtx, small_net, tmp_path, precision):
    with pytest.raises(SetupError, match="no Q/DQ nodes"):
        build(rtx, small_net, precision=precision)
    samples = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "samples.npz", x=samples)
    root = logging.getLogger()
    own, root.handlers = root.handlers, []  # pytest's would hide one that the tool leaves
    try:
        built = build(rtx, small_net, precision=precision, calibration=tmp_path / "samples.npz")
        assert root.handlers == []
    finally:
        root.handlers = own
    assert precision in count_types(built.layers)


def test_calibration_takes_samples_without_a_batch_axis(rtx, small_net, tmp_path):
    for number, sample in enumerate(np.ones((2, 3, 16, 16), np.float32)):
        np.save(tmp_path / f"{number}.npy", sample)
    built = build(rtx, small_net, precision="int8", calibration=tmp_path)
    assert "int8" in count_types(built.layers)
    onnx.save(quantize(onnx.load(small_net), "int8", tmp_path), tmp_path / "quantized.onnx")
    built = build(rtx, tmp_path / "quantized.onnx", precision="int8", calibration=tmp_path)
    assert any("`calibration` is not read" in warning for warning in built.warnings)


def test_a_transposed_convolution_beside_bf16(rtx, save):
    """The parser takes it in bf16, the builder does not."""
    weights = np.ones((3, 4, 3, 3), np.float32), np.ones((3, 1, 2, 2), np.float32)
    path = save(
        [
            ("Conv", ["x", "k"], ["h"], {"pads": [1, 1, 1, 1]}),
            ("ConvTranspose", ["h", "t"], ["y"], {"strides": [2, 2]}),
        ],
        [("x", T.FLOAT, [1, 4, 4, 4])],
        [("y", T.FLOAT, [1, 1, 8, 8])],
        zip("kt", weights, strict=True),
    )
    assert "bf16" in count_types(build(rtx, path, precision="bf16", profiles=None).layers)


def test_pictures_as_they_are_decoded(rtx, small_net):
    profile = {"min": "x:1x16x16x3", "max": "x:8x32x32x3"}
    built = build(
        rtx, small_net, profiles=(profile,), image_input=True, mean=(1.0, 2.0, 3.0), std=(58.0,)
    )
    taken = [text for layer in built.layers for text in layer.inputs if text.startswith("x ")]
    assert taken == ["x uint8 [-1,-1,-1,3]"]


def test_inner_tensors_become_outputs(rtx, small_net):
    plain, marked = build(rtx, small_net), build(rtx, small_net, mark_outputs=("r",))
    written = [text for layer in marked.layers for text in layer.outputs]
    assert any(text.startswith("r ") for text in written)
    assert not any(text.startswith("r ") for layer in plain.layers for text in layer.outputs)
    with pytest.raises(SetupError, match="'rr'") as caught:
        build(rtx, small_net, mark_outputs=("rr",))
    assert "'r'" in caught.value.hint


def test_every_error_of_the_parser_with_its_node(rtx, save):
    path = save(
        [("Relu", ["x"], ["h"], {}), ("NoSuchOperator", ["h"], ["y"], {"domain": "acme"})],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
    )
    with pytest.raises(SetupError, match="NoSuchOperator") as caught:
        build(rtx, path, profiles=None, max=2)
    assert "nosuchoperator_1" in caught.value.what
    assert "capability" in caught.value.hint


def test_external_data(rtx, save):
    random = np.random.default_rng(0)
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    path = save(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 64])],
        [("y", T.FLOAT, ["n", 64])],
        [("w", random.standard_normal((64, 64)).astype(np.float32))],
        **saving,
    )
    assert build(rtx, path, profiles=None, max=4).plan
    assert build(rtx, path, profiles=None, max=4, precision="fp16").plan
    (path.parent / "w.bin").unlink()
    with pytest.raises(SetupError, match=r"w\.bin"):
        build(rtx, path, profiles=None, max=4)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sparsity": True}, "`sparsity` is set, .* ignores it"),
        ({"timing_cache": Path("timing.cache")}, "no timing cache"),
        ({"hardware_compatibility": "ampere_plus"}, "ignores it"),
        ({"plugins": ("nowhere.so",)}, "is not there"),
        ({"plugins": ("no_such_module:Thing",)}, "cannot be imported"),
        ({"plugins": (__file__,)}, "add_plugin_v3, which tensorrt_rtx"),
        ({"plugins": ("string:Template",)}, "add_plugin_v3, which tensorrt_rtx"),
        ({"profiles": None}, r"axis 2 \('h'\), 3 \('w'\)"),
    ],
)
def test_what_the_library_does_not_have_is_refused(rtx, small_net, settings, text):
    with pytest.raises(SetupError, match=text):
        build(rtx, small_net, **settings)


def test_a_name_that_the_library_does_not_have_is_told_with_those_it_has(rtx):
    with pytest.raises(SetupError, match=r"'loud'(.|\n)*layer_names_only"):
        rtx.choice("ProfilingVerbosity", "loud", "verbosity")


def test_a_network_made_with_the_api(rtx, tmp_path, monkeypatch):
    (tmp_path / "my_network.py").write_text(
        "def scale(trt, builder, network):\n"
        "    x = network.add_input('x', trt.float32, (-1, 4))\n"
        "    layer = network.add_unary(x, trt.UnaryOperation.NEG)\n"
        "    layer.get_output(0).name = 'y'\n"
        "    network.mark_output(layer.get_output(0))\n"
        "def broken(trt, builder, network):\n"
        "    raise ValueError('so it is')\n"
        "def empty(trt, builder, network):\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = BuildSettings(network="my_network:scale", max=4)
    assert build_plan(settings, library=rtx).plan
    for name, text in (("broken", "so it is"), ("empty", "no output"), ("none", "cannot be")):
        with pytest.raises(SetupError, match=text):
            build_plan(settings.with_(network=f"my_network:{name}"), library=rtx)
    with pytest.raises(SetupError, match="imports are refused"):
        build_plan(settings, library=rtx, allow_import=False)


def test_builds_at_the_same_time_do_not_take_each_others_messages(rtx):
    logger, heard = logger_for(rtx), {}
    layers = {"one": "Layers:\none", "two": "Layers:\ntwo"}
    both = threading.Barrier(3)

    def listen(name):
        with collecting() as collected:
            both.wait()
            logger.log(rtx.trt.ILogger.Severity.VERBOSE, layers[name])
            both.wait()  # and now a thread in which nobody listens, as those of the library are
            both.wait()
        heard[name] = collected

    threads = [threading.Thread(target=listen, args=(name,)) for name in layers]
    for thread in threads:
        thread.start()
    both.wait()
    both.wait()
    logger.log(rtx.trt.ILogger.Severity.ERROR, "of nobody")
    both.wait()
    for thread in threads:
        thread.join()
    assert {name: one.layers for name, one in heard.items()} == {"one": ["one"], "two": ["two"]}
    assert [one.errors for one in heard.values()] == [["of nobody"]] * 2


def test_progress_has_phases_and_every_bar_is_taken_away(rtx, small_net):
    opened, advanced = [], []

    @contextlib.contextmanager
    def progress(total, unit):
        opened.append((unit, total))
        yield advanced.append
        opened.remove((unit, total))

    seen = set()

    def cancelled():
        seen.update(unit for unit, _ in opened)
        return False

    settings = BuildSettings(model=small_net, profiles=(PROFILE,), optimization_level=0)
    build_plan(settings, library=rtx, progress=progress, cancelled=cancelled)
    assert "Building engine" in seen
    assert len(seen) >= 3
    assert sum(advanced) > 10
    assert opened == []


@pytest.mark.parametrize("step", [1, 5, 20])
def test_a_build_ends_at_the_step_at_which_it_is_given_up(rtx, small_net, step):
    asked = []

    def cancelled():
        asked.append(1)
        return len(asked) > step

    settings = BuildSettings(model=small_net, profiles=(PROFILE,), optimization_level=0)
    with pytest.raises(BuildCancelledError, match="cancelled"):
        build_plan(settings, library=rtx, cancelled=cancelled)
    assert len(asked) <= step + 3


@pytest.mark.parametrize("where", ["cancelled", "bar", "advance"])
def test_what_a_function_of_the_caller_raises_ends_the_build(rtx, small_net, where, capfd):
    """The builder's native code prints such an error and goes on."""

    def fail(*_):
        raise LookupError(where)

    calls = []

    def cancelled():
        calls.append(where)
        return len(calls) > 3 and fail()

    @contextlib.contextmanager
    def bar(total, unit):
        yield fail

    given = {
        "cancelled": {"cancelled": cancelled},
        "bar": {"progress": fail},
        "advance": {"progress": bar},
    }
    with pytest.raises(LookupError, match=where):
        build_plan(BuildSettings(model=small_net, profiles=(PROFILE,)), library=rtx, **given[where])
    assert where not in capfd.readouterr().err


def test_ctrl_c_ends_a_build_and_leaves_no_thread(rtx, small_net):
    main = threading.main_thread().ident
    sent = threading.Event()

    def cancelled():
        if not sent.is_set():
            sent.set()
            signal.pthread_kill(main, signal.SIGINT)
        return False

    settings = BuildSettings(model=small_net, profiles=(PROFILE,), optimization_level=0)
    with pytest.raises(KeyboardInterrupt):
        build_plan(settings, library=rtx, cancelled=cancelled)
    left = [t for t in threading.enumerate() if t.name == "headrace-trt-build"]
    for thread in left:
        thread.join(30)
        assert not thread.is_alive()


def test_what_is_warned_of_is_kept_and_logged_once(rtx, save, caplog):
    caplog.set_level(logging.WARNING, "headrace.trt")
    path = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])]
    )
    built = build(rtx, path, profiles=None, max=2)
    assert set(built.warnings) <= {record.message for record in caplog.records}


JSON = """{"Layers": [
 {"Name": "conv", "LayerType": "CaskConvolution", "TacticName": "sm80_xmma_fprop_f16",
  "Inputs": [{"Name": "x", "Dimensions": [1, 3], "Format/Datatype": "Channel major FP16 format"}],
  "Outputs": [{"Name": "y", "Dimensions": [1, 8], "Format/Datatype": "Row major linear FP32"}],
  "Metadata": "[ONNX Layer: conv_0][ONNX Layer: relu_1]"},
 {"Name": "move", "LayerType": "kgen", "Inputs": [], "Outputs": [
  {"Name": "i", "Dimensions": [2], "Datatype": "Int64", "Format": "(Linear)"}]},
 "named only"], "Bindings": ["x", "y"]}"""


def test_layers_as_the_inspector_writes_them():
    conv, move, named = layers_from_json(JSON)
    assert (conv.precision, conv.nodes) == ("fp16", ("conv_0", "relu_1"))
    assert (conv.inputs, conv.tactic) == (("x fp16 [1, 3]",), "sm80_xmma_fprop_f16")
    assert (move.precision, named.name) == ("", "named only")
    assert layers_from_json("no json") == []


def test_another_precision_is_never_taken_silently():
    layers = [Layer("a", "gemm", "fp16"), Layer("b", "gemm", "fp32")]
    verify_precision(layers, "fp16", ["HALF", "FLOAT"], label="it")
    verify_precision([], "fp16", [], label="it")
    with pytest.raises(SetupError, match=r"lower precision than asked: a \(fp16\)"):
        verify_precision(layers, "model", ["FLOAT", "INT32"], label="it")
    with pytest.raises(SetupError, match="no layer was built in it: 1 in fp32"):
        verify_precision(layers[1:], "fp16", ["HALF", "FLOAT"], label="it")
    with pytest.raises(SetupError, match=r"no layer was built in it: 1 in int8(.|\n)*Q/DQ nodes"):
        verify_precision([Layer("a", "gemm", "int8")], "fp8", ["INT8", "FLOAT"], label="it")


class _Module:
    def __init__(self, **names):
        self.__dict__.update(names)


def test_which_library_is_taken():
    typed = _Module(STRONGLY_TYPED=0)
    runs = _Module(execute_async_v3=1)
    new = _Module(__version__="11", IExecutionContext=runs, BuilderFlag=_Module(),
                  NetworkDefinitionCreationFlag=typed)  # fmt: skip
    old = _Module(__version__="8.5", IExecutionContext=runs, BuilderFlag=_Module(FP16=0),
                  NetworkDefinitionCreationFlag=_Module())  # fmt: skip
    older = _Module(__version__="8.2", IExecutionContext=_Module())

    def importing(**modules):
        def load(name):
            if name not in modules:
                raise ImportError(f"No module named {name!r}")
            return modules[name]

        return load

    both = importing(tensorrt=new, tensorrt_rtx=new)
    assert load_library(("tensorrt", "tensorrt_rtx"), both).name == "tensorrt"
    only = importing(tensorrt_rtx=new)
    assert load_library(("tensorrt", "tensorrt_rtx"), only).is_rtx
    for module in (old, older):
        with pytest.raises(SetupError, match="too old") as caught:
            load_library(("tensorrt",), importing(tensorrt=module))
        assert "TensorRT 10 and 11" in caught.value.hint
    with pytest.raises(MissingDependencyError, match="not installed") as missing:
        load_library(("tensorrt",), importing())
    assert "headrace-trt[tensorrt]" in missing.value.hint


def test_no_cuda_context_is_made_by_looking_at_a_model(small_net):
    code = (
        "import sys; from pathlib import Path\n"
        "from headrace_trt.onnx_models.files import load_model\n"
        f"load_model(Path({str(small_net)!r}))\n"
        "heavy = {'tensorrt', 'tensorrt_rtx', 'cuda.bindings', 'torch', 'onnxruntime'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_model_of_no_name_for_its_nodes(rtx, tmp_path):
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [onnx.helper.make_tensor_value_info("x", T.FLOAT, ["n", 2])],
        [onnx.helper.make_tensor_value_info("y", T.FLOAT, ["n", 2])],
        [onnx.numpy_helper.from_array(np.ones((2, 2), np.float32), "w")],
    )
    path = tmp_path / "nameless.onnx"
    onnx.save(onnx.helper.make_model(graph, ir_version=8), path)
    assert build(rtx, path, profiles=None, max=2, precision="fp16").plan
