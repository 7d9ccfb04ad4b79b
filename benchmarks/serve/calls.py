"""What a call of gRPC costs the server: headrace-serve, beside the same pipeline behind grpcio's own server.

Both run `benchmarks/serve/copy_array.py` by threads of the pipeline. ``grpcio`` parses and writes messages, and does
nothing else (`benchmarks.serve.by_grpcio`). ``echo`` is grpcio's server without a pipeline, which sends back what it gets.
Clients are threads of this process with a channel each. The figure is the processor time of the server's process.

    python -m benchmarks.serve.calls [--clients 1 10 40] [--server-cores 0,1 --client-cores 2-15] [--json FILE]
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from benchmarks.load import (
    arguments,
    environment,
    in_turn,
    middle,
    on_cores,
    print_environment,
    ratio,
    save,
)
from benchmarks.serve.identity import Served, window
from benchmarks.serve.ours import SIDES
from benchmarks.servers.process import read_cores

SERVERS = {"headrace-serve": "ours", "grpcio": "by_grpcio", "echo": "floor"}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 10, 40])
    parser.add_argument("--server-cores", type=read_cores, metavar="0,1", help="of each server")
    parser.add_argument("--client-cores", type=read_cores, metavar="2-15", help="of the clients")
    options = parser.parse_args()
    seconds, rounds = (0.02, 1) if options.quick else (3.0, 5)
    about = environment(["headrace-serve", "uvloop", "grpcio", "protobuf", "hpack"])
    print_environment(about)
    cells: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_cores(options.client_cores))
        servers = {}
        for name, module in SERVERS.items():
            servers[name] = Served(f"benchmarks.serve.{module}", options.server_cores)
            stack.callback(servers[name].stop)
        for n in SIDES:
            for clients in options.clients:
                sides = {
                    name: partial(window, served, "grpc", n, clients, seconds)
                    for name, served in servers.items()
                }
                loads = in_turn(sides, rounds)
                print(f"{4 * n} bytes each way, {clients} clients")
                spent = {}
                for name, each in loads.items():
                    one = middle(each)
                    spent[name] = one.others_us
                    print(
                        f"  {name:<15} {one.rps:9.0f} requests/s  p50 {one.p50_us:8.0f} us  "
                        f"p99 {one.p99_us:8.0f} us  server {one.others_us:7.0f} us a request"
                    )
                cost = spent["headrace-serve"] / max(spent["grpcio"], 1e-9)
                got = ratio(loads["headrace-serve"], loads["grpcio"])
                print(f"  beside grpcio: requests/s {got:.2f}, processor time {cost:.2f}\n")
                cells[f"{4 * n} {clients}"] = {"loads": loads, "ratio": got, "cpu": cost}
    save(options.json, about, {"backend": "CopyArray", "cells": cells})


if __name__ == "__main__":
    main()
