"""JPEG to class over HTTP with PyTriton; started by `benchmarks.serve.peers`.

    python -m benchmarks.servers.with_pytriton PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /v2/models/light/infer with the bytes of a file as
a binary tensor answers the class as Triton's JSON: see `benchmarks.servers.process.Client`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
from benchmarks.servers.network import Network, tensor_of
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig


class Classify:
    """A worker decodes, resizes and runs the network."""

    def __init__(self) -> None:
        self.network = Network()

    def __call__(self, requests: list[Any]) -> list[dict[str, Any]]:
        """Answer the requests that PyTriton has gathered."""
        files = [bytes(request["file"].reshape(-1)[0]) for request in requests]
        classes = self.network.classes([tensor_of(file) for file in files])
        return [{"class": np.array([[number]], np.int64)} for number in classes]


def serve(port: int, *, workers: int, max_batch_size: int = 1, delay_us: int = 0) -> None:
    """Serve until killed: ``workers`` processes that compute batches gathered for up to ``delay_us``."""
    config = TritonConfig(
        http_address="127.0.0.1", http_port=port, allow_grpc=False, allow_metrics=False
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="light",
            infer_func=[Classify() for _ in range(workers)],
            inputs=[Tensor(name="file", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="class", dtype=np.int64, shape=(1,))],
            config=ModelConfig(
                max_batch_size=max_batch_size,
                batcher=DynamicBatcher(max_queue_delay_microseconds=delay_us),
            ),
        )
        triton.serve()


if __name__ == "__main__":
    serve(int(sys.argv[1]), **json.loads(sys.argv[2]))
