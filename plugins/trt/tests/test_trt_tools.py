"""The tools, with the real builder; those that need a device are in test_trt_gpu."""

import json
import os
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto as T

from headrace.errors import ConfigError, SetupError
from headrace_trt import BuildSettings, build_engine, build_plan, quantize
from headrace_trt.tools.opening import opened
from headrace_trt.tools.refitting import refit_plan

pytestmark = pytest.mark.slow

pytest.importorskip("onnxruntime")
CliRunner = pytest.importorskip("typer.testing").CliRunner
app = pytest.importorskip("headrace_trt.tools.cli").app
WrongArgument = pytest.importorskip("headrace_cli.for_plugins").WrongArgument

SHAPES = ["--min-shapes", "x:1x3x16x16", "--max-shapes", "x:4x3x16x16"]
PROFILE = {"min": "x:1x3x16x16", "max": "x:4x3x16x16"}


def trt(*args, status=0):
    """Run ``headrace trt`` in this process; give the JSON it prints."""
    done = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert done.exit_code == status, done.output
    return json.loads(done.stdout) if "--json" in args else done.stdout


def test_build_says_what_was_built_and_finds_it_again(rtx, small_net, tmp_path):
    args = (
        "build",
        small_net,
        *SHAPES,
        "--precision",
        "fp16",
        "--set",
        "optimization_level=0",
        "--json",
    )
    first, second = trt(*args), trt(*args)
    assert (first["cache_hit"], second["cache_hit"]) == (False, True)
    assert first["engine"] == second["engine"]
    assert "fp16" in first["layers_by_type"]
    assert first["profiles"][0]["x"]["max"] == [4, 3, 16, 16]
    Path(first["engine"]).write_bytes(b"torn")
    done = CliRunner().invoke(app, list(map(str, args)), catch_exceptions=False)
    assert json.loads(done.stdout)["cache_hit"] is False
    warning = f"warning: {first['engine']} is not used and will be built anew"
    assert [line[: len(warning)] for line in done.stderr.splitlines()] == [warning]
    named = trt("build", small_net, *SHAPES, "-o", tmp_path / "my.plan", "--json")
    assert named["bytes"] == (tmp_path / "my.plan").stat().st_size
    assert "cache_hit" in trt("build", small_net, *SHAPES)


def test_several_profiles_and_settings_as_in_a_configuration(rtx, small_net, tmp_path):
    twice = (*SHAPES, "--min-shapes", "x:1x3x8x8", "--max-shapes", "x:2x3x8x8")
    both = trt("build", small_net, *twice, "--json")
    assert len(both["profiles"]) == 2
    listed = 'profiles=[{min="x:1x3x16x16",max="x:4x3x16x16"},{min="x:1x3x8x8",max="x:2x3x8x8"}]'
    assert trt("build", small_net, "--set", listed, "--json")["engine"] == both["engine"]
    plan = tmp_path / "$it.plan"
    kept = ("--set", "cache_dir=" + str(tmp_path / "kept"), "--set", "optimization_level=0")
    trt("build", small_net, *SHAPES, *kept, "-o", plan)
    assert plan.exists()
    first = trt("build", small_net, *SHAPES, *kept, "--json")
    assert Path(first["engine"]).parent == tmp_path / "kept"
    described = json.loads(Path(first["engine"] + ".json").read_text())["asked"]["settings"]
    assert described["optimization_level"] == 0


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("--max-shapes", "x:1x3x8x8", "--min-shapes", "x:1", "--min-shapes", "y:1"), "as often"),
        (("--opt-shapes", "x:1x3x8x8"), "--max-shapes must be given"),
        ((*SHAPES, "--precision", "fp17"), "Did you mean 'fp16'"),
        ((*SHAPES, "--set", "precison=fp16"), "Did you mean 'precision'"),
        ((*SHAPES, "--set", "keep_fp32=['a']"), "goes with"),
        (("--set", "min=3", "--set", "max=2"), "min"),
        (("--set", "mean=[1, 2, 'x']"), "mean"),
        ((*SHAPES, "--set", "max=8"), "the profiles say the rows"),
        ((*SHAPES, "--set", "profiles=[]"), "--set profiles: another argument"),
        (("--set", "instance_num=2"), "--set instance_num: it is no option"),
        (("--set", "backend=Identity"), "--set backend: it is Onnx2Tensorrt"),
        (("--set", "profiles=x:1x3x8x8"), "profiles"),
        (("--set", 'profiles=[{most = "x:1x3x8x8"}]'), "profiles"),
        ((*SHAPES, "--precision", "fp16", "--set", "keep_fp32=['no*']"), "matches the name of no"),
    ],
)
def test_wrong_options_are_refused(rtx, small_net, args, text):
    with pytest.raises((SetupError, ConfigError, WrongArgument), match=text):
        trt("build", small_net, *args)


