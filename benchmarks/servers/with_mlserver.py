"""JPEG to class over HTTP with MLServer; started by `benchmarks.serve.peers`.

    python -m benchmarks.servers.with_mlserver PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /classify with the bytes of a file answers
``{"class": number}``.
"""

# Without `from __future__ import annotations`: FastAPI needs the type of a request as an object.

import asyncio
import json
import sys
from typing import Annotated

from benchmarks.servers.network import Network, tensor_of
from fastapi import Body
from mlserver import MLModel, MLServer
from mlserver.handlers import custom_handler
from mlserver.settings import ModelSettings, Settings

File = Annotated[bytes, Body(media_type="application/octet-stream")]


class Classify(MLModel):
    """A worker decodes, resizes and runs the network."""

    async def load(self) -> bool:
        """Load the network, in the worker."""
        self.network = Network()
        return True

    @custom_handler(rest_path="/classify")
    async def classify(self, file: File) -> dict[str, int]:
        """Take the bytes as they come; the protocol's JSON costs it more."""
        return {"class": self.network.classes([tensor_of(file)])[0]}


async def serve(port: int, *, workers: int) -> None:
    """Serve until killed: ``workers`` processes that compute, 0: the one that speaks HTTP."""
    settings = Settings(
        host="127.0.0.1",
        http_port=port,
        grpc_port=0,
        metrics_port=0,
        metrics_endpoint=None,
        parallel_workers=workers,
        debug=False,
    )
    model = ModelSettings(name="light", implementation="benchmarks.servers.with_mlserver.Classify")
    await MLServer(settings).start([model])


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), **json.loads(sys.argv[2])))
