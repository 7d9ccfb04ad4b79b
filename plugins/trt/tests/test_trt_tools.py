"""The tools, with the real builder; those that need a device are in test_trt_gpu."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from headrace.errors import SetupError
from headrace_trt import BuildSettings, build_engine, build_plan, quantize
from headrace_trt.network import prepare_model
from headrace_trt.tactics import TacticFile, read_tactics, using_tactics
from headrace_trt.tools.capability import capability, save_parts
from headrace_trt.tools.comparing import compare, differences, random_inputs, reference
from headrace_trt.tools.extracting import extract_model
from headrace_trt.tools.inspecting import as_page, inspect_file
from headrace_trt.tools.refitting import refit_plan
from headrace_trt.tools.tactics import bisect_tactics, exclude_tactics, show_tactics

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime")
CliRunner = pytest.importorskip("typer.testing").CliRunner
app = pytest.importorskip("headrace_trt.tools.cli").app

SHAPES = ["--min-shapes", "x:1x3x16x16", "--max-shapes", "x:4x3x16x16"]
PROFILE = {"min": "x:1x3x16x16", "max": "x:4x3x16x16"}


def trt(*args, status=0):
    """Run ``headrace trt`` in this process; give the JSON it prints."""
    done = CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert done.exit_code == status, done.output
    return json.loads(done.stdout) if "--json" in args else done.stdout


def test_build_says_what_was_built_and_finds_it_again(rtx, small_net, tmp_path):
    args = ("build", small_net, *SHAPES, "--precision", "fp16", "--optimization-level", 0, "--json")
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


def test_several_profiles_and_wrong_options(rtx, small_net):
    twice = (*SHAPES, "--min-shapes", "x:1x3x8x8", "--max-shapes", "x:2x3x8x8")
    both = trt("build", small_net, *twice, "--json")
    assert len(both["profiles"]) == 2
    listed = json.dumps([PROFILE, {"min": "x:1x3x8x8", "max": "x:2x3x8x8"}])
    assert trt("build", small_net, "--profiles", listed, "--json")["engine"] == both["engine"]
    for args, text in (
        (("--max-shapes", "x:1x3x8x8", "--min-shapes", "x:1", "--min-shapes", "y:1"), "as often"),
        ((*SHAPES, "--precision", "fp17"), "precision"),
        ((*SHAPES, "--keep-fp32", "a"), "goes with"),
        (("--min", 3, "--max", 2), "3 is more than --max 2"),
        (("--min", 3), "3 is more than --max, which is 1"),
        (("--mean", "1,2,x"), "--mean '1,2,x' is no number"),
        ((*SHAPES, "--max", 8), "--max and the shapes both say"),
        ((*SHAPES, "--profiles", "[]"), "--profiles and the shapes both say"),
        (("--profiles", "x:1x3x8x8"), "is no JSON"),
        (("--profiles", '[{"most": "x:1x3x8x8"}]'), "profiles"),
        ((*SHAPES, "--precision", "fp16", "--keep-fp32", "nonsense*"), "matches the name of no"),
    ):
        with pytest.raises(SetupError, match=text):
            trt("build", small_net, *args)
    for command in ("bench", "profile"):  # before the device is looked for, and before a build
        with pytest.raises(SetupError, match="'foo' is no shape"):
            trt(command, small_net, *SHAPES, "--shapes", "foo")
    trt("compare", small_net, "--limit", "nan", status=2)


def test_inspect_of_a_model_and_of_a_plan(rtx, small_net, tmp_path):
    inspected = trt("inspect", small_net, "--json")
    assert inspected["operators"]["Conv"] == 1
    assert inspected["layers"][0]["name"] == "conv_0"
    assert inspected["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["n", 3, "h", "w"]}]
    settings = BuildSettings(model=small_net, profiles=(PROFILE,), optimization_level=0)
    plan = tmp_path / "it.plan"
    build_engine(settings, library=rtx, engine=plan)
    inspected = inspect_file(plan)
    assert inspected["layers_by_type"] == {
        "fp32": len([x for x in inspected["layers"] if x["precision"]])
    }
    assert any("conv_0" in layer["nodes"] for layer in inspected["layers"])
    assert trt("inspect", plan, "--html", tmp_path / "page.html")
    for asked in ({"library": "nope"}, {"device": "nope"}):  # the sidecar does not answer for these
        with pytest.raises(SetupError, match=r"cannot be inspected: .*nope"):
            inspect_file(plan, **asked)
    plan.write_bytes(plan.read_bytes()[:-1])
    with pytest.raises(SetupError, match="cannot be inspected"):
        inspect_file(plan)


def test_the_page_is_whole_by_itself_and_escapes_names(tmp_path):
    layers = [
        {"name": "<b>&1", "kind": "gemm", "precision": "fp16", "outputs": ["t fp16"]},
        {"name": "two", "kind": "gemm", "precision": "fp32", "inputs": ["t fp16"]},
    ]
    page = as_page({"kind": "plan", "file": "a<b", "layers": layers}, {"two": 1.5})
    assert "<b>&1" not in page
    assert "&lt;b&gt;&amp;1" in page
    assert not re.search(r"(src|href)=['\"](?!#)", page)
    assert "1.500 ms" in page
    assert page.count("<path ") == 1


@pytest.fixture
def half_known(save):
    """A model whose middle node TensorRT does not have."""
    return save(
        [
            ("Relu", ["x"], ["a"], {}),
            ("NoSuchOperator", ["a"], ["b"], {"domain": "acme"}),
            ("Neg", ["b"], ["y"], {}),
        ],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
        name="half_known.onnx",
    )


def test_capability_names_the_nodes_and_saves_the_parts(rtx, half_known, small_net, tmp_path):
    report = capability(half_known)
    assert not report["supported"]
    refused = {entry["node"]: entry["reason"] for entry in report["refused"]}
    assert "nosuchoperator_1" in refused
    assert refused["nosuchoperator_1"]
    assert report["parts"] == [[0]]
    assert "type of b" in refused["neg_2"]
    saved = save_parts(half_known, tmp_path / "parts", report["parts"])
    first = onnx.load(saved[0])
    assert [node.op_type for node in first.graph.node] == ["Relu"]
    assert [value.name for value in first.graph.output] == ["a"]
    assert capability(small_net)["supported"]
    printed = trt("capability", half_known, "--json", status=1)
    assert printed["refused"] == report["refused"]
    assert trt("capability", small_net, "--json")["supported"]


@pytest.mark.parametrize("name", ["inner", ""])
def test_capability_refuses_only_the_node_around_an_inner_graph(rtx, save, name):
    def branch(operator, output, **more):
        port = onnx.helper.make_tensor_value_info(output, T.FLOAT, ["n", 2])
        node = onnx.helper.make_node(operator, ["a"], [output], name, **more)
        return onnx.helper.make_graph([node], output, [], [port])

    branches = {
        "then_branch": branch("NoSuchOperator", "t", domain="acme"),
        "else_branch": branch("Neg", "e"),
    }
    path = save(
        [
            ("Relu", ["x"], ["a"], {}),
            ("If", ["flag"], ["z"], branches),
            ("Exp", ["z"], ["y"], {}),
        ],
        [("x", T.FLOAT, ["n", 2]), ("flag", T.BOOL, [])],
        [("y", T.FLOAT, ["n", 2])],
    )
    report = capability(path)
    (refused,) = report["refused"]
    assert refused["operator"] == "NoSuchOperator"
    assert not name or refused["node"] == name
    assert report["parts"] == [[0], [2]]


def test_capability_lists_what_is_refused_where_no_part_is_left_to_save(rtx, save, tmp_path):
    model = save([("NoSuch", ["x"], ["y"], {})], [("x", T.FLOAT, [2])], [("y", T.FLOAT, [2])])
    report = trt("capability", model, "--save", tmp_path / "parts", "--json", status=1)
    assert (report["saved"], [entry["node"] for entry in report["refused"]]) == ([], ["nosuch_0"])


def test_a_path_is_printed_whole_and_an_empty_batch_is_refused(rtx, save, tmp_path):
    model = save(
        [("Relu", ["x"], ["y"], {})], [("x", T.FLOAT, ["n", 2])], [("y", T.FLOAT, ["n", 2])]
    )
    target = tmp_path / ("long" * 30) / "my.plan"
    assert f"engine          {target}\n" in trt("build", model, "-o", target)
    trt("build", model, "--max", 0, status=2)


def test_a_file_that_cannot_be_written_is_told_as_json_too(small_net, tmp_path):
    main = pytest.importorskip("headrace_cli.app").app
    page = tmp_path / "nothing" / "page.html"
    args = ["trt", "inspect", str(small_net), "--html", str(page), "--json"]
    done = CliRunner().invoke(main, args)
    printed = json.loads(done.stdout)
    assert (done.exit_code, printed["ok"], printed["error"]["code"]) == (1, False, "file")
    assert str(page) in printed["error"]["message"]


def test_capability_prints_counts_and_not_every_node(rtx, save):
    nodes = [("Relu", [f"t{i}"], [f"t{i + 1}"], {}) for i in range(40)]
    model = save(nodes, [("t0", T.FLOAT, ["n", 2])], [("t40", T.FLOAT, ["n", 2])])
    printed = trt("capability", model)
    assert re.search(r"parts +1 *\n *nodes_of_parts +\[40\]", printed)
    assert "37" not in printed


def test_compare_says_which_inputs_it_cannot_read(small_net, tmp_path):
    (tmp_path / "text.npz").write_text("text")
    np.save(tmp_path / "one.npy", np.zeros((1, 3, 8, 8), np.float32))
    for name, message in (("text.npz", "holds no arrays"), ("one.npy", "is one array")):
        with pytest.raises(SetupError, match=message):
            trt("compare", small_net, "--inputs", tmp_path / name)


def test_compare_asks_for_the_shapes_that_it_cannot_know(small_net):
    with pytest.raises(SetupError, match=r"'x' \[n, 3, h, w\] has dynamic axes") as caught:
        trt("compare", small_net)
    assert "--max-shapes" in caught.value.hint
    assert "x:1x3x1x1" in caught.value.hint


def test_extract_takes_a_part_that_answers_the_same(small_net, tmp_path):
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    inner = reference(onnx.load(small_net), {"x": x}, ["r"])["r"]
    head, tail = tmp_path / "head.onnx", tmp_path / "tail.onnx"
    extract_model(small_net, head, outputs=["r"])
    assert np.allclose(onnxruntime.InferenceSession(head).run(None, {"x": x})[0], inner)
    extract_model(small_net, tail, inputs=["r"])
    (whole,) = onnxruntime.InferenceSession(small_net).run(None, {"x": x})
    assert np.allclose(onnxruntime.InferenceSession(tail).run(None, {"r": inner})[0], whole)
    with pytest.raises(SetupError, match="no tensor 'rr'"):
        extract_model(small_net, tail, inputs=["rr"])
    extracted = trt("extract", small_net, tmp_path / "cli.onnx", "--output", "c", "--json")
    assert extracted["operators"] == {"Conv": 1}


@pytest.fixture
def branching(save):
    """A model whose branches read a tensor, and weights, of the graph around them."""

    def branch(operator, *reads):
        node = onnx.helper.make_node(operator, reads, ["out"], name=f"inner_{operator.lower()}")
        return onnx.helper.make_graph([node], "b", [], [onnx.ValueInfoProto(name="out")])

    branches = {"then_branch": branch("Mul", "a", "w"), "else_branch": branch("Neg", "a")}
    return save(
        [
            ("Relu", ["x"], ["a"], {}),
            ("Greater", ["x", "zero"], ["each"], {}),
            ("Squeeze", ["each"], ["c"], {}),
            ("If", ["c"], ["i"], branches),
            ("Sigmoid", ["i"], ["y"], {}),
        ],
        [("x", T.FLOAT, [1])],
        [("y", T.FLOAT, [1])],
        [("w", np.float32([3])), ("zero", np.float32([1]))],
    )


def test_extract_and_parts_keep_what_only_branches_read(branching, tmp_path):
    x = np.float32([2])
    (whole,) = onnxruntime.InferenceSession(branching).run(None, {"x": x})
    given = {"a": np.float32([2]), "c": np.array(True)}
    for inputs, feeds in (([], {"x": x}), (["c", "a"], given), (["a", "a", "c"], given)):
        extract_model(branching, tmp_path / "part.onnx", inputs=inputs)
        part = onnxruntime.InferenceSession(tmp_path / "part.onnx")
        assert np.allclose(part.run(None, feeds)[0], whole)
    with pytest.raises(SetupError, match="needs x, which is not among its inputs"):
        extract_model(branching, tmp_path / "part.onnx", inputs=["c"])
    first, second = save_parts(branching, tmp_path / "parts", [[0, 1, 2], [3, 4]])
    made = onnxruntime.InferenceSession(first).run(["a", "c"], {"x": x})
    found = onnxruntime.InferenceSession(second).run(None, dict(zip("ac", made, strict=True)))
    assert np.allclose(found[0], whole)


def test_no_tool_writes_over_what_it_reads(small_net, tmp_path):
    model, plan, link = tmp_path / "part0.onnx", tmp_path / "a.plan", tmp_path / "link.onnx"
    model.write_bytes(small_net.read_bytes())
    plan.write_bytes(b"plan")
    link.symlink_to(model)
    os.link(model, tmp_path / "hard.onnx")
    kept = model.read_bytes()
    for target in (model, link, tmp_path / "hard.onnx", tmp_path / "x" / ".." / model.name):
        with pytest.raises(SetupError, match=r"would overwrite .*, which is the model"):
            extract_model(model, target)
    for words in (
        ("capability", model, "--save", tmp_path),
        ("inspect", link, "--html", model),
        ("profile", model, "--html", model),
        ("refit", plan, model, link),
        ("refit", plan, model, plan),
    ):
        with pytest.raises(SetupError, match="would overwrite"):
            trt(*words)
    assert (model.read_bytes(), plan.read_bytes()) == (kept, b"plan")


def test_constants_are_folded(save, tmp_path):
    path = save(
        [("Add", ["a", "b"], ["c"], {}), ("Mul", ["x", "c"], ["y"], {})],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
        [("a", np.float32([1, 2])), ("b", np.float32([3, 4]))],
    )
    folded = extract_model(path, tmp_path / "folded.onnx")
    assert [node.op_type for node in folded.graph.node] == ["Mul"]
    plain = extract_model(path, tmp_path / "plain.onnx", fold=False)
    assert len(plain.graph.node) == 2
    x = np.float32([[1, 1]])
    assert reference(folded, {"x": x})["y"].tolist() == [[4, 6]]


def test_comparing_finds_the_first_layer_that_differs(small_net):
    """The engine's place is taken by ONNX Runtime with one wrong weight."""
    model = onnx.load(small_net)
    wrong = onnx.ModelProto()
    wrong.CopyFrom(model)
    matrix = onnx.numpy_helper.to_array(wrong.graph.initializer[1]) * np.float32(1.5)
    wrong.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(matrix, "m"))

    def run_of(used):
        return lambda settings, feeds: reference(used, feeds, settings.mark_outputs)

    settings = BuildSettings(model=small_net, profiles=(PROFILE,))
    comparison = compare(settings, run=run_of(wrong))
    assert not comparison["same"]
    assert (comparison["first"]["name"], comparison["first"]["node"]) == ("y", "matmul_4")
    assert all(entry["ok"] for entry in comparison["inner"] if entry["name"] != "y")
    assert compare(settings, run=run_of(model))["same"]
    assert random_inputs(model, {"x": (4, 3, 16, 16)})["x"].shape == (4, 3, 16, 16)


