"""explain and describe: what a configuration asks for, and what was really built."""

from __future__ import annotations

import enum
import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from loading import python
from pydantic import BaseModel

import headrace


class Many(headrace.Backend):
    class Options(headrace.Options):
        a: int = 0
        b: int = 0
        c: int = 0
        d: int = 0
        e: int = 0

    max = 8

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]

    def describe(self):
        return {"provider": "cpu"}


@pytest.fixture(autouse=True)
def backends(nothing_registered):
    headrace.register(Many)


SOURCE = {
    "global": {"c": 3, "threads": 8},
    "n": {"backend": "S[Identity,Many(a=1)]", "b": 2, "instance_num": 2, "max": 16},
}


def test_explain_shows_each_option_with_its_origin():
    tree = headrace.explain(SOURCE)["nodes"]["n"]["tree"]
    many = tree["children"][1]
    assert many["name"] == "Many"
    assert many["options"] == {
        "a": {"value": 1, "origin": "inline"},
        "b": {"value": 2, "origin": "node"},
        "c": {"value": 3, "origin": "global"},
        "d": {"value": 0, "origin": "default"},
        "e": {"value": 0, "origin": "default"},
    }


def test_explain_shows_ranges_threads_and_who_brings_what():
    found = headrace.explain(SOURCE)
    node = found["nodes"]["n"]
    assert (node["range"], node["instance_num"], node["threads"]) == ([1, 8], 2, 4)
    assert node["keys"]["max"] == {"value": 16, "origin": "node"}
    assert node["run_by"] == "caller"
    assert "headrace" in [asked["distribution"] for asked in found["asks_for"]]
    assert json.loads(json.dumps(found)) == found


class Few(headrace.Backend):
    max = 4
    forward = Many.forward


@pytest.mark.parametrize(
    ("entry", "most", "owned"),
    [
        ("S[Few,Reflect[many]]", 4, False),
        ("S[Reflect[other],Reflect[many]]", 4, False),
        ("BackgroundThread[S[Few,Reflect[many]]]", 4, True),
        ("CatSplit[Identity,Reflect[many],Identity]", 8, False),
        ("IoC[Few;Reflect[owned]]", 4, True),
        ("IoC[Few;BackgroundThread[S[Few,Reflect[many]]]]", 4, True),
    ],
)
def test_explain_and_describe_agree_about_what_runs_the_batches(entry, most, owned):
    headrace.register("Few", Few, replace=True)
    headrace.register("Owner", type("Owner", (Few,), {"owns_thread": True}), replace=True)
    texts = {"other": "Few", "owned": "S[Owner,Identity]", "many": "S[Many,Identity]"}
    keys = {"max": 16, **{key: text for key, text in texts.items() if key in entry}}
    config = {"n": {"backend": entry, **keys}}
    explained = headrace.explain(config)["nodes"]["n"]
    with headrace.pipe(config) as pipe:
        described = pipe.describe()["nodes"]["n"]
    assert (explained["range"], explained["owns_thread"]) == ([1, most], owned)
    assert [described[key] for key in ("range", "owns_thread")] == [[1, most], owned]
    assert explained["expression"] == described["expression"]


@pytest.mark.parametrize(
    ("said", "usable", "there", "count"),
    [("5", 3, 8, 5), ("0", 3, 8, 3), ("default", 3, 8, 3), ("x", None, 8, 8), ("", None, None, 1)],
)
def test_the_threads_are_as_many_as_the_usable_cpus(monkeypatch, said, usable, there, count):
    monkeypatch.setenv("PYTHON_CPU_COUNT", said)
    monkeypatch.setattr("os.cpu_count", lambda: there)
    if usable is None:  # there is no such function on macOS and Windows
        monkeypatch.delattr("os.sched_getaffinity", raising=False)
    else:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(usable)}, raising=False)
    assert headrace.explain({"backend": "Identity"})["threads"] == count


