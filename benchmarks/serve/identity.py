"""The cost of the protocol: a backend of a user in headrace-serve, beside the bare servers under it.

The backend is a class in a file, `benchmarks/serve/copy_array.py`, which ``import = [...]`` names. Its
``forward`` copies the array of each request. It is no word of core, since a server may answer a word in
a way in which it answers no user.

A request is one FP32 row as binary data: 64 bytes, or 600 kB in and out. ``floor`` is uvicorn and
grpc.aio that send back what they get (`benchmarks.serve.floor`); both sides get the same bytes from the
same clients, which are threads of this process with a bare socket each, or a channel of grpcio each.
Servers run in processes of their own, in turn; one whose turn it is not gets no request and waits.

The clients share the machine with the servers. So the ratio of the processor time of the servers is
printed beside that of the requests per second: where the clients are the limit, the first tells.

    python -m benchmarks.serve.identity [--clients 10] [--server-cores 0,1 --client-cores 2-15] [--json FILE]
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import orjson
from benchmarks.load import (
    Load,
    arguments,
    drive,
    environment,
    in_turn,
    middle,
    on_cores,
    print_environment,
    ratio,
    save,
)
from benchmarks.serve.floor import METHOD
from benchmarks.serve.ours import SIDES
from benchmarks.servers.process import read_cores

from headrace_serve.grpc.messages import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WANTED = {("rest", 16): 0.4, ("grpc", 16): 0.6, ("rest", 150_000): 0.7, ("grpc", 150_000): 0.7}
START_SECONDS = 60.0


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class Served:
    """A server in a process of its own, ready when made."""

    def __init__(self, module: str, cores: list[int] | None = None) -> None:
        self.port, self.grpc_port = free_port(), free_port()
        command = [sys.executable, "-m", module, str(self.port), str(self.grpc_port)]
        with on_cores(cores):
            self.process = subprocess.Popen(command)
        until = time.perf_counter() + START_SECONDS
        for port in (self.port, self.grpc_port):
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    if self.process.poll() is not None or time.perf_counter() > until:
                        raise SystemExit(f"{module} does not start") from None
                    time.sleep(0.05)

    def cpu_seconds(self) -> float:
        """Return the processor time of the process; 0 where the system does not tell."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the server's process."""
        self.process.kill()
        self.process.wait()


def rest_request(n: int) -> bytes:
    row = np.arange(n, dtype="<f4").tobytes()
    tensor = {"name": "x", "shape": [1, n], "datatype": "FP32"}
    head = orjson.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(row)}}],
            "parameters": {"binary_data_output": True},
        }
    )
    return (
        f"POST /v2/models/n{n}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\n"
        f"Content-Length: {len(head) + len(row)}\r\n\r\n"
    ).encode() + head + row  # fmt: skip


def grpc_request(n: int) -> bytes:
    made = message("inference.ModelInferRequest")(model_name=f"n{n}")
    made.inputs.add(name="x", datatype="FP32", shape=[1, n])
    made.raw_input_contents.append(np.arange(n, dtype="<f4").tobytes())
    raw: bytes = made.SerializeToString()
    return raw


def _received(connection: socket.socket, most: int) -> bytes:
    part = connection.recv(most)
    if not part:
        raise RuntimeError("the server has closed the connection")
    return part


@contextlib.contextmanager
def rest_client(served: Served, n: int) -> Iterator[Callable[[int], object]]:
    """Return a function that sends a request over REST, on a connection per thread."""
    request, local = rest_request(n), threading.local()
    expected, opened = np.arange(n, dtype="<f4").tobytes()[-4:], []

    def call(_: int) -> None:
        if not hasattr(local, "connection"):
            local.connection = socket.create_connection(("127.0.0.1", served.port), timeout=60)
            local.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.append(local.connection)
        local.connection.sendall(request)
        received = b""
        while b"\r\n\r\n" not in received:
            received += _received(local.connection, 1 << 20)
        head, _, body = received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
        left, last = length - len(body), body
        while left:
            last = _received(local.connection, min(left, 1 << 20))
            left -= len(last)
        if not head.startswith(b"HTTP/1.1 200") or last[-4:] != expected[-len(last) :]:
            raise RuntimeError(f"{head!r} {body[:200]!r}")

    yield call
    for connection in opened:
        connection.close()


@contextlib.contextmanager
def grpc_client(served: Served, n: int) -> Iterator[Callable[[int], object]]:
    """Return a function that sends a request over gRPC, on a channel per thread."""
    request, local = grpc_request(n), threading.local()
    opened: list[Any] = []
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]

    def call(_: int) -> None:
        if not hasattr(local, "infer"):
            channel = grpc.insecure_channel(f"127.0.0.1:{served.grpc_port}", options)
            opened.append(channel)
            local.infer = channel.unary_unary(METHOD)
        if len(local.infer(request)) < 4 * n:
            raise RuntimeError("an answer without its tensor")

    yield call
    for channel in opened:
        channel.close()


def window(served: Served, protocol: str, n: int, clients: int, seconds: float) -> Load:
    client = rest_client if protocol == "rest" else grpc_client
    with client(served, n) as call:
        return drive(call, clients, seconds, min(0.4, seconds), served.cpu_seconds)


def measured(
    floor: Served, ours: Served, numbers: list[int], seconds: float, rounds: int
) -> dict[str, Any]:
    """Measure every cell; print it and give its figures."""
    figures: dict[str, Any] = {}
    for n in SIDES:
        for protocol in ("rest", "grpc"):
            for clients in numbers:
                sides = {
                    name: partial(window, served, protocol, n, clients, seconds)
                    for name, served in (("floor", floor), ("headrace-serve", ours))
                }
                loads = in_turn(sides, rounds)
                print(f"{protocol}, {4 * n} bytes each way, {clients} clients")
                for name, found in loads.items():
                    one = middle(found)
                    print(
                        f"  {name:<15} {one.rps:9.0f} requests/s  p50 {one.p50_us:8.0f} us  "
                        f"p99 {one.p99_us:8.0f} us  server {one.others_us:7.0f} us a request"
                    )
                got = ratio(loads["headrace-serve"], loads["floor"])
                most = middle(loads["headrace-serve"]).others_us
                cost = most / max(middle(loads["floor"]).others_us, 1e-9)
                wanted = WANTED[protocol, n]
                print(f"  requests/s {got:.2f} (wanted {wanted}), processor time {cost:.2f}\n")
                figures[f"{protocol} {4 * n} {clients}"] = {
                    "loads": loads,
                    "ratio": got,
                    "cpu": cost,
                }
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[10])
    parser.add_argument("--server-cores", type=read_cores, metavar="0,1", help="of both servers")
    parser.add_argument("--client-cores", type=read_cores, metavar="2-15", help="of the clients")
    options = parser.parse_args()
    seconds, rounds = (0.02, 1) if options.quick else (3.0, 5)
    about = environment(["headrace-serve", "uvicorn", "httptools", "uvloop", "grpcio", "orjson"])
    print_environment(about)
    print(
        "headrace-serve runs CopyArray, a backend in a file, which copies the array of each request\n"
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_cores(options.client_cores))
        floor, ours = (
            Served(f"benchmarks.serve.{name}", options.server_cores) for name in ("floor", "ours")
        )
        stack.callback(floor.stop)
        stack.callback(ours.stop)
        figures = measured(floor, ours, options.clients, seconds, rounds)
    save(options.json, about, {"backend": "CopyArray", "cells": figures})


if __name__ == "__main__":
    main()
