"""The cost of the protocol: backends of a user in headrace-serve, beside the bare servers under it or another commit.

The backends are classes in a file, `benchmarks/serve/users_backends.py`, which ``import = [...]`` names, so a
server runs them by threads, as every real model. They are no words of core, since a server may answer a word in a
way in which it answers no user.

Cases: ``binary``, ``JSON``, ``gRPC``: one FP32 row of 64 bytes, and ``binary 600 kB``, ``gRPC 600 kB`` in and out;
``/run``: a file of 64 bytes; ``embeddings``: OpenAI's route, one text; ``repository``: a ``model.py`` of Triton in its
process, 64 bytes as binary data.

Without ``--before`` the other side is ``floor``: uvicorn and grpc.aio that send back what they get
(`benchmarks.serve.floor`). With it the other side is ``headrace serve`` of another checkout, for the same models:

    git worktree add /tmp/before COMMIT
    python -m benchmarks.serve.identity --before /tmp/before [--rounds 5] [--only binary /run]

Both sides get the same bytes from the same clients, which are threads of this process with a bare socket each, or a
channel of grpcio each. Servers run in processes of their own, in turn; one whose turn it is not gets no request.

The clients share the machine with the servers. So the ratio of the processor time of the servers, all their
processes, is printed beside that of the requests per second: where the clients are the limit, the first tells.

    python -m benchmarks.serve.identity [--clients 10] [--server-cores 0,1 --client-cores 2-15] [--json FILE]
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
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
from benchmarks.serve.sides import SIDES, Floor, Headrace, Side, written_models
from benchmarks.servers.process import read_cores

from headrace_serve.grpc.messages import message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SMALL, LARGE = SIDES
TEXT = "a text of a few words"


class Case:
    """One kind of request over HTTP.

    Attributes:
        request: Its bytes.
        of_floor: Whether the floor, which sends back what it gets, can answer it.

    Args:
        path: The path.
        body: The body.
        end: The bytes with which the body of a right answer ends.
        headers: Headers beside its length.
    """

    def __init__(
        self, path: str, body: bytes, end: bytes, *headers: str, of_floor: bool = False
    ) -> None:
        lines = [
            f"POST {path} HTTP/1.1",
            "Host: localhost",
            *headers,
            f"Content-Length: {len(body)}",
        ]
        self.request = "\r\n".join([*lines, "", ""]).encode() + body
        self.of_floor = of_floor
        self._end = end

    @contextlib.contextmanager
    def client(self, side: Side) -> Iterator[Callable[[int], object]]:
        """Return a function that sends the request, on a connection per thread, and checks the answer."""
        request, end, local = self.request, self._end, threading.local()
        opened = []

        def call(_: int) -> None:
            if not hasattr(local, "connection"):
                local.connection = socket.create_connection(("127.0.0.1", side.port), timeout=60)
                local.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                opened.append(local.connection)
            local.connection.sendall(request)
            received = b""
            while b"\r\n\r\n" not in received:
                received += _received(local.connection, 1 << 20)
            head, _, body = received.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"\r\ncontent-length: ")[2].partition(b"\r\n")[0])
            left, last = length - len(body), body[-len(end) :]
            while left:
                part = _received(local.connection, min(left, 1 << 20))
                left -= len(part)
                last = (last + part)[-len(end) :]
            if not head.startswith(b"HTTP/1.1 200") or last != end:
                raise RuntimeError(f"{head!r} {body[:200]!r}")

        yield call
        for connection in opened:
            connection.close()


class GrpcCase:
    """A row of numbers over gRPC.

    Attributes:
        of_floor: As that of `Case`.
    """

    of_floor = True

    def __init__(self, n: int) -> None:
        made = message("inference.ModelInferRequest")(model_name=f"n{n}")
        made.inputs.add(name="x", datatype="FP32", shape=[1, n])
        made.raw_input_contents.append(_row(n))
        self._request: bytes = made.SerializeToString()
        self._row = _row(n)

    @contextlib.contextmanager
    def client(self, side: Side) -> Iterator[Callable[[int], object]]:
        """Return a function that sends the request, on a channel per thread, and checks the answer."""
        request, row, local = self._request, self._row, threading.local()
        opened: list[Any] = []
        options = [
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]

        def call(_: int) -> None:
            if not hasattr(local, "infer"):
                channel = grpc.insecure_channel(f"127.0.0.1:{side.grpc_port}", options)
                opened.append(channel)
                local.infer = channel.unary_unary(METHOD)
            if not local.infer(request).endswith(row):
                raise RuntimeError("an answer without its tensor")

        yield call
        for channel in opened:
            channel.close()


def _row(n: int) -> bytes:
    return np.arange(n, dtype="<f4").tobytes()


def _received(connection: socket.socket, most: int) -> bytes:
    part = connection.recv(most)
    if not part:
        raise RuntimeError("the server has closed the connection")
    return part


def _binary(model: str, n: int) -> Case:
    row = _row(n)
    tensor = {"name": "x", "shape": [1, n], "datatype": "FP32"}
    head = orjson.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(row)}}],
            "parameters": {"binary_data_output": True},
        }
    )
    length = f"Inference-Header-Content-Length: {len(head)}"
    of_floor = model.startswith("n")
    return Case(f"/v2/models/{model}/infer", head + row, row, length, of_floor=of_floor)


def _in_json() -> Case:
    values = np.arange(SMALL, dtype="<f4").tolist()
    tensor = {"name": "x", "shape": [1, SMALL], "datatype": "FP32", "data": values}
    end = orjson.dumps(values) + b"}]}"
    body = orjson.dumps({"inputs": [tensor]})
    return Case(f"/v2/models/n{SMALL}/infer", body, end, "Content-Type: application/json")


def _embeddings() -> Case:
    body = orjson.dumps({"model": "vectors", "input": TEXT})
    end = b'"usage":{"prompt_tokens":0,"total_tokens":0}}'
    return Case("/v1/embeddings", body, end, "Content-Type: application/json")


def cases() -> dict[str, Case | GrpcCase]:
    """Return the cases by their names."""
    file = bytes(64)
    return {
        "binary": _binary(f"n{SMALL}", SMALL),
        "JSON": _in_json(),
        "/run": Case("/run/files", file, b'{"result":64}'),
        "embeddings": _embeddings(),
        "repository": _binary("triton", SMALL),
        "gRPC": GrpcCase(SMALL),
        "binary 600 kB": _binary(f"n{LARGE}", LARGE),
        "gRPC 600 kB": GrpcCase(LARGE),
    }


def window(side: Side, case: Case | GrpcCase, clients: int, seconds: float) -> Load:
    with case.client(side) as call:
        return drive(call, clients, seconds, min(0.4, seconds), side.cpu_seconds)


def measured(
    sides: Mapping[str, Side],
    chosen: Mapping[str, Case | GrpcCase],
    numbers: list[int],
    seconds: float,
    rounds: int,
) -> dict[str, Any]:
    """Measure every cell, the second of two sides beside the first; print it and give its figures."""
    figures: dict[str, Any] = {}
    base, ours = sides
    for name, case in chosen.items():
        for clients in numbers:
            ways = {
                word: partial(window, one, case, clients, seconds) for word, one in sides.items()
            }
            loads = in_turn(ways, rounds)
            print(f"{name}, {clients} clients")
            for word, found in loads.items():
                one = middle(found)
                print(
                    f"  {word:<15} {one.rps:9.0f} requests/s  p50 {one.p50_us:8.0f} us  "
                    f"p99 {one.p99_us:8.0f} us  server {one.others_us:7.1f} us a request"
                )
            got = {
                what: ratio(loads[ours], loads[base], what)
                for what in ("others_us", "rps", "p99_us")
            }
            told = "processor time {others_us:.2f}, requests/s {rps:.2f}, p99 {p99_us:.2f}"
            print(f"  {told.format(**got)}\n", flush=True)
            figures[f"{name}, {clients}"] = {"loads": loads, "ratios": got}
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="of the other commit")
    parser.add_argument("--clients", type=int, nargs="*", help="10; with --before 1 10 40")
    parser.add_argument("--only", nargs="*", choices=list(cases()), help="cases; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, help="of a window: 3, with --before 0.8")
    parser.add_argument("--server-cores", type=read_cores, metavar="0,1", help="of both servers")
    parser.add_argument("--client-cores", type=read_cores, metavar="2-15", help="of the clients")
    options = parser.parse_args()
    before, cores = options.before, options.server_cores
    seconds, rounds = options.seconds or (3.0 if before is None else 0.8), options.rounds
    if options.quick:
        seconds, rounds = 0.02, 1
    about = environment(["headrace-serve", "uvicorn", "httptools", "uvloop", "grpcio", "orjson"])
    print_environment(about)
    print(f"load {about['load_average']}, {rounds} rounds of {seconds} s\n")
    chosen = {name: case for name, case in cases().items() if name in (options.only or cases())}
    if before is None:
        chosen = {name: case for name, case in chosen.items() if case.of_floor}
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_cores(options.client_cores))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models, metadata = written_models(folder), folder / "metadata"
        metadata.mkdir()
        sides: dict[str, Side] = {}
        if before is None:
            sides["floor"] = Floor(cores)
            stack.callback(sides["floor"].stop)
            sides["headrace-serve"] = Headrace(models, cores)
        else:
            sides["before"] = Headrace(models, cores, before, metadata)
            stack.callback(sides["before"].stop)
            sides["after"] = Headrace(models, cores)
        stack.callback(list(sides.values())[-1].stop)
        figures = measured(
            sides, chosen, options.clients or ([10] if before is None else [1, 10, 40]),
            seconds, rounds,
        )  # fmt: skip
    save(options.json, about, {"cells": figures})
    print("\ncell                     processor time  requests/s    p99")
    for name, cell in figures.items():
        print("{:<24} {:>14.2f}  {:>10.2f} {:>6.2f}".format(name, *cell["ratios"].values()))


if __name__ == "__main__":
    main()