def in_groups(monkeypatch, root, files):
    """Have the files of control groups read from a folder, as in a container."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    read = Path.read_text

    def below(path, *args, **how):
        if path.parts[:2] in [("/", "proc"), ("/", "sys")]:
            path = root.joinpath(*path.parts[1:])
        return read(path, *args, **how)

    monkeypatch.setattr(Path, "read_text", below)
    monkeypatch.delenv("PYTHON_CPU_COUNT", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(16)}, raising=False)


GROUP, V1 = "proc/self/cgroup", "3:cpu,cpuacct:/docker/ab\n2:cpuset:/docker/ab\n"
V1_ROOT = "sys/fs/cgroup/cpu"
QUOTA, PERIOD = "cpu.cfs_quota_us", "cpu.cfs_period_us"


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 16),
        ({GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 3),
        ({GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "5000 100000\n"}, 1),
        ({GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "9000000 100000\n"}, 16),
        ({GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
        ({GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "nonsense\n"}, 16),
        ({GROUP: "0::/a/b.scope\n", "sys/fs/cgroup/a/b.scope/cpu.max": "300000 50000\n"}, 6),
        (
            {
                GROUP: "0::/a/b\n",
                "sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
                "sys/fs/cgroup/a/cpu.max": "400000 100000\n",
            },
            4,
        ),
        ({GROUP: "0::/outside/x\n", "sys/fs/cgroup/cpu.max": "100000 50000\n"}, 2),
        ({GROUP: "0::/../x\n", "sys/fs/cgroup/cpu.max": "100000 50000\n"}, 2),
        (
            {
                GROUP: V1,
                f"{V1_ROOT}/docker/ab/{QUOTA}": "150000\n",
                f"{V1_ROOT}/docker/ab/{PERIOD}": "100000\n",
            },
            2,
        ),
        ({GROUP: V1, f"{V1_ROOT}/{QUOTA}": "30000", f"{V1_ROOT}/{PERIOD}": "10000"}, 3),
        ({GROUP: V1, f"{V1_ROOT}/{QUOTA}": "-1", f"{V1_ROOT}/{PERIOD}": "10000"}, 16),
        ({GROUP: "2:cpuset:/\n", f"{V1_ROOT}/{QUOTA}": "1", f"{V1_ROOT}/{PERIOD}": "1"}, 16),
    ],
)
def test_a_quota_of_the_container_limits_the_threads(monkeypatch, tmp_path, files, count):
    in_groups(monkeypatch, tmp_path, files)
    assert headrace.explain({"backend": "Identity"})["threads"] == count
    assert headrace.plugins.usable_cpus() == count
    monkeypatch.setenv("PYTHON_CPU_COUNT", "7")
    assert headrace.plugins.usable_cpus() == 7


def test_a_node_under_a_time_limit_is_run_by_a_worker():
    node = headrace.explain({"backend": "Identity", "timeout_ms": 5})["nodes"]["main"]
    assert node["run_by"] == "worker"


@pytest.mark.parametrize("limited", ["alias", "main"])
def test_the_time_limit_of_an_alias_is_its_own(limited):
    nodes = {"alias": {"backend": "Forward[node.main]"}, "main": {"backend": "Identity"}}
    nodes[limited]["timeout_ms"] = 5
    found = headrace.explain(nodes)["nodes"]
    assert [name for name, node in found.items() if node["run_by"] == "worker"] == [limited]


def test_explain_builds_nothing():
    class Never(Many):
        def init(self, options, context):
            raise AssertionError("it was built")

    headrace.register(Never)
    headrace.explain({"backend": "Never"})


def test_describe_says_what_was_really_built():
    with headrace.pipe(SOURCE) as pipe:
        found = pipe.describe()
    node = found["nodes"]["n"]
    assert node["tree"]["children"][1]["built"] == {"provider": "cpu"}
    assert (node["instance_num"], node["threads"], node["next"]) == (2, 4, [])
    assert {"expression", "range", "owns_thread", "tree"} <= set(node)
    assert json.loads(json.dumps(found)) == found


class Colour(enum.Enum):
    RED = "red"


class Size(BaseModel):
    side: int = 3


class Kinds(headrace.Backend):
    class Options(headrace.Options):
        colour: Colour = Colour.RED
        size: Size = Size()
        scale: float = math.inf

    def forward(self, batch):
        pass

    def describe(self):
        return {"shape": (np.int64(3), Fraction(1, 2)), "mean": np.float32(math.nan)}


def test_members_of_enumerations_models_and_numbers_of_any_library_are_plain_values():
    headrace.register("Kinds", Kinds)
    with headrace.pipe({"backend": "Kinds"}) as pipe:
        tree = pipe.describe()["nodes"]["main"]["tree"]
    values = {key: option["value"] for key, option in tree["options"].items()}
    assert values == {"colour": "red", "size": {"side": 3}, "scale": "inf"}
    assert tree["built"] == {"shape": [3, 0.5], "mean": "nan"}
    assert json.loads(json.dumps(tree)) == tree


HEAVY = """
import sys
import headrace
headrace.explain({"backend": "S[DecodeMat,ResizeMat,CvtColorMat,Mat2Tensor]", "resize_h": 2,
                  "resize_w": 2, "color": "rgb"})
headrace.explain({"backend": "OnnxTensor", "model": sys.argv[1]})
heavy = {"numpy", "cv2", "onnxruntime", "torch"} & set(sys.modules)
assert not heavy, heavy
"""


def test_explain_imports_no_heavy_library(tmp_path):
    pytest.importorskip("headrace_cv")
    pytest.importorskip("headrace_ort")
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    done = python("-c", HEAVY, model)
    assert (done.returncode, done.stderr) == (0, "")
