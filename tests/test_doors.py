"""What a user holds is what he names: a bare model served to a client of others, and files from a hub."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from environments import environment_with, packages
from processes import run_process

import headrace

onnx = pytest.importorskip("onnx")
pytest.importorskip("headrace_ort")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHT = np.arange(600, dtype=np.float32)
ROW = np.ones((1, 600), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with ``net.onnx``, and ``sub/big.onnx`` whose weights are in a file beside it."""
    made = tmp_path_factory.mktemp("doors")
    (made / "sub").mkdir()
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    ports = [helper.make_tensor_value_info(name, kind, ["n", 600]) for name in "xy"]
    weight = onnx.numpy_helper.from_array(WEIGHT, "w")
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [weight])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, str(made / "net.onnx"))
    beside = {"save_as_external_data": True, "location": "big.onnx_data", "size_threshold": 9}
    onnx.save(model, str(made / "sub" / "big.onnx"), **beside)
    return made


def says(*arguments, **more):
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    return done.returncode, done.stdout + done.stderr


def test_one_command_serves_a_bare_file_to_tritonclient(folder):
    triton = pytest.importorskip("tritonclient.http")
    command = [sys.executable, "-m", "headrace", "serve", "net.onnx", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = json.loads(server.stdout.readline())["url"]
            client = triton.InferenceServerClient(url.removeprefix("http://"))
            asked = triton.InferInput("x", [2, 600], "FP32")
            asked.set_data_from_numpy(np.vstack([ROW, 3 * ROW]))
            found = client.infer("net", [asked]).as_numpy("y")
            np.testing.assert_array_equal(found, np.vstack([WEIGHT, 3 * WEIGHT]))
            config = client.get_model_config("net")
            assert (config["max_batch_size"], config["name"]) == (8, "net")
        finally:
            server.terminate()


@pytest.mark.parametrize("command", ["check", "explain"])
def test_the_first_commands_of_a_newcomer_say_nothing_of_utf_8(folder, command):
    status, said = says(command, "net.onnx", cwd=folder)
    assert status == 0
    assert "OnnxTensor" in said
    assert "UTF-8" not in said


class Hub:
    """A hub on the loopback: the files of a folder as those of ``org/net``, and what it was asked for."""

    def __init__(self, folder):
        hub = self
        self.folder, self.asked, self.status = folder, [], None

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                """Write nothing."""

            def do_GET(self):
                hub.answer(self, self.path.partition("?")[0])

            do_HEAD = do_GET  # noqa: N815 - as the library names it

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def answer(self, to, path):
        self.asked.append(f"{to.command} {path}")
        files = {str(one.relative_to(self.folder)): one for one in self.folder.rglob("*.*")}
        content, headers = b"", {}
        _, _, name = path.partition("/resolve/")
        name = name.partition("/")[2]
        if self.status is None and name in files:
            content = files[name].read_bytes()
            headers = {"ETag": f'"{sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        elif self.status is None and "/tree/" in path:
            sizes = {name: one.stat().st_size for name, one in files.items()}
            found = [
                {"type": "file", "path": n, "oid": "0" * 40, "size": s} for n, s in sizes.items()
            ]
            content = json.dumps(found).encode()
        elif self.status is None and path.startswith("/api/models/org/net"):
            siblings = [{"rfilename": name} for name in files]
            content = json.dumps({"id": "org/net", "sha": COMMIT, "siblings": siblings}).encode()
        else:
            headers = {"X-Error-Code": "EntryNotFound"} if self.status is None else {}
        to.send_response(200 if content else self.status or 404)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            to.send_header(key, value)
        to.end_headers()
        if to.command == "GET":
            to.wfile.write(content)


@pytest.fixture
def libraries(tmp_path):
    """Return a function that installs libraries in a folder of their own, and gives the environment of who uses them."""

    def install(*requirements):
        path = os.pathsep.join(
            [os.environ.get("PYTHONPATH", ""), str(packages(environment_with(*requirements)))]
        )
        return {**os.environ, "PYTHONPATH": path, "HEADRACE_CACHE": str(tmp_path / "cache")}

    return install


@pytest.fixture
def hub(folder, tmp_path, libraries):
    """Start a hub; ``hub.run(*arguments)`` runs `headrace` with the client of the hub, which is unmodified."""
    environment = libraries("huggingface_hub==2.4.0")
    made = Hub(folder)
    made.environment = {
        **environment,
        "HF_ENDPOINT": f"http://127.0.0.1:{made.server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
    }
    made.run = lambda *arguments, **more: says(
        *arguments, cwd=tmp_path, env={**made.environment, **more}
    )
    yield made
    made.server.shutdown()
    made.server.server_close()
    made.thread.join()


@pytest.mark.peers
def test_a_file_of_a_hub_comes_with_its_weights_when_it_is_built(hub, tmp_path):
    (tmp_path / "line.toml").write_text(
        'backend = "OnnxTensor"\nmodel = "hf://org/net/sub/big.onnx"\n'
    )
    np.save(tmp_path / "x.npy", ROW)
    status, said = hub.run("check", "line.toml")
    assert (status, hub.asked) == (0, [])
    assert "hf://org/net/sub/big.onnx: not here yet. It may change: two machines" in said
    status, said = hub.run("run", "line.toml", "x.npy", "--json", "-q")
    assert status == 0, said
    line = next(line for line in said.splitlines() if line.startswith("{"))
    np.testing.assert_array_equal(json.loads(line)["result"], [WEIGHT])
    assert f"hf://org/net/sub/big.onnx may change, and is revision {COMMIT} now" in said
    assert any(one.endswith("big.onnx_data") for one in hub.asked)
    del hub.asked[:]
    for environment in ({}, {"HEADRACE_OFFLINE": "1"}):
        status, said = hub.run("check", "line.toml", "--build", **environment)
        assert status == 0, said
        assert "hf://org/net/sub/big.onnx: here, sha256=" in said
        assert not any("/resolve/" in one for one in hub.asked)
        assert ("GET /api/models/org/net" in hub.asked) == (not environment)
        del hub.asked[:]


@pytest.mark.peers
def test_an_address_of_a_hub_is_a_configuration(hub):
    status, said = hub.run("check", f"hf://org/net@{COMMIT}/net.onnx", "--set", "max=4", "--build")
    assert status == 0, said
    assert "may change" not in said
    status, said = hub.run("check", "hf://org/net/none.onnx")
    assert status == 2
    assert f"org/net at revision main ({COMMIT}) has no file 'none.onnx'" in said
    hub.status = 401
    status, said = hub.run("check", "hf://org/net/sub/big.onnx")
    assert status == 2
    assert "HF_TOKEN" in said


@pytest.mark.peers
def test_a_whole_repository_of_a_hub_is_a_folder_of_models(hub, tmp_path):
    command = [sys.executable, "-m", "headrace", "serve", f"hf://org/net@{COMMIT}"]
    for environment in ({}, {"HEADRACE_OFFLINE": "1"}):
        with subprocess.Popen(
            [*command, "--port", "0", "--json"],
            cwd=tmp_path, env={**hub.environment, **environment}, stdout=subprocess.PIPE, text=True,
        ) as server:  # fmt: skip
            try:
                url = json.loads(server.stdout.readline())["url"]
                with urllib.request.urlopen(f"{url}/v2/models/net") as answer:
                    (port,) = json.load(answer)["inputs"]
                assert (port["name"], port["datatype"], port["shape"]) == ("x", "FP32", [-1, 600])
            finally:
                server.terminate()
        names = {one.rpartition("/")[2] for one in hub.asked if "/resolve/" in one}
        assert names == ({"net.onnx", "big.onnx", "big.onnx_data"} if not environment else set())
        del hub.asked[:]


MOTO = """
import sys, boto3
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
url = "http://%s:%d" % server.get_host_and_port()
bucket = boto3.client("s3", endpoint_url=url)
bucket.create_bucket(Bucket="models")
bucket.upload_file(sys.argv[1], "models", "nets/net.onnx")
print(url, flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.mark.peers
def test_a_file_of_a_bucket_is_fetched_once(folder, tmp_path, libraries):
    environment = libraries("moto[server]==5.2.5", "s3fs==2026.9.0", "boto3==1.43.117")
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    environment |= {**keys, "AWS_DEFAULT_REGION": "us-east-1"}
    address, row = "s3://models/nets/net.onnx", tmp_path / "x.npy"
    np.save(row, ROW)
    source = ["run", f"OnnxTensor(model={address!r})", str(row), "--json", "-q"]
    with subprocess.Popen(
        [sys.executable, "-c", MOTO, folder / "net.onnx"],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        there = environment | {"AWS_ENDPOINT_URL": server.stdout.readline().strip()}
        missing = ["check", "s3://models/none.onnx"]
        status, said = says(*missing, cwd=tmp_path, env=there)
        assert (status, "s3://models/none.onnx: FileNotFoundError" in said) == (2, True), said
        found = [says(*source, cwd=tmp_path, env=there)]
        server.stdin.close()
    found.append(says(*source, cwd=tmp_path, env=there))  # the bucket is gone
    for status, said in found:
        assert status == 0, said
        line = next(line for line in said.splitlines() if line.startswith("{"))
        np.testing.assert_array_equal(json.loads(line)["result"], [WEIGHT])


CLOSED = """
import sys, numpy
calls = []
sys.addaudithook(lambda event, args: calls.append(event) if event in ("socket.connect", "socket.getaddrinfo") else None)
import headrace
headrace.explain("line.toml")
with headrace.pipe("line.toml") as pipe:
    row = numpy.ones((1, 600), numpy.float32)
    for _ in range(1000):
        pipe({"data": row})
print(calls)
"""


@pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode != 0,
    reason="no network can be closed here",
)
def test_what_is_here_needs_no_network(folder, tmp_path, monkeypatch):
    content = (folder / "net.onnx").read_bytes()
    address = f"https://models.example/net.onnx#sha256={sha256(content).hexdigest()}"
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    source = {"backend": "OnnxTensor", "model": address}
    (element,) = headrace.explain(source)["nodes"].values()
    place = Path(element["tree"]["options"]["model"]["value"])
    place.parent.mkdir(parents=True)
    place.write_bytes(content)  # as an earlier build has left it
    said = {"address": address, "revision": None, "sha256": "0" * 64}
    (place.parents[1] / "origin.json").write_text(json.dumps(said))
    (tmp_path / "line.toml").write_text(f'backend = "OnnxTensor"\nmodel = "{address}"\n')
    command = ["unshare", "-rn", sys.executable, "-c", CLOSED]
    done = run_process(command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
