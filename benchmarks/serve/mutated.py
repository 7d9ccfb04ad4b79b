"""Very many malformed bodies over REST and messages over gRPC: 4xx each, no 500, no growth.

    python -m benchmarks.serve.mutated [--count 1000000] [--seed 1] [--protocol rest grpc] [--json FILE]

The benchmark changes bytes, values, keys and lengths of valid requests (``plugins/serve/tests/mutations.py``) and sends
them to a server in a process of its own: over REST several at a time on one connection, over gRPC in streams, which
answer each message once. Some requests are still valid. Printed are the answers by status, and the memory of the server
after a tenth and at the end. Exit status 1 if an answer is not 200 or 4xx (504
where a timeout became 1 us; over gRPC OK, INVALID_ARGUMENT or NOT_FOUND), one is missing, or the memory has grown by more than 20 MB.
"""

from __future__ import annotations

import collections
import json
import random
import runpy
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
from benchmarks.load import arguments, environment, print_environment, save

from headrace_serve.grpc.messages import message

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parents[2] / "plugins" / "serve" / "tests"
MUTATIONS = runpy.run_path(str(TESTS / "mutations.py"))
AT_A_TIME = 64
MOST_GROWTH_BYTES = 20 << 20
OUTCOMES = (("200", ""), ("400", "input"), ("504", "deadline"))
"""Statuses that may come, and a word of their error; 504: a mutation may set a timeout of 1 us."""
SERVER = """
import runpy, sys, threading
from headrace_serve import Server
models = runpy.run_path(sys.argv[1])["models"]()
with Server(models, port=0, grpc_port=0) as server:
    print(server.port, server.grpc_port, flush=True)
    threading.Event().wait()
"""


def resident_bytes(pid: int) -> int:
    """Return the memory of a process; 0 where the system does not tell."""
    path = Path(f"/proc/{pid}/status")
    if not path.exists():
        return 0
    (line,) = (one for one in path.read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) << 10


def rest(port: int, made: random.Random, count: int) -> Iterator[str]:
    """Send bodies, several at a time; give the status of each."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        received = connection.makefile("rb")
        for start in range(0, count, AT_A_TIME):
            bodies = [MUTATIONS["rest_body"](made) for _ in range(min(AT_A_TIME, count - start))]
            connection.sendall(b"".join(request(*one) for one in bodies))
            for one in bodies:
                status = received.readline().split()[1].decode()
                length = 0
                while line := received.readline().strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                answer = received.read(length)
                code = "" if status == "200" else json.loads(answer)["code"]
                if (status, code) not in OUTCOMES:
                    print(status, one, answer)
                    status = "wrong"
                yield status


def request(model: str, body: bytes, length: str | None) -> bytes:
    length_header = "" if length is None else f"Inference-Header-Content-Length: {length}\r\n"
    head = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\n{length_header}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


def over_grpc(port: int, made: random.Random, count: int) -> Iterator[str]:
    """Send messages in streams; give the status of each."""
    right = MUTATIONS["grpc_requests"](message("inference.ModelInferRequest"))
    answered = message("inference.ModelStreamInferResponse")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        unary = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        changed = MUTATIONS["changed_bytes"]
        for start in range(0, count, 1000):
            data = [changed(made, made.choice(right)) for _ in range(min(1000, count - start))]
            # One message in 50 goes as a unary call, whose answer has a status of its own. The others
            # go through the stream, which answers them in their order.
            alone, together = data[: len(data) // 50 + 1], data[len(data) // 50 + 1 :]
            for one in alone:
                try:
                    unary(one)
                    yield "OK"
                except grpc.RpcError as error:
                    yield error.code().name
            for one in stream(iter(together)):
                text = answered.FromString(one).error_message
                # The server describes an error that is not the client's by node and code alone.
                yield "OK" if not text else "failed" if " failed [" in text else "refused"


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--protocol", nargs="*", choices=("rest", "grpc"), default=["rest", "grpc"])
    options = parser.parse_args()
    count = min(options.count, 500) if options.quick else options.count
    about = environment(["headrace-serve", "uvicorn", "grpcio", "protobuf", "orjson"])
    print_environment(about)
    command = [sys.executable, "-c", SERVER, str(TESTS / "mutations.py")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    ports = dict(zip(("rest", "grpc"), map(int, server.stdout.readline().split()), strict=True))
    figures: dict[str, Any] = {}
    wrong = 0
    try:
        for protocol in options.protocol:
            send = {"rest": rest, "grpc": over_grpc}[protocol]
            statuses: collections.Counter[str] = collections.Counter()
            early = began = 0.0
            began = time.perf_counter()
            for number, status in enumerate(
                send(ports[protocol], random.Random(options.seed), count)
            ):
                statuses[status] += 1
                if number == count // 10:
                    early = resident_bytes(server.pid)
            seconds = time.perf_counter() - began
            late = resident_bytes(server.pid)
            counts = ", ".join(f"{status}: {n}" for status, n in sorted(statuses.items()))
            print(
                f"{protocol}: {sum(statuses.values())} answers in {seconds:.0f} s: {counts}; "
                f"memory {early / 1e6:.1f} MB after a tenth, {late / 1e6:.1f} MB at the end",
                flush=True,
            )
            allowed = {
                "200",
                "400",
                "504",
                "DEADLINE_EXCEEDED",
                "OK",
                "refused",
                "INVALID_ARGUMENT",
                "NOT_FOUND",
            }
            wrong += set(statuses) - allowed != set() or sum(statuses.values()) != count
            wrong += late - early > MOST_GROWTH_BYTES
            figures[protocol] = {"statuses": statuses, "early_bytes": early, "late_bytes": late}
        wrong += server.poll() is not None
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()
    save(options.json, about, figures)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
