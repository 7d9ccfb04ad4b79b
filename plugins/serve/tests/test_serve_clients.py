"""Clients that others wrote, unchanged: all versions of Triton's, and curl."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from environments import environment_with
from filelock import FileLock

from headrace_serve import Server

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
try:
    import served_examples
    import triton_calls
finally:
    sys.path.remove(str(HERE))


@pytest.fixture(scope="module")
def server():
    with Server(served_examples.models(), port=0, grpc_port=0) as made:
        yield made


@pytest.fixture
def addresses(server):
    return f"127.0.0.1:{server.port}", f"127.0.0.1:{server.grpc_port}"


@pytest.mark.parametrize("call", triton_calls.SYNC, ids=lambda call: call.__name__)
def test_tritonclient(addresses, call):
    call(*addresses)


@pytest.mark.parametrize("call", triton_calls.AIO, ids=lambda call: call.__name__)
def test_tritonclient_of_asyncio(addresses, call):
    asyncio.run(call(*addresses))


@pytest.mark.parametrize("call", triton_calls.CONTROL, ids=lambda call: call.__name__)
def test_tritonclient_loads_and_unloads(call):
    models = {name: served_examples.models()[name] for name in ("simple", "simple_string")}
    with Server(models, port=0, grpc_port=0, allow=["repository"]) as server:
        call(f"127.0.0.1:{server.port}", f"127.0.0.1:{server.grpc_port}")


OLDEST = ("tritonclient[all]==2.3.0", "numpy<1.24", "protobuf<3.21", "setuptools<70")
"""The oldest that installs, with what it was written for."""


@pytest.mark.peers
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="its numpy has no wheel there")
def test_the_oldest_tritonclient(addresses):
    command = [environment_with(*OLDEST) / "python", HERE / "triton_calls.py", *addresses]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
class TestCurl:
    """curl as people type it."""

    @staticmethod
    def curl(*words):
        return subprocess.run(
            ["curl", "-sS", "--max-time", "60", *words], capture_output=True, check=True
        ).stdout

    BODY = json.dumps(
        {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[1, 2]]}]}
    )

    def body(self, n):
        tensor = {"name": "x", "shape": [n], "datatype": "INT32", "data": list(range(n))}
        return json.dumps({"inputs": [tensor]}).encode()

    @pytest.mark.parametrize(
        "words",
        [
            (),
            ("--http1.0",),
            ("-H", "Transfer-Encoding: chunked"),
            ("-H", "Expect: 100-continue"),
            ("-H", "Content-Type: application/json"),
            ("-H", "Connection: close"),
            ("--compressed",),
            ("-H", "Accept-Encoding: br, gzip;q=0.5", "--compressed"),
        ],
    )
    def test_infer(self, server, tmp_path, words):
        (tmp_path / "body").write_bytes(self.body(3000))
        url = f"{server.url}/v2/models/same_int32/infer"
        got = self.curl(*words, "--data-binary", f"@{tmp_path}/body", url)
        assert json.loads(got)["outputs"][0]["data"] == list(range(3000))

    def test_a_large_file_waits_for_100_continue(self, server, tmp_path):
        (tmp_path / "body").write_bytes(self.body(400_000))  # curl asks first from 1 MB on
        got = self.curl(
            "-v", "--data-binary", f"@{tmp_path}/body", f"{server.url}/v2/models/same_int32/infer"
        )
        assert json.loads(got)["outputs"][0]["shape"] == [400_000]

    def test_several_requests_on_one_connection_and_a_wrong_one_between(self, server, tmp_path):
        (tmp_path / "body").write_bytes(self.body(2))
        url = f"{server.url}/v2/models/same_int32/infer"
        said = self.curl(
            "-w", "%{http_code} %{num_connects}\n", "-o", str(tmp_path / "out"),
            "--data-binary", f"@{tmp_path}/body", url, "--next",
            "-sS", "-w", "%{http_code} %{num_connects}\n", "-o", str(tmp_path / "out"),
            "-d", "no json", url, "--next",
            "-sS", "-w", "%{http_code} %{num_connects}\n", "-o", str(tmp_path / "out"),
            "--data-binary", f"@{tmp_path}/body", url,
        )  # fmt: skip
        assert said.decode().splitlines() == ["200 1", "400 0", "200 0"]

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [
            ("GET", "/v2", 200),
            ("DELETE", "/v2", 405),
            ("TRACE", "/v2/models/stats", 405),
            ("GET", "/v2/models/same_int32/infer", 405),
            ("GET", "/nothing", 404),
            ("DELETE", "/nothing", 404),
        ],
    )
    def test_methods(self, server, method, path, status):
        said = self.curl(
            "-X", method, "-o", "/dev/null", "-w", "%{http_code} %header{allow}", server.url + path
        ).decode()
        assert int(said[:3]) == status
        assert ("GET" in said or "POST" in said) == (status == 405)


@pytest.fixture
def perf_analyzer():
    """Return a function that runs perf_analyzer, Triton's client in C++: the last one that needs glibc 2.35 alone."""
    folder = environment_with("tritonclient==2.41.1", "nvidia-cuda-runtime-cu12")
    with FileLock(f"{folder.parent}.lock"):
        if not (folder.parent / "usr").exists():
            subprocess.run(["apt-get", "download", "libb64-0d"], cwd=folder.parent, check=True)
            (package,) = folder.parent.glob("libb64-0d_*.deb")
            subprocess.run(["dpkg-deb", "-x", package, folder.parent], check=True)
    found = [next(folder.parent.rglob(name)) for name in ("libb64.so.0d", "libcudart.so.12")]
    paths = ":".join(str(one.parent) for one in found)

    def run(*words):
        for window_ms in (
            "100",
            "2000",
            "40000",
        ):  # longer where a slow machine answered too little
            done = subprocess.run(
                [folder / "perf_analyzer", *words, "--measurement-interval", window_ms, "-s", "999"],
                env={"LD_LIBRARY_PATH": paths}, capture_output=True, text=True, check=False,
            )  # fmt: skip
            output = done.stdout + done.stderr
            if not re.search("larger time window|ncrease the (--)?measurement.interval", output):
                break
        return done.returncode, output

    return run


@pytest.mark.peers
@pytest.mark.skipif(
    shutil.which("apt-get") is None or platform.machine() != "x86_64", reason="its libraries"
)
@pytest.mark.parametrize(
    "words",
    [
        (), ("-b", "4"), ("-a", "--concurrency-range", "8"),
        ("-m", "simple_identity", "--shape", "INPUT0:1,3", "--string-length", "5"),
        ("--grpc-compression-algorithm", "gzip"),
        ("--streaming", "-a", "--concurrency-range", "4"),
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_perf_analyzer(perf_analyzer, protocol, words):
    if protocol == "http" and words and words[0] in ("--streaming", "--grpc-compression-algorithm"):
        pytest.skip("of gRPC alone")
    with Server(served_examples.models(), port=0, grpc_port=0) as server:
        port = server.port if protocol == "http" else server.grpc_port
        model = () if "-m" in words else ("-m", "simple")
        status, output = perf_analyzer(*model, *words, "-i", protocol, "-u", f"127.0.0.1:{port}")
    assert "throughput: " in output, output
    assert status == 0, output
