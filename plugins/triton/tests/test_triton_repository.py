"""Repositories that are served as they are, asked by Triton's own client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import threading

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

import headrace
from headrace.errors import ConfigError, SetupError
from headrace_models import Models
from headrace_models.watching.watcher import Watching
from headrace_serve import Server
from headrace_serve.operating.settings import Settings
from headrace_testing import FakeClock
from headrace_triton.repository import tables_of

A = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
B = np.array([[10, 20, 30, 40], [50, 60, 70, 80]], np.float32)
PORT = 'name: "{}" data_type: TYPE_FP32 dims: [4]'
ADD = f"""
max_batch_size: 8
input [{{ {PORT.format("A")} }}, {{ {PORT.format("B")} }}]
output [{{ {PORT.format("SUM")} }}, {{ {PORT.format("DIFF")} }}]
"""
ONNX = 'backend: "onnxruntime"\n' + ADD


def step(model, inputs, outputs, version=-1):
    maps = [
        f'{side}_map {{ key: "{key}" value: "{value}" }}'
        for side, table in (("input", inputs), ("output", outputs))
        for key, value in table.items()
    ]
    return f'{{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble(inputs, outputs, *steps, rows=4):
    ports = [
        f"{side} {{ {PORT.format(name)} }}"
        for side, names in (("input", inputs), ("output", outputs))
        for name in names
    ]
    scheduling = f"ensemble_scheduling {{ step [ {', '.join(steps)} ] }}"
    return "\n".join(['platform: "ensemble"', f"max_batch_size: {rows}", *ports, scheduling])


TWO = ensemble(
    "XY",
    "RS",
    step("add", {"A": "sum", "B": "difference"}, {"SUM": "R"}),
    step("first", {"A": "X", "B": "Y"}, {"SUM": "sum", "DIFF": "difference"}),
    step("add", {"A": "sum", "B": "sum"}, {"SUM": "S"}, version=1),
)
"""R = (X + Y) + (X - Y), S = 2 (X + Y); the step in the middle runs first."""


@pytest.fixture
def serve(repository):
    """Serve the repository, and return a client of it."""
    made = []

    def start(**settings):
        server = Server(str(repository.folder), port=0, **settings)
        server.start()
        client = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
        made[:] = [*made, server, client]
        client.server = server
        return client

    yield start
    for one in reversed(made):
        one.close()


def ask(client, model, version="", **arrays):
    inputs = []
    for name, value in arrays.items():
        kind = {"f": "FP32", "i": "INT32", "O": "BYTES"}[value.dtype.kind]
        inputs.append(triton_http.InferInput(name, value.shape, kind))
        inputs[-1].set_data_from_numpy(value)
    answer = client.infer(model, inputs, model_version=version)
    return {one["name"]: answer.as_numpy(one["name"]) for one in answer.get_response()["outputs"]}


def test_models_with_and_without_a_configuration_are_served(repository, serve):
    repository.write("add", ONNX)
    repository.write("bare")
    client = serve()
    for name in ("add", "bare"):
        found = ask(client, name, A=A, B=B)
        np.testing.assert_array_equal(found["SUM"], A + B)
        np.testing.assert_array_equal(found["DIFF"], A - B)
    assert client.get_model_config("bare")["max_batch_size"] == 4  # as Triton completes it


def test_grpc_tells_the_policy_of_versions_and_the_name_of_the_file(repository, serve):
    repository.write("two", "version_policy { latest { num_versions: 2 } }" + ONNX, versions=(1, 2))
    repository.write("one", "version_policy { specific { versions: [1] } }" + ONNX)
    server = serve(grpc_port=0).server
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        two, one = (client.get_model_config(name).config for name in ("two", "one"))
    assert two.version_policy.latest.num_versions == 2
    assert [*one.version_policy.specific.versions] == [1]
    assert one.default_model_filename == "model.onnx"


def test_the_outputs_of_a_configuration_are_those_that_are_given(repository, serve):
    less = ONNX.replace(f", {{ {PORT.format('DIFF')} }}", "")
    repository.write("add", less)
    assert [*ask(serve(), "add", A=A, B=B)] == ["SUM"]


def test_the_policy_chooses_the_versions(repository):
    repository.write("latest", ONNX, versions=(1, 2, 10))
    repository.write(
        "two", "version_policy { latest { num_versions: 2 } }" + ONNX, versions=(1, 2, 10)
    )
    repository.write("all", "version_policy { all {} }" + ONNX, versions=(1, 3))
    repository.write("one", "version_policy { specific { versions: [1] } }" + ONNX, versions=(1, 2))
    (repository.folder / "latest" / "012").mkdir()
    found = {*tables_of(repository.folder)["models"]}
    assert found == {"latest:10", "two:2", "two:10", "all:1", "all:3", "one:1"}


def test_without_an_axis_of_the_batch_tensors_are_whole(repository, serve):
    whole = ONNX.replace("max_batch_size: 8", "")
    repository.write("add", whole, rows=None)
    found = ask(serve(), "add", A=A[0], B=B[0])
    np.testing.assert_array_equal(found["SUM"], A[0] + B[0])


def test_identity_gives_what_it_gets(repository, serve):
    port = 'name: "{}" data_type: TYPE_STRING dims: [-1]'
    sides = f"input {{ {port.format('IN')} }} output {{ {port.format('OUT')} }}"
    repository.configure("same", f'backend: "identity" max_batch_size: 4 {sides}', "1")
    given = np.array([[b"a", b"\xff"], [b"", b"b"]], object)
    np.testing.assert_array_equal(ask(serve(), "same", IN=given)["OUT"], given)


def test_labels_are_given_with_classes(repository, serve):
    labeled = ONNX.replace(PORT.format("SUM"), PORT.format("SUM") + ' label_filename: "names.txt"')
    repository.write("add", labeled)
    (repository.folder / "add" / "names.txt").write_text("zero\none\ntwo\nthree\n")
    inputs = [triton_http.InferInput(name, A.shape, "FP32") for name in "AB"]
    for one in inputs:
        one.set_data_from_numpy(A)
    wanted = [triton_http.InferRequestedOutput("SUM", class_count=1)]
    found = serve().infer("add", inputs, outputs=wanted).as_numpy("SUM")
    assert found.tolist() == [[b"8.000000:3:three"], [b"16.000000:3:three"]]


def test_a_tensor_has_another_shape_inside(repository, serve):
    inside = ONNX.replace("dims: [4]", "dims: [2, 2] reshape { shape: [4] }")
    repository.write("add", inside)
    client = serve()
    given = {"A": A.reshape(2, 2, 2), "B": B.reshape(2, 2, 2)}
    np.testing.assert_array_equal(ask(client, "add", **given)["SUM"], (A + B).reshape(2, 2, 2))
    assert client.get_model_metadata("add")["outputs"][0]["shape"] == [-1, 2, 2]
    with pytest.raises(InferenceServerException, match=r"\[-1, 2, 2\]"):
        ask(client, "add", A=A, B=B)


# Ensembles.


def test_an_ensemble_runs_its_models_as_their_tensors_are_there(repository, serve):
    repository.write("add", ONNX)
    repository.write("first")
    repository.configure("two", TWO, "1")
    repository.configure(
        "nested", ensemble("XY", "T", step("two", {"X": "X", "Y": "Y"}, {"S": "T"}))
    )
    (repository.folder / "nested" / "1").mkdir()
    client = serve()
    found = ask(client, "two", X=A, Y=B)
    np.testing.assert_array_equal(found["R"], 2 * A)
    np.testing.assert_array_equal(found["S"], 2 * (A + B))
    np.testing.assert_array_equal(ask(client, "nested", X=A, Y=B)["T"], 2 * (A + B))
    counts = client.get_inference_statistics("add")["model_stats"][0]["batch_stats"]
    assert (
        sum(one["batch_size"] * one["compute_infer"]["count"] for one in counts) == 4
    )  # two requests of each


def test_an_ensemble_needs_models_beside_it(repository):
    repository.write("add", ONNX)
    repository.write("first")
    repository.configure("two", TWO, "1")
    config = tables_of(repository.folder)["models"]["two:1"]["config"]
    with pytest.raises(SetupError, match="there are none"):
        headrace.pipe(config)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([step("add", {"A": "X", "B": "Z"}, {"SUM": "R"})], "nothing gives the tensor 'Z'"),
        (
            [step("ad", {"A": "X", "B": "X"}, {"SUM": "R"})],
            "there is no model 'ad'\n  Did you mean 'add'?",
        ),
        (
            [step("add", {"A": "X", "B": "X"}, {"SUM": "R"}, 7)],
            "version 7 of model 'add' is not served",
        ),
        (
            [step("add", {"A": "X", "B": "X"}, {"SUM": "R"}).replace("model_version: -1", "")],
            "version 0 of model 'add' is not served\n  It serves: 1. -1 is the latest one.",
        ),
        ([step("add", {"A": "X", "C": "X"}, {"SUM": "R"})], "model 'add' has no input 'C'"),
        ([step("add", {"A": "X"}, {"SUM": "R"})], "the step gives model 'add' no input 'B'"),
        (
            [step("add", {"A": "X", "B": "X"}, {"SUMM": "R"})],
            "has no output 'SUMM'\n  Did you mean 'SUM'?",
        ),
        ([step("add", {"A": "X", "B": "X"}, {"SUM": "T"})], "nothing gives the output 'R'"),
        (
            [step("add", {"A": "X", "B": "X"}, {"SUM": "R", "DIFF": "X"})],
            "the tensor 'X' is given twice",
        ),
        (
            [
                step("add", {"A": "X", "B": "d"}, {"SUM": "c"}),
                step("add", {"A": "X", "B": "c"}, {"SUM": "d", "DIFF": "R"}),
            ],
            "wait for each other in a circle",
        ),
        ([step("both", {"X": "X"}, {"R": "R"})], "the ensemble calls itself by 'both'"),
        (
            [step("small", {"A": "X", "B": "X"}, {"SUM": "R"})],
            "takes 4 rows, and its model 'small' 2",
        ),
        ([], "needs `ensemble_scheduling` with steps"),
    ],
)
def test_an_ensemble_that_cannot_run_is_refused_at_its_place(repository, steps, said):
    repository.write("add", ONNX)
    repository.write("small", ONNX.replace("8", "2"))
    repository.configure("both", ensemble("X", "R", *steps), "1")
    with pytest.raises(ConfigError) as caught:
        tables_of(repository.folder)
    assert said.partition("\n")[0] in caught.value.problems[0].message
    assert said in str(caught.value).replace("\n    ", "\n  ")
    assert caught.value.problems[0].line is not None


def test_a_broken_model_is_not_missed_by_its_ensemble(repository):
    repository.write("add", "max_batch")
    repository.write("first")
    repository.configure("two", TWO, "1")
    with pytest.raises(ConfigError) as caught:
        tables_of(repository.folder)
    (problem,) = caught.value.problems
    assert problem.file == str(repository.folder / "add" / "config.pbtxt")


# What is wrong.


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('name: "other"' + ONNX, "the model is named 'other', and its folder 'add'"),
        (ONNX.replace("onnxruntime", "onnxruntme"), "there is no backend 'onnxruntme' here"),
        ('platform: "tensorrt_plan"' + ONNX, "the platform 'tensorrt_plan' is not of the backend"),
        ('default_model_filename: "m.onnx"' + ONNX, "version 1 has no file 'm.onnx'"),
        ("version_policy { specific { versions: [3] } }" + ONNX, "there is no version 3"),
        (ONNX.replace("max_batch_size: 8", "max_batch_size: -1"), "`max_batch_size` is 0 or more"),
        (ONNX.replace('name: "B"', 'name: "A"'), "there are two inputs 'A'"),
        (ONNX.replace('name: "B"', ""), "an input needs a `name`"),
        (ONNX.replace('name: "B"', 'name: "result"'), "an input cannot be named 'result'"),
        (ONNX.replace("TYPE_FP32", "TYPE_INVALID", 1), "input 'A' needs a `data_type`"),
        (ONNX.replace("dims: [4]", "dims: [0]", 1), "a length is 1 or more"),
        (ONNX.replace("dims: [4]", "", 1), "input 'A' needs `dims`"),
        (
            ONNX.replace("dims: [4]", 'dims: [4] label_filename: "no.txt"'),
            "no field `label_filename`",
        ),
        ("instance_group { count: -1 }" + ONNX, "`count` is from 1 to 4096"),
        ("instance_group { count: 2147483647 }" + ONNX, "`count` is from 1 to 4096"),
        ("version_policy { specific {} }" + ONNX, "the policy chooses no version"),
        ("instance_group { kind: KIND_CPU gpus: 0 }" + ONNX, "a group of KIND_CPU has no `gpus`"),
        ("instance_group { passive: true }" + ONNX, "`passive` has no counterpart here"),
        ('runtime: "x"' + ONNX, "`runtime` has no counterpart here"),
        (
            "dynamic_batching { default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 } }"
            + ONNX,
            "`timeout_action: DELAY` has no counterpart",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(repository, config, said):
    repository.write("add", config)
    with pytest.raises(ConfigError) as caught:
        tables_of(repository.folder)
    problem = caught.value.problems[0]
    assert said in problem.message
    assert problem.file == str(repository.folder / "add" / "config.pbtxt")
    assert (problem.line, problem.column) > (0, 0)


def test_a_field_that_is_written_with_its_default_is_no_problem(repository):
    repository.write("add", 'runtime: "" instance_group { passive: false }' + ONNX)
    assert [*tables_of(repository.folder)["models"]] == ["add:1"]


@pytest.mark.parametrize("version", [None, "0", "01", "1.0", "-1", "9" * 19, "\u0663"])
def test_a_model_without_versions_is_refused(repository, version):
    repository.configure("add", ONNX)
    if version is not None:
        (repository.folder / "add" / version).mkdir()
    with pytest.raises(
        ConfigError, match="the model has no version: a folder whose name is a number"
    ) as caught:
        tables_of(repository.folder)
    assert caught.value.problems[0].file == str(repository.folder / "add" / "config.pbtxt")


@pytest.mark.parametrize("name", ["a b", "a:1", "_a", ".a", "\u00e4", "a$b"])
def test_a_name_that_no_model_may_have_is_refused_at_its_place(repository, name):
    repository.write(name, ONNX)
    with pytest.raises(ConfigError, match="is no name of a model here") as caught:
        tables_of(repository.folder)
    assert caught.value.problems[0].file == str(repository.folder / name / "config.pbtxt")


def test_a_tensor_that_the_file_does_not_have_is_refused_as_the_model_is_built(repository):
    repository.write("add", ONNX.replace('name: "B"', 'name: "C"'))
    with pytest.raises(SetupError, match="'C'"):
        Models(str(repository.folder))


def test_all_wrong_models_are_told_at_once(repository):
    repository.write("a", "x: 1")
    repository.write("b", 'backend: "dali"')
    with pytest.raises(ConfigError) as caught:
        tables_of(repository.folder)
    assert len(caught.value.problems) == 2


# Loading, unloading, following.


def test_a_load_reads_the_folder_again_also_of_a_new_model(repository, serve):
    repository.write("add", ONNX)
    client = serve(allow=["repository"])
    repository.write("late", ONNX)
    repository.configure("add", ONNX.replace("max_batch_size: 8", "max_batch_size: 3"))
    repository.write("wrong", "x: 1")  # others do not mind
    client.load_model("late")
    client.load_model("add")
    np.testing.assert_array_equal(ask(client, "late", A=A, B=B)["SUM"], A + B)
    assert client.get_model_config("add")["max_batch_size"] == 3
    states = {one["name"]: one["state"] for one in client.get_model_repository_index()}
    assert states == {"add": "READY", "late": "READY"}
    client.unload_model("late")
    states = {one["name"]: one["state"] for one in client.get_model_repository_index()}
    assert states == {"add": "READY", "late": "UNAVAILABLE"}
    with pytest.raises(InferenceServerException, match="failed to load"):
        client.load_model("nobody")
    with pytest.raises(InferenceServerException):
        client.load_model("wrong")


def greatest(client):
    """Return the max_batch_size of the model add."""
    config = client.get_model_config("add")
    return config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size


@pytest.mark.parametrize("by", ["http", "grpc"])
def test_a_model_is_loaded_into_a_folder_that_was_empty(repository, by):
    repository.folder.mkdir()
    given = Settings(models=(str(repository.folder),), port=0, grpc_port=0, allow=("repository",))
    given.check()
    with given.server() as server:
        port, of = (server.port, triton_http) if by == "http" else (server.grpc_port, triton_grpc)
        client = of.InferenceServerClient(f"127.0.0.1:{port}")
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="failed to load"):
            client.load_model("add")
        repository.write("add", ONNX)
        client.load_model("add", config='{"max_batch_size": 3}')
        assert greatest(client) == 3
        server.reload(**given.read())  # as SIGHUP does
        assert greatest(client) == 8
        client.close()


def test_an_empty_folder_that_is_watched_gets_models(repository):
    repository.folder.mkdir()
    folder = str(repository.folder)
    with Server(folder, port=0, watch=folder) as server:
        client = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
        repository.write("add", ONNX)
        poll = threading.Event()
        while not client.is_model_ready("add"):
            poll.wait(0.01)
        np.testing.assert_array_equal(ask(client, "add", A=A, B=B)["SUM"], A + B)
        client.close()


def test_a_request_may_change_instances_and_batches_and_nothing_else(repository, serve):
    repository.write("add", ONNX)
    client = serve(allow=["repository"])
    wanted = {
        "max_batch_size": 2,
        "instance_group": [{"kind": "KIND_CPU", "count": 3}],
        "dynamic_batching": {"max_queue_delay_microseconds": 1500},
    }
    client.load_model("add", config=json.dumps(wanted))
    found = client.get_model_config("add")
    assert (found["max_batch_size"], found["instance_group"][0]["count"]) == (2, 3)
    keys = client.server._service.models.find("add").entry_keys
    assert (keys["max"], keys["instance_num"], keys["batching_timeout"]) == (2, 3, 1.5)
    client.load_model(
        "add", config=json.dumps(client.get_model_config("add"))
    )  # as a client has read it
    others = {
        "backend": "python",
        "parameters": {"a": {"string_value": "b"}},
        "default_model_filename": "x",
        "max_batch_size": "2",
        "nothing": 1,
    }
    for name, value in others.items():
        with pytest.raises(InferenceServerException, match=f"failed to load: .*{name}"):
            client.load_model("add", config=json.dumps({name: value}))
    with pytest.raises(InferenceServerException, match="files of requests are refused"):
        client.load_model("add", config="{}", files={"file:1/model.onnx": b"x"})
    client.load_model("add")
    assert client.get_model_config("add")["max_batch_size"] == 8


def test_a_configuration_of_a_request_is_for_models_of_a_repository_alone(repository):
    repository.write("add", ONNX)
    models = {"other": {"backend": "Identity"}}
    with Server(models, port=0, allow=["repository"]) as server:
        client = triton_http.InferenceServerClient(f"127.0.0.1:{server.port}")
        with pytest.raises(InferenceServerException, match="configurations and files of requests"):
            client.load_model("other", config='{"max_batch_size": 2}')
        client.close()


def looking(repository):
    """Return models of a repository, and what looks at its files twice, with a second between."""
    clock = FakeClock()
    models = Models(str(repository.folder), clock=clock)
    watching = Watching(models, str(repository.folder))

    def look():
        watching.look()
        clock.advance(1.0)
        watching.look()

    look()
    return models, watching, look


def test_a_watched_repository_is_followed(repository):
    repository.write("add", ONNX)
    models, watching, look = looking(repository)
    with models:
        repository.write("late", ONNX)
        repository.configure("add", ONNX.replace("8", "3"))
        look()
        assert models.versions() == {"add": ["1"], "late": ["1"]}
        assert models.pipeline("add", "1").config.to_dict()["max"] == 3
        repository.write("late", versions=(2,))
        look()
        assert models.versions()["late"] == ["2"]  # the policy serves the latest one
        repository.configure("add", "half-writt")
        repository.write("late", versions=(3,))
        look()
        assert "half" in watching.reason
        assert models.versions() == {"add": ["1"], "late": ["3"]}  # the other one goes on
        repository.configure("add", ONNX)
        shutil.rmtree(repository.folder / "late")
        look()
        assert (models.versions(), watching.reason) == ({"add": ["1"], "late": []}, "")
        repository.write("late", ONNX)
        look()
        assert models.versions()["late"] == ["1"]


def test_a_version_serves_until_the_next_one_is_whole_and_built(repository):
    repository.write("add", ONNX)
    models, watching, look = looking(repository)
    whole = (repository.folder / "add" / "1" / "model.onnx").read_bytes()
    later = repository.folder / "add" / "2"
    with models:
        later.mkdir()
        look()
        assert (models.versions()["add"], "has no file" in watching.reason) == (["1"], True)
        assert str(later) in watching.folders()
        (later / "model.onnx").write_bytes(whole[:99])
        watching.look()
        assert [*models.status()["add"]["versions"]] == ["1"]  # it may be written on
        look()
        assert models.versions()["add"] == ["1"]  # it stood still, and is no model
        assert models.status()["add"]["versions"]["2"]["state"] == "failed"
        (later / "model.onnx").write_bytes(whole)
        look()
        look()
        assert models.versions()["add"] == ["2"]


def test_the_files_of_a_version_may_go_with_the_swap_that_brings_the_next_one(repository):
    repository.python("add", 'backend: "python"\n' + ADD)
    good = "class TritonPythonModel:\n def execute(self, r): return []\n"
    bad = good + " def initialize(self, a): raise ValueError('no')\n"
    (repository.folder / "add" / "1" / "model.py").write_text(good)
    models, _, look = looking(repository)
    with models:
        place, later = repository.folder / "add" / "1", repository.folder / "add" / "2"
        (place / "model.py").write_text(bad)
        place.rename(later)
        for _ in range(3):
            look()
        assert models.versions()["add"] == ["1"]
        (later / "model.py").write_text(good)
        look()
        look()
        assert models.versions()["add"] == ["2"]


def test_a_repository_stays_one_without_models_and_without_configurations(repository):
    for name in ("add", "bare"):
        repository.write(name, ONNX if name == "add" else None)
    models, _, look = looking(repository)
    with models:
        assert models.versions() == {"add": ["1"], "bare": ["1"]}
        shutil.rmtree(repository.folder / "add")
        look()
        assert models.versions() == {"add": [], "bare": ["1"]}
        shutil.rmtree(repository.folder / "bare")
        look()
        assert models.versions() == {"add": [], "bare": []}


def test_at_most_sixteen_loads_wait_for_their_turn(repository):
    """A model that reads a pipe while it is built has the turn until this test writes into the pipe."""
    repository.write("add", ONNX)
    code = """