def stand_in(settings, feeds):
    """ONNX Runtime in the engine's place, with the graph that TensorRT would get."""
    model = prepare_model(settings) or onnx.load(settings.model)
    return reference(model, feeds, settings.mark_outputs)


@pytest.mark.parametrize(
    "folded", [{"mean": (1, 2, 3), "std": 2}, {"image_input": True, "mean": 9}]
)
def test_comparing_folds_the_same_into_both(small_net, folded):
    shape = "1x16x16x3" if "image_input" in folded else "1x3x16x16"
    settings = BuildSettings(model=small_net, profiles=({"max": f"x:{shape}"},), **folded)
    assert compare(settings, run=stand_in)["same"]
    other = settings.with_(mean=(3, 2, 1))
    assert not compare(other, run=lambda _, feeds: stand_in(settings, feeds))["same"]


def test_comparing_leaves_constants_out_and_says_why_layers_cannot_be_compared(rtx, save):
    two = onnx.numpy_helper.from_array(np.float32([2, 2]))
    model = save(
        [
            ("Constant", [], ["c"], {"value": two}),
            ("Relu", ["c"], ["d"], {}),
            ("Mul", ["x", "d"], ["h"], {}),
            ("Relu", ["h"], ["i"], {}),
            ("Exp", ["i"], ["y"], {}),
        ],
        [("x", T.FLOAT, ["n", 2])],
        [("y", T.FLOAT, ["n", 2])],
    )
    marked = []

    def run(settings, feeds):
        marked.append(settings.mark_outputs)
        return {name: value + 1 for name, value in stand_in(settings, feeds).items()}

    comparison = compare(BuildSettings(model=model), run=run)
    assert (marked, comparison["first"]["node"]) == ([(), ("h", "i")], "mul_2")
    build_engine(BuildSettings(model=model, mark_outputs=marked[1], optimization_level=0))

    def fails(settings, feeds):
        if settings.mark_outputs:
            raise SetupError("no memory for that")
        return run(settings, feeds)

    comparison = compare(BuildSettings(model=model), run=fails)
    assert comparison["first"] is None
    assert comparison["note"] == "layers cannot be compared: no memory for that"


