"""Metadata, health, answers and errors of headrace-serve beside those of Triton with the same model, field by field.

    python -m benchmarks.serve.beside_triton [--folder DIRECTORY]

Triton comes from PyTriton, in an environment that is made under ``--folder`` (default: a temporary one) and used again
if it is there. Both serve a model that doubles rows of three numbers, at most four rows in a request. Each question
goes to both, over REST and gRPC: the status must be the same, an answer must have the same fields with the same values,
and an error of REST a text under ``error``. What differs, and why, stands in `OTHER_STATUS` and `OTHER_FIELDS`.
(PyTriton 0.7 asks for a right before it gives statistics, so it is the version before.)
Exit status 1 if anything else differs.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import threading
import venv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import tritonclient.grpc as triton
from google.protobuf.json_format import MessageToDict
from tritonclient.utils import InferenceServerException

import headrace
from headrace_serve import Server

if TYPE_CHECKING:
    from collections.abc import Callable

NEEDS = "nvidia-pytriton==0.6.0"
THEIRS = """
import sys
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

@batch
def double(x):
    return {"y": x * 2}

http, grpc, metrics = map(int, sys.argv[1:])
config = TritonConfig(http_port=http, grpc_port=grpc, metrics_port=metrics)
with Triton(config=config) as server:
    port = {"dtype": np.float32, "shape": (3,)}
    server.bind("m", double, [Tensor(name="x", **port)], [Tensor(name="y", **port)], config=ModelConfig(max_batch_size=4))
    server.serve()
"""
LOCK = """import multiprocessing.resource_tracker as _tracker, threading as _threading
if not hasattr(_tracker._resource_tracker._lock, "_recursion_count"):
    _tracker._resource_tracker._lock = _threading._PyRLock()
"""
"""For PyTriton's worker: its interpreter is older than the standard library that it finds here."""

OTHER_STATUS = {
    (
        "GET",
        "/v2/models/nope/ready",
    ): "an unknown model is 404 everywhere, Triton's readiness says 400",
    ("GET", "/v2/models/m/versions/7/ready"): "the same for a version",
    ("GET", "/v2/models/nope/stats"): "the same for statistics",
    ("grpc", "statistics of nobody"): "the same",
    ("POST", "no inputs"): "what the client has written wrong is 400, in Triton 500",
    ("POST", "no JSON"): "the same",
    ("POST", "too few elements"): "the same",
    ("POST", "elements of another type"): "the same",
    ("POST", "a timeout that is none"): "the same",
}
"""Questions that have another status here, with the reason."""

OTHER_FIELDS = frozenset(
    [
        # who serves, and how it runs a model
        "version", "extensions", "platform", "backend", "runtime", "default_model_filename", "instance_group",
        "dynamic_batching", "optimization", "parameters", "cc_model_filenames", "metric_tags", "model_warmup",
        "model_operations", "model_transaction_policy", "model_repository_agents", "response_cache", "model_metrics",
        # of inputs and outputs what no pipeline has
        "format", "is_shape_tensor", "allow_ragged_batch", "optional", "is_non_linear_format_io", "label_filename",
        "batch_input", "batch_output",
        # times, and the requests that were refused before they reached the model
        "ns", "last_inference", "fail", "response_stats", "memory_usage",
    ]
)  # fmt: skip
"""Fields that are Triton's alone, or have another value by their nature."""


def one(**changes: Any) -> dict[str, Any]:
    """Return a body of inference."""
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3], **changes}]
    }