import numpy as np, pathlib, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def initialize(self, args):
        gate = pathlib.Path(args["model_repository"], "gate")
        if gate.exists():
            gate.read_bytes()
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SUM", np.zeros((1, 4), np.float32))])]
"""
    alone = "instance_group { count: 1 kind: KIND_CPU }"
    repository.python("held", f'backend: "python"\n{ADD}\n{alone}', code)
    with Server(str(repository.folder), port=0, allow=["repository"]) as server:
        url = f"http://127.0.0.1:{server.port}/v2/repository/models"
        os.mkfifo(repository.folder / "held" / "gate")

        async def load_all():
            async with httpx.AsyncClient(timeout=60) as client:
                holds = asyncio.create_task(client.post(f"{url}/held/load"))
                gate = await asyncio.to_thread(open, repository.folder / "held" / "gate", "wb")
                asked = {asyncio.create_task(client.post(f"{url}/no{n}/load")) for n in range(40)}
                refused: list = []
                while len(refused) < 25:
                    done, asked = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                    refused.extend(one.result().status_code for one in done)
                gate.close()
                return refused, [one.status_code for one in await asyncio.gather(*asked, holds)]

        refused, loaded = asyncio.run(load_all())
        assert refused == [429] * 25
        assert sorted(loaded) == [200] + [404] * 15
        assert httpx.post(f"{url}/add/load").status_code == 200


def test_clients_are_told_the_configuration_as_triton_prints_it(repository, serve):
    repository.write("add", ONNX + 'parameters { key: "a" value { string_value: "b" } }')
    found = serve().get_model_config("add")
    assert (found["name"], found["backend"], found["max_batch_size"]) == ("add", "onnxruntime", 8)
    assert found["version_policy"] == {"latest": {"num_versions": 1}}
    assert found["input"][0] == {
        "name": "A",
        "data_type": "TYPE_FP32",
        "format": "FORMAT_NONE",
        "dims": [4],
        "is_shape_tensor": False,
        "allow_ragged_batch": False,
        "optional": False,
        "is_non_linear_format_io": False,
    }
    assert found["parameters"] == {"a": {"string_value": "b"}}
    assert found["default_model_filename"] == "model.onnx"


def test_a_model_that_completes_its_configuration_is_batched_and_described_by_it(repository, serve):
    code = """
