"""JPEG to class over HTTP with mosec; started by `benchmarks.serve.peers`.

    python -m benchmarks.servers.with_mosec PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /inference with the bytes of a file
answers ``{"class": number}``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import mosec
import mosec.runtime
from benchmarks.servers.network import REQUEST_SECONDS, Network, tensor_of


def find_program() -> None:
    """Tell mosec where its program is, where its wheel was unpacked rather than installed."""
    beside = Path(mosec.__file__).parents[1]
    for found in (*beside.glob("mosec-*.data/scripts/mosec"), beside / "bin" / "mosec"):
        if found.exists() and mosec.runtime.get_mosec_path() is None:
            found.chmod(0o755)
            mosec.runtime.get_mosec_path = lambda program=found: program


class Raw:
    """The first stage takes the bytes as they come."""

    def deserialize(self, data: bytes) -> bytes:
        """Leave the body as it is."""
        return data


class Decode(Raw, mosec.Worker):
    """The first of two stages; tensors go on pickled, as mosec does by itself."""

    def forward(self, data: bytes) -> Any:
        """Return ``float32 [1, 3, 224, 224]``."""
        return tensor_of(data)


class Infer(mosec.Worker):
    """The second of two stages."""

    def __init__(self) -> None:
        self.network = Network()

    def forward(self, data: Any) -> Any:
        """Answer one request, or the list that mosec gives where it gathers."""
        if isinstance(data, list):
            return [{"class": number} for number in self.network.classes(data)]
        return {"class": self.network.classes([data])[0]}


class Both(Raw, Infer):
    """All in one stage."""

    def forward(self, data: Any) -> Any:
        """Answer one request, or the list that mosec gives where it gathers."""
        decoded = [tensor_of(file) for file in data] if isinstance(data, list) else tensor_of(data)
        return super().forward(decoded)


def serve(
    *, workers: int, max_batch_size: int = 1, max_wait_time_ms: int = 1, decoders: int = 0
) -> None:
    """Serve until killed: ``workers`` that compute, after ``decoders`` (if any) that make tensors."""
    server = mosec.Server()
    if decoders:
        server.append_worker(Decode, num=decoders)
    server.append_worker(
        Infer if decoders else Both,
        num=workers,
        max_batch_size=max_batch_size,
        max_wait_time=max_wait_time_ms,
    )
    server.run()


if __name__ == "__main__":
    os.environ["MOSEC_ADDRESS"], os.environ["MOSEC_PORT"] = "127.0.0.1", sys.argv[1]
    os.environ["MOSEC_TIMEOUT"] = str(1000 * REQUEST_SECONDS)
    os.environ["MOSEC_LOG_LEVEL"] = "warning"
    find_program()
    serve(**json.loads(sys.argv[2]))
