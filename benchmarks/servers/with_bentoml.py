"""JPEG to class over HTTP with BentoML; started by `benchmarks.serve.peers`.

    python -m benchmarks.servers.with_bentoml PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /classify with the bytes of a file answers
``{"class": number}``.
"""

# Without `from __future__ import annotations`: BentoML reads the types as objects.

import json
import os
import sys

import bentoml
from benchmarks.servers.network import REQUEST_SECONDS, Network, tensor_of
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

SETTING = json.loads(os.environ.get("HEADRACE_BENCHMARK_SETTING", "{}"))


async def classify(request: Request) -> JSONResponse:
    """Take the bytes as they come; BentoML's own ways, JSON or a form, cost it more."""
    network = bentoml.get_current_service().network
    file = await request.body()
    if SETTING.get("threads"):
        return JSONResponse({"class": await run_in_threadpool(network.one, file)})
    return JSONResponse({"class": network.one(file)})


class OneByOne(Network):
    """The network for one file at a time."""

    def one(self, file: bytes) -> int:
        """Return the number of the class."""
        return self.classes([tensor_of(file)])[0]


@bentoml.service(workers=SETTING.get("workers", 1), traffic={"timeout": REQUEST_SECONDS})
@bentoml.asgi_app(Starlette(routes=[Route("/classify", classify, methods=["POST"])]))
class Classify:
    """A worker decodes, resizes and runs the network."""

    def __init__(self) -> None:
        self.network = OneByOne()


def serve(port: int, *, workers: int, threads: bool = False) -> None:
    """Serve until killed: ``workers`` processes, which compute in their event loop or in ``threads``."""
    setting = json.dumps({"workers": workers, "threads": threads})
    environment = {**os.environ, "HEADRACE_BENCHMARK_SETTING": setting, "BENTOML_DO_NOT_TRACK": "1"}
    command = ["-m", "bentoml", "serve", "benchmarks.servers.with_bentoml:Classify"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    os.execve(sys.executable, [sys.executable, *command], environment)


if __name__ == "__main__":
    serve(int(sys.argv[1]), **json.loads(sys.argv[2]))