import numpy as np, triton_python_backend_utils as pb_utils
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(made):
        made.add_input({"name": "IN", "data_type": "TYPE_INT32", "dims": [1]})
        made.add_output({"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]})
        made.set_max_batch_size(4)
        return made
    def execute(self, requests):
        found = [one.inputs()[0].as_numpy() for one in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one * 2)]) for one in found]
"""
    repository.python("twice", 'backend: "python"', code)
    client = serve()
    found = client.get_model_config("twice")
    assert found["max_batch_size"] == 4
    assert [(one["name"], one["dims"]) for one in found["input"] + found["output"]] == [
        ("IN", [1]),
        ("OUT", [1]),
    ]
    numbers = np.arange(4, dtype=np.int32)[:, None]
    np.testing.assert_array_equal(ask(client, "twice", IN=numbers)["OUT"], numbers * 2)
    with pytest.raises(InferenceServerException, match="4"):
        ask(client, "twice", IN=np.zeros((5, 1), np.int32))


def test_what_a_serving_file_says_follows_the_folder_too(repository, serve):
    repository.write("add", ONNX)
    client = serve(watch=str(repository.folder))
    labeled = ONNX.replace(PORT.format("SUM"), PORT.format("SUM") + ' label_filename: "names.txt"')
    (repository.folder / "late").mkdir()
    (repository.folder / "late" / "names.txt").write_text("zero\none\n")
    repository.write("late", labeled)
    poll = threading.Event()
    while not client.is_model_ready("late"):
        poll.wait(0.01)
    assert client.server._service.models.find("late").labels == {"SUM": ["zero", "one"]}
    assert client.get_model_config("late")["output"][0]["label_filename"] == "names.txt"


_opened: list[str] = []
_watched: list[str] = []


def _note_open(event, args):
    if event == "open" and _watched and str(args[0]).startswith(_watched[0]):
        _opened.append(str(args[0]))


def test_loads_of_unknown_names_read_no_other_model(repository, serve):
    for name in ("add", "other"):
        repository.write(name, ONNX)
    client = serve(allow=["repository"])
    sys.addaudithook(_note_open)
    _watched[:] = [str(repository.folder)]
    try:
        for number in range(30):
            with pytest.raises(InferenceServerException, match="unknown model"):
                client.load_model(f"unknown{number}")
        assert _opened == []
        client.load_model("add")
        assert {*_opened} & {str(repository.folder / "add" / "config.pbtxt")}
        assert not any("other" in one for one in _opened)
    finally:
        _watched.clear()


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        ("[1]", 400, "expected an object, got list"),
        ("5", 400, "expected an object, got int"),
        ('"x"', 400, "expected an object, got str"),
        ("null", 400, "expected an object, got NoneType"),
        ("{", 400, "no JSON"),
        ('{"max_batch_size": -1}', 400, "`max_batch_size` is 0 or more"),
        ('{"max_batch_size": "many"}', 400, "`max_batch_size` is a whole number"),
        (
            '{"dynamic_batching": {"max_queue_delay_microseconds": 99999999999999}}',
            400,
            "batching_timeout",
        ),
        ('{"instance_group": [{"count": 4096}, {"count": 4096}]}', 400, "instance_num"),
        ('{"default_model_filename": "other.onnx"}', 403, "cannot be changed by a request"),
    ],
)
def test_a_configuration_of_a_load_that_cannot_be_is_the_clients_mistake(
    repository, serve, given, status, said
):
    repository.write("add", ONNX)
    client = serve(allow=["repository"])
    with pytest.raises(InferenceServerException, match=re.escape(said)) as caught:
        client.load_model("add", config=given)
    assert caught.value.status() == str(status)
    assert ask(client, "add", A=A, B=B)["SUM"].tolist() == (A + B).tolist()
