"""Clients with pins of their own, each in an environment of its own, against a server of this checkout.

    python -m benchmarks.serve.other_clients [--folder DIRECTORY]

- ``kserve``: its REST client (JSON and binary) and its gRPC client, with every call that they have.
- ``mlserver``, ``kserve``: their messages and those of `headrace_serve` in one process, in both
  orders of import.
- protobuf 7, which tritonclient does not allow beside itself.
- The oldest tritonclient that installs, with the calls of ``plugins/serve/tests/triton_calls.py``.

The environments are made under ``--folder`` (default: a temporary one), and used again if they are
there. Exit status 1 if anything fails.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "plugins" / "serve" / "tests"
SOURCES = [ROOT / "plugins" / "serve" / "src", ROOT / "core" / "src"]
NEEDS = {
    "kserve": ["kserve>=0.15", "pluggy", "grpcio"],
    "mlserver": ["mlserver>=1.6", "pluggy", "grpcio"],
    "protobuf7": ["protobuf>=7", "pluggy", "grpcio", "numpy", "orjson"],
    "oldest": ["tritonclient[all]==2.3.0", "numpy<1.24", "protobuf<3.21", "setuptools<70"],
}

KSERVE = """
import asyncio, sys
import grpc
import httpx
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest
from kserve.inference_client import RESTConfig

http, grpc_address = sys.argv[1:]
base = f"http://{http}"
array = np.array([[1, 2, 3]], np.float32)

def request(binary):
    one = InferInput(name="x", shape=[3], datatype="FP32")
    one.set_data_from_numpy(array[0], binary_data=binary)
    return InferRequest(model_name="same_fp32", infer_inputs=[one], request_id="id")

async def main():
    client = InferenceRESTClient(RESTConfig(protocol="v2"))
    assert await client.is_server_live(base) is True
    assert await client.is_server_ready(base) is True
    assert await client.is_model_ready(base, "same_fp32") is True
    for binary in (True, False):
        answer = await client.infer(base, request(binary), model_name="same_fp32")
        assert answer.id == "id"
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), array[0])
    try:
        await client.infer(base, request(True), model_name="nobody")
    except httpx.HTTPStatusError as error:
        assert error.response.status_code == 404
        assert "unknown model" in str(error)
    else:
        raise AssertionError("not refused")
    await client.close()
    client = InferenceGRPCClient(url=grpc_address)
    assert await client.is_server_live() is True
    assert await client.is_server_ready() is True
    assert await client.is_model_ready("same_fp32") is True
    for binary in (True, False):
        answer = await client.infer(request(binary))
        assert answer.id == "id"
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), array[0])
    wrong = request(True)
    wrong.model_name = "nobody"
    try:
        await client.infer(wrong)
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
    else:
        raise AssertionError("not refused")
    await client.close()

asyncio.run(main())
"""

BESIDE = """
import sys
for name in sys.argv[1:]:
    __import__(name)
from headrace_serve.grpc.messages import message
made = message("inference.ModelInferRequest")(model_name="m")
assert made.SerializeToString() == bytes([10, 1, 109])
"""
THEIRS = {
    "kserve": "kserve.protocol.grpc.grpc_predict_v2_pb2",
    "mlserver": "mlserver.grpc.dataplane_pb2",
}


def environment(folder: Path, name: str) -> Path:
    """Return the interpreter of an environment, made if it is not there."""
    python = folder / name / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not python.exists():
        venv.create(folder / name, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *NEEDS[name]], check=True)
    return python


def run(what: str, command: list[str | Path]) -> bool:
    """Run a program; say how it ended."""
    paths = os.pathsep.join(map(str, SOURCES))
    variables = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    print(f"{what}: {'ok' if done.returncode == 0 else 'FAILED'}", flush=True)
    if done.returncode:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def version(python: Path, name: str) -> str:
    code = f"import importlib.metadata as m; print({name!r}, m.version({name!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout


def check(folder: Path, http: str, grpc: str) -> bool:
    """Run every client; give whether all went well."""
    found = []
    for name in ("kserve", "mlserver"):
        python = environment(folder, name)
        print(version(python, name).strip(), version(python, "protobuf").strip())
        ours = "headrace_serve.grpc.messages"
        orders = ((ours, THEIRS[name]), (THEIRS[name], ours))
        found += [
            run(f"  {' before '.join(order)}", [python, "-c", BESIDE, *order]) for order in orders
        ]
        if name == "kserve":
            found.append(run("  its clients", [python, "-c", KSERVE, http, grpc]))
    python = environment(folder, "protobuf7")
    print(version(python, "protobuf").strip())
    found.append(run("  the messages", [python, "-c", BESIDE, "headrace_serve.grpc.tensors"]))
    python = environment(folder, "oldest")
    print(version(python, "tritonclient").strip(), version(python, "protobuf").strip())
    found.append(run("  every call", [python, TESTS / "triton_calls.py", http, grpc]))
    return all(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the environments are made, and kept")
    options = parser.parse_args()
    command = [sys.executable, "served_examples.py", "0", "0"]
    server = subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        http, grpc = (f"127.0.0.1:{port}" for port in server.stdout.readline().split())
        with tempfile.TemporaryDirectory() as temporary:
            return 0 if check(options.folder or Path(temporary), http, grpc) else 1
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
