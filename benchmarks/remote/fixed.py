"""A server of gRPC whose answers are made beforehand, so that a call costs it as little as it can.

    python -m benchmarks.remote.fixed ROW_BYTES ROWS

It prints its port. The models ``echo`` and ``scores`` take ``UINT8 [-1, ROW_BYTES]``, give rows as large and rows of
4 kB; they take up to ROWS rows.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from headrace_remote.protocol import SERVICE, message

__all__ = ["SCORES_BYTES"]

SCORES_BYTES = 4000
"""The bytes of a row of the model ``scores``."""


def answers(row_bytes: int, rows: int) -> dict[tuple[str, int], bytes]:
    """Return the bytes of the answers by model and number of rows."""
    made = {}
    for name, size in (("echo", row_bytes), ("scores", SCORES_BYTES)):
        for count in range(1, rows + 1):
            one = message("ModelInferResponse")(model_name=name)
            one.outputs.add(name="y", datatype="UINT8", shape=[count, size])
            one.raw_output_contents.append(bytes(count * size))
            made[name, count] = one.SerializeToString()
    return made


def main(row_bytes: int, rows: int) -> None:
    known = answers(row_bytes, rows)

    def infer(data: bytes, context: Any) -> bytes:
        return known["echo" if b"echo" in data[:16] else "scores", len(data) // row_bytes]

    def describe(data: bytes, context: Any) -> bytes:
        name = message("ModelMetadataRequest").FromString(data).name
        made = message("ModelMetadataResponse")(name=name)
        made.inputs.add(name="x", datatype="UINT8", shape=[-1, row_bytes])
        size = row_bytes if name == "echo" else SCORES_BYTES
        made.outputs.add(name="y", datatype="UINT8", shape=[-1, size])
        described: bytes = made.SerializeToString()
        return described

    def ready(data: bytes, context: Any) -> bytes:
        found: bytes = message("ModelReadyResponse")(ready=True).SerializeToString()
        return found

    calls = {"ModelInfer": infer, "ModelMetadata": describe, "ModelReady": ready}
    handlers = {name: grpc.unary_unary_rpc_method_handler(one) for name, one in calls.items()}
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(16), options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()  # until the benchmark ends


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
