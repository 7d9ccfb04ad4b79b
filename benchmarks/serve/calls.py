"""What a call of gRPC costs the server: headrace-serve, beside the same backend behind grpcio's own server.

Both run ``CopyArray`` of `benchmarks/serve/users_backends.py` by threads of a pipeline. ``grpcio`` parses and writes messages
as you would write it yourself, and does nothing else (`benchmarks.serve.by_grpcio`). Clients are threads of this process with
a channel each. The figure is the processor time of the server's process.

    python -m benchmarks.serve.calls [--clients 1 10 40] [--server-cores 0,1 --client-cores 2-15] [--json FILE]
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from benchmarks.load import arguments, environment, on_cores, print_environment, save
from benchmarks.serve.identity import cases, measured
from benchmarks.serve.sides import Floor, Headrace, written_models
from benchmarks.servers.process import read_cores


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 10, 40])
    parser.add_argument("--server-cores", type=read_cores, metavar="0,1", help="of each server")
    parser.add_argument("--client-cores", type=read_cores, metavar="2-15", help="of the clients")
    options = parser.parse_args()
    seconds, rounds = (0.02, 1) if options.quick else (3.0, 5)
    about = environment(["headrace-serve", "uvloop", "grpcio", "protobuf", "hpack"])
    print_environment(about)
    chosen = {name: case for name, case in cases().items() if name.startswith("gRPC")}
    with contextlib.ExitStack() as stack:
        stack.enter_context(on_cores(options.client_cores))
        models = written_models(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        grpcio = Floor(options.server_cores, "by_grpcio")
        stack.callback(grpcio.stop)
        ours = Headrace(models, options.server_cores)
        stack.callback(ours.stop)
        sides = {"grpcio": grpcio, "headrace-serve": ours}
        figures = measured(sides, chosen, options.clients, seconds, rounds)
    save(options.json, about, {"backend": "CopyArray", "cells": figures})


if __name__ == "__main__":
    main()