def test_comparing_draws_what_a_profile_tells(save):
    model = save(
        [("Expand", ["x", "size"], ["e"], {}), ("Mul", ["e", "m"], ["y"], {})],
        [("x", T.FLOAT, ["n", 1]), ("size", T.INT64, [2]), ("m", T.FLOAT, ["n", 1])],
        [("y", T.FLOAT, ["n", "k"])],
    )
    drawn = []

    def run(settings, feeds):
        drawn.append(feeds)
        return stand_in(settings, feeds)

    profile = {"opt": "x:2x1,size:1x4", "max": "x:2x1,size:1x8", "min": "x:2x1,size:1x1"}
    assert compare(BuildSettings(model=model, profiles=(profile,)), run=run)["same"]
    (feeds,) = drawn
    assert feeds["size"].tolist() == [1, 4]
    assert feeds["x"].shape == feeds["m"].shape == (2, 1)


def test_tools_keep_and_load_engines_as_they_are_told(small_net, tmp_path, monkeypatch):
    asked = []

    def engine_of_settings(settings, **where):
        asked.append(where)
        raise SetupError("enough")

    monkeypatch.setattr("headrace_trt.tools.opening.engine_of_settings", engine_of_settings)
    where = ("--cache-dir", tmp_path, "--weight-streaming-bytes", 5, "--device", "cuda:1")
    for command in ("bench", "profile", "compare"):
        with pytest.raises(SetupError, match="enough"):
            trt(command, small_net, *SHAPES, *where)
        found = asked.pop()
        assert (found["cache_dir"], found["weight_streaming_bytes"]) == (tmp_path, 5)
        assert found["device"] == "cuda:1"
    for words in (("fix", small_net, "f"), ("bisect", small_net, small_net, small_net)):
        done = CliRunner().invoke(app, ["tactics", *map(str, words), "--tactics", "other"])
        assert (done.exit_code, "No such option" in done.output) == (2, True)