REST: dict[str, tuple[str, str, Any]] = {
    **{
        path: ("GET", path, None)
        for path in (
            "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/v2/models/nope/ready",
            "/v2/models/m/versions/1/ready", "/v2/models/m/versions/7/ready", "/v2/models/m",
            "/v2/models/m/versions/1", "/v2/models/nope", "/v2/models/m/versions/7", "/v2/models/m/config",
            "/v2/models/m/stats", "/v2/models/stats", "/v2/models/nope/stats", "/v2/models/m/infer", "/nothing",
        )
    },
    "infer": ("POST", "", one()),
    "infer with an id": ("POST", "", {"id": "7", **one()}),
    "infer of an output": ("POST", "", {**one(), "outputs": [{"name": "y"}]}),
    "nested lists": ("POST", "", one(data=[[1, 2, 3]])),
    "too many rows": ("POST", "", one(shape=[5, 3], data=[1.0] * 15)),
    "no row": ("POST", "", one(shape=[0, 3], data=[])),
    "no inputs": ("POST", "", {}),
    "an input is missing": ("POST", "", {"inputs": []}),
    "an input of another name": ("POST", "", one(name="z")),
    "an input twice": ("POST", "", {"inputs": one()["inputs"] * 2}),
    "an unknown datatype": ("POST", "", one(datatype="NOPE")),
    "another shape": ("POST", "", one(shape=[3])),
    "too few elements": ("POST", "", one(data=[1, 2])),
    "elements of another type": ("POST", "", one(data=["a", "b", "c"])),
    "an unknown output": ("POST", "", {**one(), "outputs": [{"name": "q"}]}),
    "a timeout that is none": ("POST", "", {**one(), "parameters": {"timeout": "a"}}),
    "no JSON": ("POST", "", b"no JSON"),
}  # fmt: skip


def given(name: str = "x", *shape: int, datatype: str = "FP32") -> list[Any]:
    """Return the input of a call."""
    made = triton.InferInput(name, list(shape or (1, 3)), datatype)
    made.set_data_from_numpy(
        np.ones(shape or (1, 3), np.float32 if datatype == "FP32" else np.int32)
    )
    return [made]


GRPC: dict[str, Callable[[Any], Any]] = {
    "live": lambda c: c.is_server_live(),
    "ready": lambda c: c.is_server_ready(),
    "ready model": lambda c: c.is_model_ready("m"),
    "ready nobody": lambda c: c.is_model_ready("nope"),
    "ready version": lambda c: c.is_model_ready("m", "9"),
    "metadata": lambda c: c.get_model_metadata("m"),
    "metadata of nobody": lambda c: c.get_model_metadata("nope"),
    "configuration": lambda c: c.get_model_config("m").config,
    "statistics of nobody": lambda c: c.get_inference_statistics("nope"),
    "infer": lambda c: c.infer("m", given(), request_id="9").get_response(),
    "too many rows": lambda c: c.infer("m", given("x", 5, 3)),
    "nobody": lambda c: c.infer("nope", given()),
    "no version": lambda c: c.infer("m", given(), model_version="9"),
    "another name": lambda c: c.infer("m", given("z")),
    "another datatype": lambda c: c.infer("m", given(datatype="INT32")),
    "another shape": lambda c: c.infer("m", given("x", 1, 4)),
    "no input": lambda c: c.infer("m", []),
    "an unknown output": lambda c: c.infer(
        "m", given(), outputs=[triton.InferRequestedOutput("q")]
    ),
    "a short time": lambda c: c.infer("m", given(), client_timeout=1e-6),
}


class Double(headrace.Backend):
    """Doubles what it gets; it describes its input and output as models do."""

    max = None

    def describe(self) -> dict[str, Any]:
        """Return the input and the output."""
        port = {"dtype": "float32", "shape": [None, 3]}
        return {"inputs": {"x": {**port, "key": "data"}}, "outputs": {"y": port}}

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Double the data of each request."""
        for request in batch:
            request["result"] = request["data"] * 2


def compare(theirs: Any, ours: Any, *place: str) -> list[str]:
    """Return what differs: fields of Triton's that ours lacks, and fields with another value."""
    if not OTHER_FIELDS.isdisjoint(place) or (place == ("name",) and theirs == "triton"):
        return []
    if isinstance(theirs, dict) and isinstance(ours, dict):
        pairs = [(name, value, ours.get(name)) for name, value in theirs.items()]
        return [one for name, *pair in pairs for one in compare(*pair, *place, name)]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        listed = enumerate(zip(theirs, ours, strict=True))
        return [one for i, pair in listed for one in compare(*pair, *place, str(i))]
    return [] if theirs == ours else [f"{'.'.join(place)}: {theirs!r}, here {ours!r}"]


