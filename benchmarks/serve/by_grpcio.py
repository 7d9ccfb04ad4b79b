"""A pipeline of `benchmarks/serve/users_backends.py` behind grpcio's server of asyncio, as you would write it yourself.

    python -m benchmarks.serve.by_grpcio PORT GRPC_PORT

Each call parses its message, runs the request, and writes the answer. No key, limit, log or counter is looked at. The
first port answers nothing: it says that the process is up.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import Any

import grpc
import numpy as np
import uvloop
from benchmarks.serve.floor import METHOD
from benchmarks.serve.sides import BACKENDS

import headrace
from headrace_serve.grpc.messages import message

REQUEST, RESPONSE = message("inference.ModelInferRequest"), message("inference.ModelInferResponse")


async def main(port: int, grpc_port: int) -> None:
    pipe = headrace.pipe({"import": [str(BACKENDS)], "backend": "CopyArray", "max": 8})

    async def infer(asked: Any, context: Any) -> Any:
        tensor = asked.inputs[0]
        array = np.frombuffer(asked.raw_input_contents[0], np.float32).reshape(tensor.shape)
        request = {"data": array}
        await pipe.call_async(request)
        answer = RESPONSE(model_name=asked.model_name, model_version="1")
        answer.outputs.add(name="y", datatype="FP32", shape=request["result"].shape)
        answer.raw_output_contents.append(request["result"].tobytes())
        return answer

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    server = grpc.aio.server(options=options)
    _, service, method = METHOD.split("/")
    handler = grpc.unary_unary_rpc_method_handler(
        infer, REQUEST.FromString, RESPONSE.SerializeToString
    )
    handlers = grpc.method_handlers_generic_handler(service, {method: handler})
    server.add_generic_rpc_handlers((handlers,))
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    with socket.create_server(("127.0.0.1", port)), pipe:
        await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