def test_options_for_plans_are_refused_for_models(small_net):
    for options in (["--library", "tensorrt_rtx"], ["--device", "cuda:0"], ["--trust-engine"]):
        with pytest.raises(SetupError, match=f"is no plan: {options[0]} says"):
            trt("inspect", small_net, *options)
    for command in ("bench", "profile"):
        with pytest.raises(SetupError, match="is no plan: --trust-engine says"):
            trt(command, small_net, *SHAPES, "--trust-engine")


def test_a_library_of_another_name_is_never_imported(small_net, rtx):
    with pytest.raises(SetupError, match="there is no TensorRT named 'os'") as caught:
        trt("capability", small_net, "--library", "os")
    assert "tensorrt_rtx" in caught.value.hint


def test_differences_of_nan_shape_and_zero():
    nan = float("nan")
    found = differences(
        {"a": [1.0, nan], "b": [1.0, 2.0], "c": [[1.0]], "d": [0.0], "e": [nan]},
        {"a": [1.0, nan], "b": [1.0, 2.1], "c": [1.0], "d": [0.0], "e": [1.0]},
        limit=1e-3,
    )
    assert [entry.ok for entry in found] == [True, False, False, True, False]
    assert found[1].relative == pytest.approx(0.1 / 2.1)


@pytest.mark.parametrize("name", ["it.plan", "IT.PLAN", "it.Engine"])
def test_a_plan_is_known_by_its_suffix_in_any_case(tmp_path, name):
    (tmp_path / name).write_bytes(b"not from here")
    with pytest.raises(SetupError, match="cannot be inspected"):
        inspect_file(tmp_path / name)


