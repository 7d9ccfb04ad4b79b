"""``headrace serve``, what it takes, and the programs of the page."""

from __future__ import annotations

import json
import platform
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from pages import Page
from serve_helpers import refused
from typer.testing import CliRunner

import headrace
from headrace.errors import ClosedError, ConfigError, SetupError
from headrace_cli.app import app
from headrace_serve import Limits, Server
from headrace_serve.admission.keys import Keys
from headrace_serve.models.catalogue import build_models
from headrace_serve.models.entries import read_entries, read_models
from headrace_serve.models.signature import read_signature
from headrace_serve.operating.running import announce
from headrace_serve.operating.settings import Settings

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@posix
@pytest.mark.parametrize(
    ("number", "more", "interval_ms"),
    [(signal.SIGTERM, [], 1.0), (signal.SIGINT, ["--switch-interval-ms", "2.5"], 2.5)],
)
def test_the_command_serves_until_a_signal(tmp_path, start, number, more, interval_ms):
    (tmp_path / "a.toml").write_text('backend = "Identity"')
    (tmp_path / "interval.py").write_text(
        "import sys\nimport headrace\n"
        "headrace.register('Interval', lambda data: 1e3 * sys.getswitchinterval())\n"
    )
    (tmp_path / "turns.toml").write_text('import = ["interval.py"]\nbackend = "Interval"\n')
    (tmp_path / "serve.toml").write_text('[models.told]\nconfig = "a.toml"\nversion = "4"\n')
    process, url = start(
        *("a.toml", "b:2=a.toml", "turns.toml", "--models", "serve.toml", "--port", "0", *more),
        cwd=tmp_path,
    )
    names = [
        (one["name"], one["version"]) for one in httpx.post(f"{url}/v2/repository/index").json()
    ]
    assert sorted(names) == [("a", "1"), ("b", "2"), ("told", "4"), ("turns", "1")]
    body = httpx.post(f"{url}/run/turns", content=b"").json()
    assert body == {"result": pytest.approx(interval_ms)}
    assert httpx.post(f"{url}/run/b", content=b"x").content == b"x"
    process.send_signal(number)
    assert process.wait(300) == (130 if number == signal.SIGINT else 0)
    process.stderr.close()


def test_help_groups_the_options():
    """Only what every command has is in no group, and no group is a list too long to look through."""
    groups = {}
    for line in CliRunner().invoke(app, ["serve", "--help"]).output.splitlines():
        if title := re.fullmatch(r"(\w.*):", line):
            options = groups.setdefault(title[1], [])
        elif option := re.match(r"  (-[\w-]+)", line):
            options.append(option[1])
    assert groups["Where it listens"] == [
        *("--host", "--port", "--grpc-port", "--admin-port", "--api", "--server-name")
    ]
    assert groups["Other options"] == ["--json", "-h"]
    assert max(map(len, groups.values())) <= 6
    assert sum(map(len, groups.values())) >= 36


