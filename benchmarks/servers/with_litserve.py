"""JPEG to class over HTTP with LitServe; started by `benchmarks.serve.peers`.

    python -m benchmarks.servers.with_litserve PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /predict with the bytes of a file
answers ``{"class": number}``; GET /health answers when all workers are there.
"""

# Without `from __future__ import annotations`: LitServe needs the type of a request as an object.

import json
import sys
from typing import Annotated, Any

import litserve
from benchmarks.servers.network import REQUEST_SECONDS, Network, tensor_of
from fastapi import Body

# The bytes as they come. LitServe's own ways, JSON (base64) or a form, cost it more.
File = Annotated[bytes, Body(media_type="application/octet-stream")]


class Classify(litserve.LitAPI):
    """A worker decodes, resizes and runs the network."""

    def setup(self, device: str) -> None:
        """Load the network, in the worker."""
        self.network = Network()

    def decode_request(self, request: File) -> Any:
        """Return ``float32 [1, 3, 224, 224]``."""
        return tensor_of(request)

    def batch(self, inputs: list[Any]) -> list[Any]:
        """Leave it to `Network.classes` to make one tensor of them."""
        return inputs

    def predict(self, x: Any) -> Any:
        """Return a class, or the classes of a batch."""
        return self.network.classes(x) if isinstance(x, list) else self.network.classes([x])[0]

    def unbatch(self, output: list[int]) -> list[int]:
        """Classes are one by one already."""
        return output

    def encode_response(self, output: int) -> dict[str, int]:
        """Return what is sent as JSON."""
        return {"class": output}


def serve(
    port: int,
    *,
    workers: int,
    max_batch_size: int = 1,
    batch_timeout_ms: float = 0.0,
    fast_queue: bool = False,
    api_servers: int | None = None,
) -> None:
    """Serve until killed: ``workers`` processes that compute, ``api_servers`` that speak HTTP."""
    server = litserve.LitServer(
        Classify(max_batch_size=max_batch_size, batch_timeout=batch_timeout_ms / 1000),
        accelerator="cpu",
        workers_per_device=workers,
        timeout=REQUEST_SECONDS,
        fast_queue=fast_queue,
    )
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=api_servers,
        log_level="warning",
        access_log=False,
        generate_client_file=False,
    )


if __name__ == "__main__":
    serve(int(sys.argv[1]), **json.loads(sys.argv[2]))