def test_files_of_tactics(tmp_path):
    path = tmp_path / "tactics.json"
    with pytest.raises(SetupError, match="no file"):
        show_tactics(path)
    TacticFile("tensorrt 10.6", {"conv": "0x1:0x2", "fc": "0x3:0x4"}).write(path)
    assert show_tactics(path)["chosen"] == {"conv": "0x1:0x2", "fc": "0x3:0x4"}
    excluded = exclude_tactics(path, ["0x9:0x9"])
    assert excluded["chosen"], "what nobody chose was excluded: the choice stays"
    excluded = exclude_tactics(path, ["conv", "fc@0x7:0x7"])
    assert excluded["excluded"] == ["0x9:0x9", "conv@0x1:0x2", "fc@0x7:0x7"]
    assert excluded["chosen"] == {}, "a file with a hole is recorded anew"
    with pytest.raises(SetupError, match="neither a layer"):
        exclude_tactics(path, ["nonsense"])
    assert trt("tactics", "show", path, "--json")["library"] == "tensorrt 10.6"
    path.write_text("{}")
    with pytest.raises(SetupError, match="no file of tactics"):
        read_tactics(path)


def test_functions_take_a_path_as_text(rtx, small_net, tmp_path):
    model, part, tactics = str(small_net), str(tmp_path / "part.onnx"), str(tmp_path / "tactics")
    assert inspect_file(model)["nodes"] == 5
    extract_model(model, part, outputs=["r"], fold=False)
    assert save_parts(part, str(tmp_path / "parts"), capability(part)["parts"])
    plan = build_engine(BuildSettings(model=part, profiles=[PROFILE]), engine=f"{part}.plan").path
    assert inspect_file(str(plan))["source"] == "sidecar"
    with pytest.raises(SetupError, match="overwrite"):
        refit_plan(str(plan), model, str(plan))
    assert exclude_tactics(tactics, ["0x9:0x9"]) == show_tactics(tactics)


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
        (lambda: BuildSettings(network=5), ValueError, "network must be package.module:function"),
        (lambda: quantize(model, "fp15", tmp_path), ValueError, "int8, fp8, not 'fp15'"),
        (lambda: inspect_file(None), TypeError, "NoneType"),
        (lambda: compare(None, run=None, limit=float("nan")), ValueError, "limit is at least 0"),
        (
            lambda: extract_model(small_net, tmp_path / "m", outputs="y"),
            TypeError,
            "lists of names",
        ),
        (lambda: random_inputs(model, {"z": [1]}), SetupError, "names input 'z'"),
        (lambda: show_tactics(tmp_path), SetupError, "no file of tactics"),
    ):
        with pytest.raises(error, match=text):
            wrong()