def page_faults(process):
    """Count the pages that a process has been given by the system."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[7])  # minflt, the tenth field of proc_pid_stat(5); the first two are cut off


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_bodies_leave_their_memory_to_the_next_ones(tmp_path, start, monkeypatch):
    """Unless the environment has bounds of its own for the allocator."""
    (tmp_path / "a.toml").write_text('backend = "Identity"')
    body = b"x" * (2 << 20)
    faults = []
    for more in ({}, {"MALLOC_TRIM_THRESHOLD_": "131072"}):
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        process, url = start("a.toml", "--port", "0", cwd=tmp_path)
        with httpx.Client() as client:
            for turn in range(20):
                if turn == 10:
                    before = page_faults(process)
                assert client.post(f"{url}/run/a", content=body).status_code == 200
        faults.append(page_faults(process) - before)
    kept, given_back = faults
    assert kept < given_back / 10


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "no model to serve"),
        (["missing.toml"], "error: model 'missing': no such file: 'missing.toml'"),
        (["a.toml", "a=a.toml"], "named twice"),
        (["--models", "none.toml"], "none.toml"),
        (["both.toml"], "read as a pipeline\n  Write --models both.toml.\n"),
        (
            ["--models", "a.toml"],
            "a.toml: backend: it may hold only tables [models.NAME] and [memory]",
        ),
        (["a:new=a.toml"], "a version is a whole number such as 2 or 10, got 'new'"),
        (["x=a.toml", "--models", "bad.toml"], "shap"),
        (["--models", "odd.toml"], "[models.n] needs a key `config`\n  It has: confg."),
        (["--models", "bad.toml"], "bad.toml: models.m.inputs.x.shap: there is no such key"),
        (["--models", "near.toml"], "models.m.inputs.x.datatype: Input should be 'BOOL'"),
        (["--models", "near.toml"], "Did you mean 'FP32'?"),
        (["--models", "deep.toml"], "deep.toml: this is no TOML: "),
        (["--models", "both.toml"], "version of model 'm' is '2' in its name, and '3'"),
        (["a.toml", "--keys", "deep.toml"], "deep.toml: this is no TOML: "),
        (["a:01=a.toml"], "a whole number such as 2 or 10, got '01'"),
        ([f"a:{'9' * 5000}=a.toml"], "a whole number"),
        (["a.toml", "--port", "8123", "--grpc-port", "8123"], "are both 8123"),
        (["a.toml", "--port", "8123", "--grpc-port", "8123", "--workers", "2"], "are both 8123"),
        (["a.toml", "--host", "no-such-host.invalid"], "--host takes an address"),
        (["page=a.toml", "--keys", "keys.toml"], "'paeg', which is not served"),
        (["page=a.toml", "--keys", "keys.toml", "--workers", "2"], "Did you mean 'page'"),
    ],
)
def test_what_cannot_be_served_is_said_before_a_port_opens(tmp_path, monkeypatch, args, message):
    (tmp_path / "a.toml").write_text('backend = "Identity"')
    (tmp_path / "bad.toml").write_text(
        '[models.m]\nconfig = "a.toml"\ninputs.x = {datatype = "FP32", shap = [1]}\n'
    )
    (tmp_path / "near.toml").write_text(
        '[models.m]\nconfig = "a.toml"\ninputs.x = {datatype = "F32", shape = [1]}\n'
    )
    (tmp_path / "deep.toml").write_text("models = " + "[" * 9000 + "]" * 9000)
    (tmp_path / "both.toml").write_text("[models.'m:2']\nconfig = 'a.toml'\nversion = '3'\n")
    (tmp_path / "odd.toml").write_text("models.m = 5\nmodels.n.confg = 'a.toml'\n")
    (tmp_path / "keys.toml").write_text(f"[k]\nsha256 = '{'0' * 64}'\nmodels = ['paeg']\n")
    monkeypatch.chdir(tmp_path)
    assert message in refused("serve", *args)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": {"datatype": "FP32", "shape": [-2]}}, "shape.0"),
        ({}, "inputs"),
        ({"x": {"datatype": "FP32", "shape": [-1], "each": True, "batched": True}}, "not both"),
        ({"x": {"datatype": "FP32", "shape": [], "batched": True}}, "first axis"),
        ({"x": {"datatype": "FP32", "shape": [1], "batchd": True}}, "Did you mean 'batched'"),
        ({"x": {"datatype": "FP32", "shape": [1], "key": "result"}}, "reserved"),
        (
            {"x": {"datatype": "FP32", "shape": [1], "key": ""}},
            "x.key: String should have at least 1 character",
        ),
        (
            {n: {"datatype": "FP32", "shape": [1], "key": "data"} for n in ("x", "y")},
            "'x' and 'y'",
        ),
    ],
)
def test_inputs_that_cannot_be_are_refused(inputs, message):
    with pytest.raises(ConfigError) as caught:
        read_entries({"m": {"config": {"backend": "Identity"}, "inputs": inputs}})
    assert message in str(caught.value)


def test_a_version_may_be_a_number_and_a_config_must_be_one():
    identity = {"backend": "Identity"}
    assert list(read_entries({"m": {"config": identity, "version": 2}})[0]) == [("m", "2")]
    for entry, message in (
        ({"config": 5}, "m.config: .* got int"),
        ({"config": identity, "version": True}, "got True"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_entries({"m": entry})


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({}, ["everybody", "without TLS"]),
        ({"keys": "k"}, ["without TLS"]),
        ({"tls_cert": "c", "tls_key": "k"}, ["everybody"]),
        ({"tls_cert": "c", "tls_key": "k", "tls_client_ca": "a"}, []),
        ({"host": "localhost"}, []),
    ],
)
def test_the_command_warns_of_what_others_can_do(capsys, more, warned):
    settings = Settings(**{"models": ("m.toml",), "host": "0.0.0.0", **more})
    announce(settings, "http://address", None, None)
    said = capsys.readouterr().err.splitlines()[1:]
    assert [word in line for word, line in zip(warned, said, strict=True)] == [True] * len(warned)


def test_a_check_of_settings_looks_at_origins_as_well(tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"')
    models = (str(tmp_path / "m.toml"),)
    Settings(models=models, cors_origins=("https://pages.example",)).check()
    with pytest.raises(ConfigError, match=r"pages\.example/"):
        Settings(models=models, cors_origins=("https://pages.example/",)).check()


def test_what_is_wrong_with_all_models_is_told_together():
    with pytest.raises(ConfigError) as caught:
        Server({name: {"backend": f"NoBackend{name}"} for name in "ab"})
    assert len(caught.value.problems) == 2


def test_a_number_of_bytes_or_items_is_whole():
    with pytest.raises(ValueError, match=r"max_items is a whole number, got 1\.5"):
        Limits(max_items=1.5)


def test_a_closed_server_does_not_start():
    server = Server({"m": {"backend": "Identity"}}, port=0)
    with pytest.raises(ValueError, match="at least 0"):
        server.close(timeout=-1)
    server.close()
    with pytest.raises(ClosedError):
        server.start()


def test_no_bound_is_infinite():
    with pytest.raises(ValueError, match="receive_timeout_s"):
        Limits(receive_timeout_s=float("inf"))


@posix
def test_json_tells_programs_where_it_listens_or_what_is_wrong(tmp_path):
    (tmp_path / "a.toml").write_text('backend = "Identity"')
    command = [sys.executable, "-m", "headrace", "serve", "--json"]
    done = subprocess.run(
        [*command, "none.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    printed = json.loads(done.stdout)
    assert (printed["ok"], printed["error"]["code"]) == (False, "config")
    with subprocess.Popen(
        [*command, "a.toml", "--port", "0", "--grpc-port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        printed = json.loads(process.stdout.readline())
        assert printed["ok"] is True
        assert httpx.get(f"{printed['url']}/v2/health/ready").status_code == 200
        assert printed["grpc_url"].startswith("grpc://127.0.0.1:")
        process.terminate()
        assert process.stdout.read() == ""


def test_a_file_comes_before_an_expression_and_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("Identity", "a=b.toml", "S[A].toml"):
        (tmp_path / name).write_text('backend = "Identity"')
    found = read_models(["Identity", "a=b.toml", "S[A].toml"], None)
    assert found == {"Identity": "Identity", "a=b": "a=b.toml", "S[A]": "S[A].toml"}


def test_names_and_versions_of_models():
    table = {"a": "x.toml", "b:7": {"config": "y.toml"}, "c": {"config": "z.toml", "version": "3"}}
    assert list(read_entries(table)[0]) == [("a", "1"), ("b", "7"), ("c", "3")]
    listed = ["p/line.toml", "q=x.toml", "r:2=x.toml"]
    assert list(read_entries(listed)[0]) == [("line", "1"), ("q", "1"), ("r", "2")]
    assert list(read_models(listed, None)) == ["line", "q", "r:2"]
    for text, name, expression in (
        ("S[Identity,Copy(key=a)]", "main", "S[Identity,Copy(key=a)]"),
        ("Identity", "Identity", "Identity"),
        ("q:2=S[Copy(key=a)]", "q:2", "S[Copy(key=a)]"),
        ("cv:ResizeMat(4, 4)", "main", "cv:ResizeMat(4, 4)"),
    ):
        assert read_models([text], None) == {name: {"backend": expression}}
    twice = {"a:1": {"config": "x.toml", "version": "2"}}
    for wrong in (
        {},
        {"a//b": "x.toml"},
        {"a/": "x.toml"},
        {"a": 5},
        {"a:x": "y.toml"},
        {"stats": "x.toml"},
        twice,
    ):
        with pytest.raises(ConfigError):
            read_entries(wrong)
    with pytest.raises(ConfigError, match=r"a.version: .* got ''"):
        read_entries({"a:": "x.toml"})
    for wrong in (None, 5, b"x", [{"backend": "Identity"}]):
        with pytest.raises(ConfigError, match=r"(?s)names no model.*a dict of configurations"):
            read_entries(wrong)


@pytest.mark.parametrize("option", ["port", "grpc_port", "admin_port"])
def test_a_port_in_use_is_an_error_that_names_it_and_the_option(option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = Server({"m": {"backend": "Identity"}}, **{"port": 0, option: port})
        with pytest.raises(SetupError, match=f"cannot listen on 127.0.0.1 port {port}") as raised:
            other.start()
        hint = str(raised.value).partition("\n")[2]
        assert f"with --{option.replace('_', '-')} (0: a free one)" in hint
        assert hint.count("--") == 1
        other.close()


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("ui",), "--port"),
        (("serve",), "--port"),
        (("serve", "--port", "0"), "--grpc-port"),
        (("serve", "--port", "0"), "--admin-port"),
        pytest.param(
            ("serve", "--port", "0", "--workers", "2"),
            "--grpc-port",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="gRPC shares ports on Linux"),
        ),
    ],
)
def test_the_commands_say_which_option_chooses_another_port(command, option, tmp_path):
    (tmp_path / "m.toml").write_text('backend = "Identity"\n')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(*command, str(tmp_path / "m.toml"), option, port)
    assert said.startswith(f"error: cannot listen on 127.0.0.1 port {port}: ")
    assert f"choose another port with {option} (0: a free one)" in said


@pytest.mark.parametrize(
    "backend", ["S[OnnxTensor]", "Process[S[OnnxTensor]]", "Fallback[TorchModule,OnnxTensor]"]
)
def test_the_signature_of_an_onnx_model_is_served(tmp_path, backend):
    import onnx
    from onnx import TensorProto, helper

    pytest.importorskip("headrace_ort")
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("x", "y")
    ]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(tmp_path / "neg.onnx"))
    config = {"backend": backend, "model": str(tmp_path / "neg.onnx"), "max": 4}
    with Server({"neg": config}, port=0) as server:
        found = httpx.get(f"{server.url}/v2/models/neg").json()
        assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
        assert found["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 3]}]
        body = {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
            ]
        }
        (y,) = httpx.post(f"{server.url}/v2/models/neg/infer", json=body).json()["outputs"]
    assert (y["shape"], y["data"]) == ([2, 3], [-1, -2, -3, -4, -5, -6])


def element(name, *children, **built):
    return {"name": name, "built": built, "children": list(children)}


def signature_of(tree):
    node = {"tree": tree, "range": [1, 4]}
    return read_signature(node, [node])


def test_a_model_behind_other_backends_gives_the_outputs_alone():
    port = {"dtype": "float32", "shape": [None, 5], "batched": True}
    state = {"dtype": "float32", "shape": [2, None, 3], "batched": True, "batch_axis": 1}
    model = element("OnnxTensor", inputs={"x": port}, outputs={"y": port, "s": state})
    tree = element("S", element("DecodeMat"), model)
    found = signature_of(tree)
    assert [(p.name, p.datatype, p.shape, p.each) for p in found.inputs.values()] == [
        ("data", "BYTES", (-1,), True)
    ]
    assert [(p.name, p.datatype, p.shape, p.batch_axis) for p in found.outputs.values()] == [
        ("y", "FP32", (-1, 5), None),  # the first axis has the items
        ("s", "FP32", (-1, 2, 3), None),
    ]


@pytest.mark.parametrize(
    "around",
    [
        lambda model: element("SyncTensor", model),
        lambda model: element("StreamPool", element("SyncTensor", model)),
        lambda model: element("S", model, element("SyncTensor")),
        lambda model: element("S", element("GpuTensor"), model, element("CpuTensor")),
        lambda model: element("S", element("FixTensor"), model),
        lambda model: element("SyncTensor", element("S", element("ContiguousTensor"), model)),
    ],
)
def test_words_that_move_tensors_or_wait_for_them_are_no_part_of_the_signature(around):
    port = {"dtype": "float32", "shape": [None, 5]}
    tree = around(element("TorchModule", inputs={"x": port}, outputs={"y": port}))
    found = signature_of(tree)
    ports = [*found.inputs.values(), *found.outputs.values()]
    assert [(p.name, p.datatype, p.shape) for p in ports] == [
        ("x", "FP32", (-1, 5)),
        ("y", "FP32", (-1, 5)),
    ]


class Described(headrace.Backend):
    """Describes itself as a model of rows of three numbers, and gives what it gets."""

    max = 4

    def describe(self):
        port = {"dtype": "float32", "shape": [None, 3]}
        return {"inputs": {"x": port}, "outputs": {"y": port}}

    def forward(self, batch):
        for request in batch:
            request["result"] = request["data"]


ROWS, FILES = [("x", [-1, 3])], [("data", [-1])]


@pytest.mark.parametrize(
    ("more", "inputs", "outputs"),
    [
        ({}, ROWS, ["y"]),
        ({"b": {"backend": "S[Identity,Forward[node.c]]"}}, ROWS, ["result"]),
        ({"b": {"backend": "Repost[c]"}}, ROWS, ["result"]),
        ({"b": {"backend": "ServeDescribed", "each": "boxes"}, "c": None}, ROWS, ["result"]),
        ({"a": {"backend": "ServeDescribed", "each": "boxes", "next": "b"}}, FILES, ["y"]),
    ],
)
def test_the_signature_is_that_of_the_nodes_where_requests_enter_and_end(more, inputs, outputs):
    headrace.register("ServeDescribed", Described, replace=True)
    config = {
        "a": {"backend": "ServeDescribed", "max": 4, "queue_size": 7, "next": "b"},
        "b": {"backend": "S[Forward[node.c],ServeDescribed]"},
        "c": {"backend": "ServeDescribed"},
    }
    made = {name: node for name, node in {**config, **more}.items() if node}
    catalogue = build_models({"m": made})
    (model,) = catalogue
    try:
        found = [(port.name, list(port.shape)) for port in model.signature.inputs.values()]
        assert (found, list(model.signature.outputs)) == (inputs, outputs)
        assert model.queue_size == (1024 if "a" in more else 7)
    finally:
        catalogue.close(timeout=5)


def test_a_pipeline_in_which_nobody_could_say_where_to_enter_is_refused():
    config = {"a": {"backend": "Identity"}, "b": {"backend": "Identity"}}
    with pytest.raises(SetupError, match=r"several nodes.*: a, b"):
        Server({"m": config}, port=0)
    front = {"backend": "S[Forward[node.a],Forward[node.b]]"}
    Server({"m": {**config, "front": front}}, port=0).close()


def test_what_is_wrong_with_a_dict_names_its_model():
    with pytest.raises(ConfigError) as caught:
        Server({"a": {"backend": "Identity"}, "b": {"n": {"backend": "Identitee"}}}, port=0)
    assert [one.path for one in caught.value.problems] == ["b.n.backend"]


@pytest.mark.parametrize(
    "inputs",
    [
        3, {"x": 3}, {"x": {"dtype": ["float32"], "shape": [1]}}, {"x": {"dtype": "float32", "shape": "n"}},
        {"x": {"dtype": "float32", "shape": [0.5]}}, {"x": {"dtype": "float32"}},
    ],
)  # fmt: skip
def test_what_backends_of_others_call_inputs_is_not_taken_for_tensors(inputs):
    tree = {"name": "Theirs", "built": {"inputs": inputs}, "children": []}
    found = signature_of(tree)
    assert list(found.inputs) == ["data"]


def test_an_input_without_axes_has_no_rows():
    port = {"dtype": "float32", "shape": []}
    tree = {"name": "Theirs", "built": {"inputs": {"x": port}}, "children": []}
    found = signature_of(tree)
    assert found.inputs["x"].batch_axis is None


def test_a_model_with_a_reserved_key_is_refused():
    class Asks(headrace.Backend):
        def forward(self, batch):
            raise NotImplementedError

        def describe(self):
            port = {"dtype": "float32", "shape": [None, 3]}
            return {"inputs": {"context": {**port, "key": "context"}}}

    headrace.register("ServeAsks", Asks, replace=True)
    with pytest.raises(SetupError, match=r"'context'.*reserved(.|\n)*inputs = "):
        Server({"m": {"backend": "ServeAsks"}}, port=0)


def test_the_serving_file_of_the_page_is_read(tmp_path):
    page = Page("plugins/serve/README.md")
    text, keys = page.block("toml", "scores.toml"), page.files["keys.toml"]
    (tmp_path / "keys.toml").write_text(keys)
    for content in (keys, "\ufeff" + keys.replace("\n", "\r\n")):
        (tmp_path / "keys.toml").write_bytes(content.encode())
        Keys.load(tmp_path / "keys.toml")
    (tmp_path / "keys.toml").write_bytes(b"# one\n# \xe9\n")
    with pytest.raises(ConfigError, match=r"keys\.toml:2: "):
        Keys.load(tmp_path / "keys.toml")
    (tmp_path / "serve.toml").write_bytes(b"\xef\xbb\xbf" + text.encode())
    headrace.register("ServeScores", lambda data: data[:, :4].tolist(), replace=True)
    (tmp_path / "scores.toml").write_text('backend = "ServeScores"\nmax = 4\n')
    x = {"name": "x", "datatype": "FP32", "shape": [2, 16], "data": list(range(32))}
    with Server(read_models([], str(tmp_path / "serve.toml")), port=0) as server:
        url = f"{server.url}/v2/models/scores/versions/2"
        body = httpx.get(url).json()
        (y,) = httpx.post(f"{url}/infer", json={"inputs": [x]}).json()["outputs"]
    assert body["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 16]}]
    assert (y["name"], y["shape"], y["data"]) == ("y", [2, 4], [0, 1, 2, 3, 16, 17, 18, 19])


def test_a_result_in_the_order_of_another_machine_is_sent_in_that_of_the_protocol():
    from headrace_serve.inference.messages import Tensor
    from headrace_serve.inference.tensors import tensor_view

    array = np.array([1, 2], ">i4")
    assert bytes(tensor_view(Tensor("y", "INT32", (2,), array))) == b"\1\0\0\0\2\0\0\0"


@pytest.mark.skipif(sys.platform != "linux", reason="asks the system about another process")
def test_connections_may_be_more_than_the_files_that_a_process_begins_with(tmp_path, start):
    import resource

    (tmp_path / "m.toml").write_text('backend = "Identity"')
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        process, _ = start("m.toml", "--port", "0", "--max-connections", "300", cwd=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = 300 + 1024 if hard == resource.RLIM_INFINITY else min(300 + 1024, hard)
    assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (most, hard)
    process.terminate()
    assert process.wait(300) == 0