def over_rest(base: str, method: str, path: str, body: Any) -> tuple[int, Any]:
    """Ask over REST; give the status, and the answer or, of an error, whether it has a text."""
    sent = (
        {"content": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
    )
    answer = httpx.request(method, base + (path or "/v2/models/m/infer"), timeout=60, **sent)
    if answer.status_code >= 400:
        return answer.status_code, {"error": bool(answer.json()["error"])}
    return (
        answer.status_code,
        answer.json() if answer.content else {},
    )  # Triton's health has no body


def over_grpc(client: Any, call: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Ask over gRPC; give the status, and the answer."""
    try:
        found = call(client)
    except InferenceServerException as error:
        return error.status(), None
    return "OK", (
        MessageToDict(found, preserving_proto_field_name=True)
        if hasattr(found, "DESCRIPTOR")
        else found
    )


def started(folder: Path) -> tuple[Any, int, int]:
    """Start Triton, in an environment that is made if need be; give the process and its ports."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", NEEDS], check=True)
        (data,) = folder.rglob("pytriton/proxy/data.py")
        text = data.read_text()
        data.write_text(
            re.sub(r"^import ", lambda found: LOCK + found[0], text, count=1, flags=re.MULTILINE)
        )
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [one.getsockname()[1] for one in holders]
    for one in holders:
        one.close()
    command = [python, "-c", THEIRS, *map(str, ports)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pause = threading.Event()
    for _ in range(600):
        try:
            if httpx.get(f"http://127.0.0.1:{ports[0]}/v2/models/m/ready").status_code == 200:
                return process, ports[0], ports[1]
        except httpx.TransportError:
            pass
        if process.poll() is not None:
            raise SystemExit("Triton does not start here; run it by hand to see why")
        pause.wait(0.2)
    process.terminate()
    raise SystemExit("Triton is not ready after two minutes")


def check(server: Server, http: int, grpc: int) -> bool:
    """Ask both all questions; give whether nothing differs that may not."""
    clients = [
        triton.InferenceServerClient(f"127.0.0.1:{port}") for port in (grpc, server.grpc_port)
    ]
    rows: list[tuple[tuple[str, str], Any, Any]] = []
    for name, question in REST.items():
        theirs, ours = (
            over_rest(base, *question) for base in (f"http://127.0.0.1:{http}", server.url)
        )
        rows.append(((question[0], name), theirs, ours))
    for name, call in GRPC.items():
        rows.append((("grpc", name), *(over_grpc(client, call) for client in clients)))
    for client in clients:
        client.close()
    good = True
    for place, theirs, ours in rows:
        differs = [] if theirs[0] == ours[0] else [f"status {theirs[0]}, here {ours[0]}"]
        why = OTHER_STATUS.get(place)
        if why is None and not differs:
            differs = compare(theirs[1], ours[1])
        wrong = bool(differs) != (why is not None)
        good = good and not wrong
        told = "; ".join(differs) or "the same"
        print(f"{'WRONG' if wrong else 'ok'} {' '.join(place)}: {told}{f' ({why})' if why else ''}")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, help="where the environment is made, and kept")
    options = parser.parse_args()
    headrace.register("BesideDouble", Double, replace=True)
    with tempfile.TemporaryDirectory() as temporary:
        process, http, grpc = started(options.folder or Path(temporary))
        try:
            with Server(
                {"m": {"backend": "BesideDouble", "max": 4}}, port=0, grpc_port=0
            ) as server:
                return 0 if check(server, http, grpc) else 1
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
