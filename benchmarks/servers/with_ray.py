"""JPEG to class over HTTP with Ray Serve; started by `benchmarks.serve.peers`.

    python -m benchmarks.servers.with_ray PORT SETTING

SETTING is a JSON object with the arguments of `serve`. POST /classify with the bytes of a file answers
``{"class": number}``.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import ray
from benchmarks.servers.network import REQUEST_SECONDS, Network, tensor_of
from ray import serve as ray_serve
from starlette.responses import JSONResponse


@ray_serve.deployment
class Classify:
    """A replica decodes, resizes and runs the network."""

    def __init__(self) -> None:
        self.network = Network()

    async def __call__(self, request: Any) -> JSONResponse:
        """Take the bytes as they come."""
        found = self.network.classes([tensor_of(await request.body())])
        return JSONResponse({"class": found[0]})


def serve(port: int, *, replicas: int, ongoing: int = 5) -> None:
    """Serve until killed: ``replicas`` that compute, each with so many ``ongoing`` requests."""
    ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    ray_serve.start(
        http_options={"host": "127.0.0.1", "port": port, "request_timeout_s": REQUEST_SECONDS}
    )
    options = {"num_cpus": 0.5}  # the proxy and Ray's own processes use the rest
    made = Classify.options(
        num_replicas=replicas, max_ongoing_requests=ongoing, ray_actor_options=options
    )
    ray_serve.run(made.bind(), route_prefix="/classify")
    threading.Event().wait()


if __name__ == "__main__":
    serve(int(sys.argv[1]), **json.loads(sys.argv[2]))
