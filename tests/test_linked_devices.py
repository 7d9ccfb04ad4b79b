"""Arrays that come to a backend on a device on which it takes none are refused before anything is built."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import headrace
from headrace.errors import ConfigError, Problem
from headrace_cli.app import app
from headrace_tensors.devices import Devices, check_devices

KEPT = {"output_device": "device"}


class Anywhere(headrace.Backend):
    """Say nothing of devices."""

    def forward(self, batch):
        """Hand on the data."""
        for request in batch:
            request["result"] = request["data"]


@pytest.fixture(autouse=True)
def model(tmp_path, monkeypatch):
    """A file in the place of a model, which nobody reads."""
    (tmp_path / "net.onnx").write_bytes(b"onnx")
    monkeypatch.chdir(tmp_path)
    headrace.register("Anywhere", Anywhere, replace=True)


def node(backend, device, **keys):
    """Return a node; a device of None is left out."""
    keys["backend"] = backend
    if device is not None:
        keys["device"] = device
    if "TorchModule" in backend:
        keys["TorchModule::module"] = "torch.nn:ReLU"
    if "Onnx" in backend or "Tensorrt" in backend:
        keys["model"] = "net.onnx"
    return keys


def linked(first, second, **link):
    """Return two nodes, the second after the first."""
    return {"a": {**first, "next": "b"}, "b": {**second, **link}}


def problems(config):
    try:
        headrace.PipelineConfig.load(config)
    except ConfigError as error:
        return list(error.problems)
    return []


FIRST, OTHER = "cuda:0", "cuda:1"
REFUSED = [
    (node("TorchModule", FIRST), node("TorchModule", OTHER), "TorchModule TorchModule"),
    (node("TorchModule", FIRST), node("TorchModule", None), "TorchModule TorchModule"),
    (node("S[TorchModule,SoftmaxTensor]", "CUDA"), node("SoftmaxTensor", OTHER), "Softmax Softmax"),
    (node("S[GpuTensor,SoftmaxTensor]", None), node("SoftmaxTensor", None), "Softmax Softmax"),
    (node("S[TorchModule,Identity]", FIRST), node("S[Identity,TorchModule]", OTHER), "Torch Torch"),
    (node("SyncTensor[TorchModule]", FIRST), node("StreamPool[TorchModule]", OTHER), "Torch Torch"),
    (node("TorchModule", FIRST), node("OnnxTensor", OTHER), "TorchModule OnnxTensor"),
    (node("TorchModule", FIRST), node("OnnxTensor", OTHER, inputs={"x": "data"}), "Torch Onnx"),
    (node("TorchModule", FIRST), node("OnnxTensor", None), "TorchModule OnnxTensor"),
    (node("TorchModule", OTHER), node("TensorrtTensor", None), "TorchModule TensorrtCat"),
    (node("OnnxTensor", FIRST, **KEPT), node("TorchModule", OTHER), "OnnxTensor TorchModule"),
    (node("OnnxTensor", FIRST, **KEPT), node("OnnxTensor", OTHER), "OnnxTensor OnnxTensor"),
    (node("TensorrtTensor", None, **KEPT), node("OnnxTensor", OTHER), "TensorrtInfer OnnxTensor"),
    (node("OnnxTensor", FIRST), node("SoftmaxTensor", FIRST), "OnnxTensor SoftmaxTensor"),
]
"""Two nodes, and the elements that leave arrays where the next takes none."""

ACCEPTED = [
    (node("TorchModule", "cuda"), node("SoftmaxTensor", FIRST)),
    (node("TorchModule", FIRST), node("S[GpuTensor,TorchModule]", OTHER)),
    (node("TorchModule", FIRST), node("S[FixTensor,TorchModule]", OTHER)),
    (node("S[TorchModule,CpuTensor]", FIRST), node("TorchModule", OTHER)),
    (node("S[TorchModule,CpuTensor]", FIRST), node("OnnxTensor", None)),
    (node("OnnxTensor", FIRST), node("OnnxTensor", OTHER)),
    (node("OnnxTensor", FIRST), node("TorchModule", OTHER)),
    (node("OnnxTensor", None, **KEPT), node("SoftmaxTensor", None)),
    (node("TensorrtTensor", FIRST), node("TensorrtTensor", OTHER)),
    (node("TensorrtTensor", None, **KEPT), node("SoftmaxTensor", FIRST)),
    (node("S[TorchModule,Anywhere]", FIRST), node("TorchModule", OTHER)),
    (node("TorchModule", FIRST), node("S[Anywhere,TorchModule]", OTHER)),
    (node("SoftmaxTensor", None), node("S[SoftmaxTensor,OnnxTensor]", None)),
    # it reads another key
    (node("TorchModule", FIRST), node("OnnxTensor", OTHER, inputs={"x": "image"})),
    # options of the provider decide, and not the node's device
    (node("TorchModule", FIRST), node("OnnxTensor", None, providers=["cuda"])),
    (
        node("TorchModule", FIRST),
        node("OnnxTensor", OTHER, provider_options={"cuda": {"device_id": 0}}),
    ),
]


@pytest.mark.parametrize(("first", "second", "named"), REFUSED)
def test_arrays_on_another_device_are_refused(first, second, named):
    (problem,) = problems(linked(first, second))
    giver, taker = named.split()
    assert problem.code == "devices"
    assert problem.path.partition(".")[0] == "b"
    assert problem.message.startswith(taker)
    takes, leaves = problem.message.split(" and ")
    assert "cpu or cpu" not in takes
    assert "of node 'b'" in takes
    assert leaves.startswith(giver)
    assert "of node 'a'" in leaves
    for word in ("GpuTensor", "CpuTensor", "output_device", "one device"):
        assert word in problem.hint


@pytest.mark.parametrize(("first", "second"), ACCEPTED)
def test_arrays_that_are_moved_or_taken_are_not(first, second):
    assert problems(linked(first, second)) == []


APART = node("TorchModule", FIRST), node("TorchModule", OTHER)


@pytest.mark.parametrize(
    ("link", "refused"),
    [
        ({"map": "a[result:data]"}, True),
        ({"map": {"a": {"result": ["mask", "data"]}}}, True),
        ({"map": "a[data:data,result:mask]"}, False),
        ({"each": "data:data"}, True),
        ({"each": "boxes:data"}, False),
        ({"map": "a[result:boxes,data:data]", "each": "boxes:data"}, True),
        ({"or": True}, False),
    ],
)
def test_data_are_followed_along_each_kind_of_link(link, refused):
    assert [problem.code for problem in problems(linked(*APART, **link))] == ["devices"] * refused


@pytest.mark.parametrize(
    ("a", "b", "wrong"),
    [
        ([FIRST, OTHER], [FIRST, OTHER], [FIRST, OTHER]),
        ([FIRST, OTHER], FIRST, [OTHER]),
        ([FIRST, FIRST], FIRST, []),
    ],
)
def test_any_instance_may_get_what_any_other_leaves(a, b, wrong):
    nodes = linked(*(node("TorchModule", devices, instance_num=2) for devices in (a, b)))
    messages = [problem.message for problem in problems(nodes)]
    assert sorted(message.split(" leaves them on ")[1][:6] for message in messages) == wrong
    nodes["a"]["instance_num"] = 1  # only the first device of a list is used
    assert len(problems(nodes)) == (isinstance(b, list))


def test_an_alias_takes_what_its_node_takes():
    first, second = APART
    nodes = {**linked(first, {"backend": "Forward[node.c]"}), "c": second}
    (problem,) = problems(nodes)
    assert "TorchModule of node 'b' takes arrays on cuda:1" in problem.message
    assert problems({**nodes, "c": first}) == []


def test_arrays_are_followed_inside_of_an_expression():
    config = node("CatSplit[S[FixTensor,CatTensor],OnnxTensor,SplitTensor]", OTHER)
    (problem,) = problems(config)
    assert "SplitTensor" in problem.message
    assert "on cpu" in problem.message
    assert problems({**config, **KEPT}) == []
    assert problems({**config, "device": "cpu"}) == []


def test_check_prints_it_and_a_pipeline_raises_it(tmp_path):
    lines = ['[a]\nbackend = "SoftmaxTensor"\ndevice = "cuda:0"\nnext = "b"\n']
    lines += ['[b]\nbackend = "SoftmaxTensor"\ndevice = "cuda:1"\n']
    file = tmp_path / "line.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    done = CliRunner().invoke(app, ["check", str(file), "--json"])
    assert done.exit_code == 2
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["code"], problem["path"], problem["line"]) == ("devices", "b.device", 8)
    with pytest.raises(ConfigError, match=r"cuda:1.*cuda:0"):
        headrace.pipe(file)


def test_a_class_of_others_says_what_it_takes_and_gives():
    class Elsewhere(Anywhere):
        """Take arrays of the host, and leave them on a device of another kind."""

        check_pipeline = staticmethod(check_devices)

        @staticmethod
        def devices(options, context):
            return Devices(("cpu",), "npu:0")

    headrace.register("Elsewhere", Elsewhere, replace=True)
    assert [problem.code for problem in problems({"backend": "S[Elsewhere,Elsewhere]"})] == [
        "devices"
    ]
    assert problems({"backend": "S[Elsewhere,Anywhere,Elsewhere]"}) == []


def test_a_check_of_the_whole_pipeline_is_called_once():
    seen = []

    def check(config):
        seen.append(config.nodes)
        if "b" in config.nodes:
            raise ConfigError(Problem("no", "there is a node b", path="b"))

    headrace.register(
        "Once", type("Once", (Anywhere,), {"check_pipeline": staticmethod(check)}), replace=True
    )
    headrace.register(
        "Again", type("Again", (Anywhere,), {"check_pipeline": staticmethod(check)}), replace=True
    )
    assert problems({"a": {"backend": "S[Once,Again]"}}) == []
    assert seen == [("a",)]
    (problem,) = problems({"a": {"backend": "Once"}, "b": {"backend": "Again"}})
    assert problem.code == "no"