class _Selector:
    def __init__(self):
        pass


def _choice(implementation, tactic, vectorized=-1):
    variant = SimpleNamespace(implementation=implementation, tactic=tactic)
    float32 = SimpleNamespace(name="FLOAT")
    info = SimpleNamespace(
        dtype=float32, strides=(9, 1), vectorized_dim=vectorized, components_per_element=1
    )
    return SimpleNamespace(
        algorithm_variant=variant, get_algorithm_io_info=[info, info].__getitem__
    )


def _context(name):
    return SimpleNamespace(name=name, num_inputs=1, num_outputs=1)


class _WithSelector:
    """A library with an algorithm selector, and a builder that asks it about two layers."""

    name, version, text, is_rtx = "fake", "1", "fake 1", False

    def __init__(self):
        self.trt = SimpleNamespace(IAlgorithmSelector=_Selector)

    def has(self, path):
        return path == "IAlgorithmSelector"

    def build(self, config):
        choices = [_choice(1, 1), _choice(2, -1), _choice(3, 3)]
        contexts = [_context("conv"), _context("fc")]
        taken = []
        for context in contexts:
            allowed = config.algorithm_selector.select_algorithms(context, choices)
            if not allowed:
                raise SetupError("Could not find any implementation for node conv.")
            taken.append(choices[allowed[-1]])
        config.algorithm_selector.report_algorithms(contexts, taken)
        return [choice.algorithm_variant.implementation for choice in taken]


def test_tactics_are_recorded_replayed_and_excluded(tmp_path):
    library, path = _WithSelector(), tmp_path / "tactics.json"

    def build():
        config = SimpleNamespace()
        with using_tactics(library, config, path):
            return library.build(config)

    assert build() == [3, 3]
    assert read_tactics(path).chosen == {"conv": "0x3:0x3", "fc": "0x3:0x3"}
    TacticFile("fake 1", {"conv": "0x2:0xffffffffffffffff", "fc": "0x1:0x1"}).write(path)
    assert build() == [2, 1]
    exclude_tactics(path, ["conv", "0x3:0x3"])
    assert build() == [1, 2]
    assert build() == [1, 2]
    TacticFile("fake 1", {"conv": "0x8:0x8"}).write(path)
    with pytest.raises(SetupError, match="'conv' needs 0x8:0x8"):
        build()
    TacticFile("fake 0", {"conv": "0x1:0x1"}).write(path)
    with pytest.raises(SetupError, match="was recorded by fake 0"):
        build()


def test_profiles_and_formats_are_told_apart(tmp_path):
    """Every profile chooses for every layer, and a tactic is offered once per format."""

    class TwoProfiles(_WithSelector):
        takes = ((0, 1), (2, 0))

        def build(self, config):
            selector, taken = config.algorithm_selector, []
            for profile in (0, 1):
                choices = [_choice(1, 1), _choice(2, 2), _choice(2, 2, vectorized=1)]
                contexts = [_context("conv"), _context("fc")]
                found = []
                for context, wish in zip(contexts, self.takes[profile], strict=True):
                    allowed = selector.select_algorithms(context, choices)
                    found.append(wish if wish in allowed else allowed[0])
                selector.report_algorithms(contexts, [choices[i] for i in found])
                taken.append(tuple(found))
            return tuple(taken)

    library, path = TwoProfiles(), tmp_path / "tactics.json"

    def build():
        config = SimpleNamespace()
        with using_tactics(library, config, path):
            return library.build(config)

    assert build() == ((0, 1), (2, 0))
    assert read_tactics(path).chosen["conv [profile 1]"] == "0x2:0x2"
    library.takes = ((2, 2), (0, 1))
    assert build() == ((0, 1), (2, 0)), "what was recorded is built, whatever is liked now"
    held = read_tactics(path)
    TacticFile(held.library, held.chosen).write(path)  # written before formats were
    assert build() == ((0, 2), (1, 0))


def test_a_choice_needs_a_builder_that_compares(tmp_path):
    path = tmp_path / "tactics.json"
    with (
        pytest.raises(SetupError, match="first kernel that runs"),
        using_tactics(_WithSelector(), SimpleNamespace(), path, optimization_level=0),
    ):
        pass
    with (
        pytest.raises(SetupError, match=r"with a choice of tactics .*Could not find any") as caught,
        using_tactics(_WithSelector(), SimpleNamespace(), path, optimization_level=1),
    ):
        raise SetupError("it could not build: Could not find any implementation for node conv")
    assert "TensorRT 10.8" in str(caught.value)
    assert not path.exists()


def test_layers_without_a_choice_are_the_library_s_and_excluded_choices_an_error(tmp_path):
    """TensorRT offers nothing to choose from for some layers, and then takes what it wants."""

    class OwnMind(_WithSelector):
        taken = 3

        def build(self, config):
            selector, conv = config.algorithm_selector, _context("conv")
            assert selector.select_algorithms(conv, []) == []
            selector.report_algorithms([conv], [_choice(self.taken, 3)])

    library, path = OwnMind(), tmp_path / "tactics.json"

    config = SimpleNamespace()
    with using_tactics(library, config, path):
        library.build(config)
    assert read_tactics(path).chosen == {"conv": "0x3:0x3"}
    with using_tactics(library, config, path):
        library.build(config)
    library.taken = 4
    with (
        pytest.raises(SetupError, match="'conv' was built with 0x4:0x3, not 0x3:0x3"),
        using_tactics(library, config, path),
    ):
        library.build(config)
    TacticFile("fake 1", {}, ["conv@0x4:0x3"]).write(path)
    with (
        pytest.raises(SetupError, match="'conv' was built with 0x4:0x3, which is excluded"),
        using_tactics(library, config, path),
    ):
        library.build(config)
    assert read_tactics(path).chosen == {}


def test_a_file_of_tactics_that_is_a_timing_cache_takes_the_place_of_another(tmp_path):
    class Editable(_WithSelector):
        def has(self, path):
            return path == "BuilderFlag.EDITABLE_TIMING_CACHE"

    with (
        pytest.raises(SetupError, match="both are a timing cache"),
        using_tactics(Editable(), SimpleNamespace(), tmp_path / "tactics", timed=True),
    ):
        pass


@pytest.mark.parametrize("wrong", [{"c"}, {"a", "f"}, {"h"}])
def test_bisecting_finds_the_layers_that_are_wrong(wrong):
    layers = "abcdefgh"
    good = TacticFile("x", dict.fromkeys(layers, "0x1:0x1"))
    bad = TacticFile("x", {**dict.fromkeys(layers, "0x2:0x2"), "b": "0x1:0x1"})
    asked = []

    def is_wrong(mixed):
        asked.append(1)
        return all(mixed.chosen[layer] == "0x2:0x2" for layer in wrong)

    assert set(bisect_tactics(good, bad, is_wrong)) == wrong
    assert len(asked) < 40
    with pytest.raises(SetupError, match="the same"):
        bisect_tactics(good, good, is_wrong)
    with pytest.raises(SetupError, match="are right"):
        bisect_tactics(good, bad, lambda mixed: False)


def test_bisecting_builds_each_mixture_once(small_net, tmp_path, monkeypatch):
    """Another build, with inner tensors as outputs, has other layers, which files of tactics do not fit."""
    layers = ("a", "b", "c")
    TacticFile("x", dict.fromkeys(layers, "0x1:0x1")).write(tmp_path / "good")
    TacticFile("x", dict.fromkeys(layers, "0x2:0x2")).write(tmp_path / "bad")

    def run(settings, feeds, **where):
        assert not settings.mark_outputs
        wrong = read_tactics(settings.tactics).chosen["b"] == "0x2:0x2"
        return {name: value + wrong for name, value in stand_in(settings, feeds).items()}

    monkeypatch.setattr("headrace_trt.tools.comparing.run_built", run)
    files = (tmp_path / "good", tmp_path / "bad")
    found = trt("tactics", "bisect", small_net, *files, *SHAPES, "--json")
    assert found == {"wrong": {"b": "0x2:0x2"}}


def test_help_names_the_choices():
    text = CliRunner().invoke(app, ["build", "--help"], terminal_width=200).output
    assert "--precision model|fp16|bf16|int8|fp8" in text
    assert "--verbosity detailed|layer_names_only|none" in text


@pytest.mark.parametrize("words", [[], ["build"], ["tactics"], ["tactics", "show"]])
def test_every_command_takes_h_for_help(words):
    short, long = (CliRunner().invoke(app, [*words, flag]) for flag in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.stdout == long.stdout
