"""headrace-serve with a backend of a user, as `benchmarks.serve.identity` measures it.

python -m benchmarks.serve.ours PORT GRPC_PORT
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from headrace_serve import Server
from headrace_serve.operating.allocator import keep_freed_memory
from headrace_serve.operating.running import switching

SIDES = (16, 150_000)
"""Elements of a request: 64 bytes, and 600 kB."""

BACKEND = Path(__file__).with_name("copy_array.py")
"""The file of the backend."""


def main(port: int, grpc_port: int) -> None:
    keep_freed_memory()  # this and `switching` as `headrace serve` does
    models = {
        f"n{n}": {
            "config": {"import": [str(BACKEND)], "backend": "CopyArray", "max": 8},
            "inputs": {"x": {"datatype": "FP32", "shape": [-1, n], "batched": True}},
            "outputs": {"y": {"datatype": "FP32", "shape": [-1, n]}},
        }
        for n in SIDES
    }
    with switching(1.0), Server(models, port=port, grpc_port=grpc_port):
        threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