def test_a_plan_is_measured_as_it_is_loaded(device, plan, save):
    model = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])]
    )
    path = plan(model, {"x": ((1, 2), (4, 2), (8, 2))}, name="$it.plan")
    found = trt("bench", path, "--shapes", "x:3x2", "--seconds", 0.1, "--copies", "--json")
    assert (found["rows"], found["copies"], found["cuda_graph"]) == (3, True, False)
    with pytest.raises(SetupError, match="'foo' is no shape"):
        trt("bench", path, "--shapes", "foo")
    with pytest.raises(SetupError, match="there is no device 'cuda:7'"):
        trt("bench", path, "--set", "device=cuda:7")
    with pytest.raises(ConfigError, match="Did you mean 'trust_engine'"):
        trt("bench", path, "--set", "trust_engin=true")
    with pytest.raises(SetupError, match="is no plan") as caught:
        trt("bench", model)
    assert f"headrace trt build {model}" in caught.value.hint
    assert device.engines
    assert not [one for one in device.streams.values() if one]


def test_the_sidecar_names_the_nodes_and_types_of_each_layer(rtx, small_net, tmp_path):
    plan = tmp_path / "it.plan"
    built = trt("build", small_net, *SHAPES, "--set", "optimization_level=0", "-o", plan, "--json")
    layers = json.loads(plan.with_name("it.plan.json").read_text())["layers"]
    named = {name for layer in layers for name in layer["nodes"]}
    assert "conv_0" in named <= {node.name for node in onnx.load(small_net).graph.node}
    typed = [layer["precision"] for layer in layers if layer["precision"]]
    assert built["layers_by_type"] == {"fp32": len(typed)}


def test_a_path_is_printed_whole_and_an_empty_batch_is_refused(rtx, save, tmp_path):
    model = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])]
    )
    target = tmp_path / ("long" * 30) / "my.plan"
    assert f"engine          {target}\n" in trt("build", model, "-o", target)
    with pytest.raises(ConfigError, match="max"):
        trt("build", model, "--set", "max=0")


def test_no_tool_writes_over_what_it_reads(small_net, tmp_path):
    model, plan, link = tmp_path / "part0.onnx", tmp_path / "a.plan", tmp_path / "link.onnx"
    model.write_bytes(small_net.read_bytes())
    plan.write_bytes(b"plan")
    link.symlink_to(model)
    os.link(model, tmp_path / "hard.onnx")
    kept = model.read_bytes()
    for target in (model, link, tmp_path / "hard.onnx", tmp_path / "x" / ".." / model.name):
        with pytest.raises(SetupError, match=r"would overwrite .*, which is the model"):
            refit_plan(plan, model, target)
    for words in (
        ("refit", plan, model, link),
        ("refit", plan, model, plan),
    ):
        with pytest.raises(SetupError, match="would overwrite"):
            trt(*words)
    assert (model.read_bytes(), plan.read_bytes()) == (kept, b"plan")


def test_a_library_of_another_name_is_never_imported(small_net, tmp_path):
    (tmp_path / "it.plan").write_bytes(b"plan")
    with pytest.raises(ConfigError, match="'tensorrt_rtx'"):
        trt("refit", tmp_path / "it.plan", small_net, tmp_path / "new.plan", "--set", "library=os")


@pytest.mark.parametrize("name", ["it.plan", "IT.PLAN", "it.Engine"])
def test_a_plan_is_known_by_its_suffix_in_any_case(device, plan, linear, name):
    path = plan(linear[0], {"x": ((1, 3), (4, 3), (8, 3))}, name=name)
    with opened(path) as (engine, _):
        assert engine.label == str(path)


def test_functions_take_a_path_as_text(rtx, small_net, tmp_path):
    model = str(small_net)
    settings = BuildSettings(model=model, profiles=[PROFILE])
    plan = build_engine(settings, engine=str(tmp_path / "it.plan")).path
    with pytest.raises(SetupError, match="overwrite"):
        refit_plan(str(plan), model, str(plan))


def test_functions_say_what_they_cannot_take(rtx, small_net, tmp_path):
    model = onnx.load(small_net)
    for wrong, error, text in (
        (lambda: build_engine(str(small_net)), TypeError, "settings is a BuildSettings"),
        (lambda: build_plan(small_net), TypeError, "settings is a BuildSettings"),
        (
            lambda: build_engine(BuildSettings(model=small_net), cache_size_bytes=-1),
            ValueError,
            "-1",
        ),
        (
            lambda: BuildSettings(network=5),
            ValueError,
            "network: Input should be a valid string, not 5",
        ),
        (lambda: quantize(model, "fp15", tmp_path), ValueError, "int8, fp8, not 'fp15'"),
    ):
        with pytest.raises(error, match=text):
            wrong()


def test_help_names_the_choices():
    text = CliRunner().invoke(app, ["build", "--help"], terminal_width=200).output
    assert "--precision model|fp16|bf16|int8|fp8" in text


@pytest.mark.parametrize("words", [[], ["build"]])
def test_every_command_takes_h_for_help(words):
    short, long = (CliRunner().invoke(app, [*words, flag]) for flag in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout
