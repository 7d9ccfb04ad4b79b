"""Without torch: names are listed, configurations are checked and explained, nothing is imported."""

import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

import headrace
from headrace.errors import ConfigError

pytestmark = pytest.mark.first(
    "run torch modules: checked and explained where torch is not installed"
)

ROOT = Path(__file__).parent.parent
WORDS = sorted(
    entry.name
    for entry in distribution("headrace-torch").entry_points
    if entry.group == "headrace.backends"
)
BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "torchvision"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Block())
"""


def run(code, *args, **where):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKED + code, *args],
        capture_output=True,
        text=True,
        check=False,
        **where,
    )


def command(*args, **where):
    return run("from headrace.__main__ import main; sys.exit(main())", *args, **where)


EXPRESSION = (
    "S[DecodeTensor,ResizeTensor(256),CropTensor,CvtColorTensor(rgb),NormalizeTensor,PadTensor(8,8),"
    "FixTensor,TorchModule,SoftmaxTensor,TopKTensor(5),IndexSelectTensor([1]),ArgMaxTensor,SyncTensor,"
    "GpuTensor,ContiguousTensor,CatTensor,SplitTensor,StreamPool(max=2)[SoftmaxTensor],CpuTensor]"
)


def test_every_word_is_checked_and_explained_without_torch(tmp_path):
    (tmp_path / "net.pt2").write_bytes(b"")
    config = {"backend": EXPRESSION, "model": "net.pt2", "device": "cuda:7", "max": 8}
    code = f"import headrace; print(headrace.explain({config!r})['nodes']['main']['owns_thread'])"
    done = run(code, cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_the_expression_above_names_every_word():
    assert set(WORDS) <= set(re.findall(r"\w+", EXPRESSION))


def test_the_commands_check_and_plugins_load_no_torch(tmp_path):
    (tmp_path / "line.toml").write_text('backend = "S[GpuTensor,SoftmaxTensor]"\ndevice = "cuda"\n')
    done = command("check", str(tmp_path / "line.toml"))
    assert done.returncode == 0, done.stderr
    listed = command("plugins", "list", "--json")
    assert "headrace-torch" in listed.stdout, listed.stderr
    info = command("plugins", "info", "headrace-torch", "--json")
    assert info.returncode == 0, info.stderr
    assert {one["name"] for one in json.loads(info.stdout)["backends"]} == set(WORDS)


def test_building_without_torch_names_it():
    done = run("import headrace; headrace.pipe({'backend': 'ArgMaxTensor'})")
    assert "MissingDependencyError" in done.stderr
    assert "torch" in done.stderr


@pytest.mark.parametrize(
    ("backend", "problem"),
    [
        ("ResizeTensor", "resize_h"),
        ("ResizeTensor(8,8,size_key=hw)", "size_key"),
        ("ResizeTensor(8,8,interpolation=nearest,antialias=true)", "antialias"),
        ("CropTensor(crop_h=8)", "go together"),
        ("CropTensor(box=[0,0,1,1],crop_h=8,crop_w=8)", "two boxes"),
        ("PadTensor", "multiple"),
        ("PadTensor(8)", "go together"),
        ("NormalizeTensor(std=0)", "std: it must not be 0"),
        ("CropTensor(box=[5,5,1,9])", "holds no pixel"),
        ("CropTensor(box=[5,5,5.4,9])", "holds no pixel"),
        ("CropTensor(box=[-5,-5,0,3])", "holds no pixel"),
        ("CropTensor(box=[-1,0,5,5],outside=refuse)", "leaves every image"),
        ("CropTensor(box=[0,-9,40000,5],outside=fill)", "a side above"),
        ("CropTensor(outside=fill,fill_value=[1,2])", "1, 3 or 4 channels"),
        ("PadTensor(8,8,fill_value=[1,2])", "1, 3 or 4 channels"),
        ("PadTensor(8,8,pad_value=1)", "fill_value"),
        ("NormalizeTensor(mean=[1,2,3],std=[1,2,3,4])", "one value per channel"),
        ("NormalizeTensor(std=[1,1e-300,1])", "too large for float32"),
        ("NormalizeTensor(scale=1e300)", "too large for float32"),
        ("NormalizeTensor(mean=[1,1,1e38],std=0.1)", "too large for float32"),
        ("IndexSelectTensor(index=[9223372036854775808])", "less than or equal"),
        ("TopKTensor(9223372036854775808)", "less than or equal"),
        ("TopKTensor(0)", "greater than or equal to 1"),
        ("IndexSelectTensor", "either index or key"),
        ("TorchModule", "either model or module"),
        ("TorchModule(module='a:b',model='README.md')", "either model or module"),
        ("TorchModule(module='torchvision.models')", "package.mod:factory"),
        ("TorchModule(module='nowhere.py:make')", "no such file"),
        ("TorchModule(module='a:b',shape='3x')", "3x224x224"),
        ("TorchModule(module='a:b',outputs=[x,x])", "is listed twice"),
        ("TorchModule(module='a:b',cuda_graph=true,compile='reduce-overhead')", "of its own"),
        ("TorchModule(module='a:b',cuda_graph=true,ragged=pad)", "one shape"),
        ("TorchModule(module='a:b',compile=fast)", "compile"),
        ("StreamPool(0)[ArgMaxTensor]", "greater than or equal to 1"),
        ("DecodeTensor(on_unsupported=skip)", "on_unsupported"),
    ],
)
def test_options_that_cannot_be_are_refused_before_anything_is_built(backend, problem):
    with pytest.raises(ConfigError, match=problem):
        headrace.PipelineConfig.load({"backend": backend})


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes_whose_graphs_belong_to_one_thread_take_one_instance(mode):
    backend = f"TorchModule(module='a:b',compile={mode})"
    headrace.PipelineConfig.load({"backend": backend})
    with pytest.raises(ConfigError, match="instance_num = 1"):
        headrace.PipelineConfig.load({"backend": f"S[Identity,{backend}]", "instance_num": 2})


def test_boxes_and_norms_at_the_edge_of_what_can_work_are_taken():
    for backend in (
        "CropTensor(box=[-5,-5,0.5,1])",
        "CropTensor(box=[0,0,40000,5],outside=fill)",  # an image may be that large
        "CropTensor(box=[0,0,9,9],outside=refuse)",
        "NormalizeTensor(mean=[0,1,2],std=1e-30)",
        "NormalizeTensor(scale=0)",
    ):
        headrace.PipelineConfig.load({"backend": backend})


def test_shapes_of_several_inputs_need_the_name_of_the_one_that_is_fixed():
    config = {"backend": "FixTensor", "shape": {"a": "3", "b": "4"}}
    with pytest.raises(ConfigError, match="in `input`"):
        headrace.PipelineConfig.load(config)
    headrace.PipelineConfig.load({**config, "input": "b"})


def test_a_file_in_module_is_relative_to_the_configuration(tmp_path):
    (tmp_path / "net.py").write_text("")
    (tmp_path / "line.toml").write_text("backend = \"TorchModule(module='net.py:make')\"\n")
    options = headrace.explain(str(tmp_path / "line.toml"))
    assert f"{tmp_path}/net.py:make" in json.dumps(options)


README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_names_every_backend():
    table = README.partition("## Backends")[2].partition("## Devices")[0]
    assert set(WORDS) <= set(re.findall(r"`(\w+)`", table))


def test_a_request_with_arrays_of_the_host_enters_without_torch():
    program = """
import sys
import numpy as np
from headrace_torch.backends.geometry import PadTensor
from headrace_torch.backends.module import TorchModule
request = {"data": np.zeros(3), "list": [np.zeros(3), 1, "text"], "table": {"x": np.zeros(3)}}
print(TorchModule.enter(request), PadTensor.enter({"data": b"bytes"}), "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["None", "None", "False"]


def test_a_bare_file_is_a_configuration_without_torch(tmp_path):
    (tmp_path / "cost $1.pt2").write_bytes(b"PK\x03\x04")
    code = (
        "import json, sys, headrace; found = headrace.explain(sys.argv[1])['nodes']['main'];"
        "print(json.dumps([found['range'], found['tree']['options']['model']['value']]))"
    )
    done = run(code, str(tmp_path / "cost $1.pt2"))
    assert json.loads(done.stdout) == [[1, 1], str(tmp_path / "cost $1.pt2")], done.stderr
