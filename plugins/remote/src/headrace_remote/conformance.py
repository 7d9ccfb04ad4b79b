"""For ``headrace conformance headrace-remote``: an expression, requests, and a small server in this process."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["RemoteConformance"]

_ROW = 3


def _infer(data: bytes) -> bytes:
    """Answer a ``ModelInferRequest``: each row, plus the sum of its elements."""
    from headrace_remote.protocol import message

    request = message("ModelInferRequest").FromString(data)
    x = np.frombuffer(request.raw_input_contents[0], np.float32).reshape(-1, _ROW)
    y = x + x.sum(axis=1, keepdims=True)
    response = message("ModelInferResponse")(model_name=request.model_name, id=request.id)
    response.outputs.add(name="y", datatype="FP32", shape=y.shape)
    response.raw_output_contents.append(y.tobytes())
    answer: bytes = response.SerializeToString()
    return answer


def _describe(data: bytes) -> bytes:
    from headrace_remote.protocol import message

    response = message("ModelMetadataResponse")(name="sums", versions=["1"], platform="stand-in")
    for side, name in ((response.inputs, "x"), (response.outputs, "y")):
        side.add(name=name, datatype="FP32", shape=[-1, _ROW])
    described: bytes = response.SerializeToString()
    return described


def _ready(data: bytes) -> bytes:
    from headrace_remote.protocol import message

    ready: bytes = message("ModelReadyResponse")(ready=True).SerializeToString()
    return ready


@functools.cache
def _address() -> str:
    """Start the server, at the first call in this process, and return its address. It ends with the process."""
    import grpc

    from headrace_remote.protocol import SERVICE

    def answering(function: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda data, context: function(data))

    calls = {"ModelInfer": _infer, "ModelMetadata": _describe, "ModelReady": _ready}
    handlers = {name: answering(function) for name, function in calls.items()}
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    _servers.append(server)
    return f"127.0.0.1:{port}"


_servers: list[Any] = []
"""Keeps the server, which ends when nothing refers to it."""


class _Options(Mapping[str, Any]):
    """The options; the server is started when they are first read, not when this module is imported."""

    def __getitem__(self, key: str) -> Any:
        return [_address()] if key == "urls" else {"model": "sums"}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("model", "urls"))

    def __len__(self) -> int:
        return 2


class RemoteConformance(BackendConformance):
    """Samples for a model with one input on a server of this process, in batches of any size."""

    expression = "Remote"
    options: Mapping[str, Any] = _Options()

    def make_item(self, k: int) -> Request:
        """Return one sample."""
        trace = f"00-{k + 1:032x}-{k + 1:016x}-01"
        return {
            "data": np.array([k, 1.5, -2 * k], np.float32),
            "request_id": f"request {k}",
            "context": {"traceparent": trace},
        }

    def expected(self, k: int) -> Any:
        """Return each number plus the sum of all, by hand."""
        return np.array([1.5 - k + number for number in (k, 1.5, -2 * k)], np.float32)
