"""What runs in the actor: a worker for one container, which ends with that container.

Ray starts this process, counts its resources, and can end it. Batches never pass through Ray: the worker
starts a process in which X lives, with a connection of its own to the container.
"""

from __future__ import annotations

import os
import threading

import ray

from headrace_ray.tls import context
from headrace_workers.worker import Worker

__all__ = ["Holding"]

_LINGERS_S = 10.0
"""Ray ends the actor once its container has gone; where Ray cannot, it ends itself after this time (seconds)."""

_UNCLAIMED_S = 120.0
"""An actor whose container has not come within this time (seconds) ends."""


class Holding:
    """The class of the actor.

    Args:
        secret: The 32 bytes by which the container and its worker know each other.
    """

    def __init__(self, secret: bytes) -> None:
        host = ray.util.get_node_ip_address()
        brackets = f"[{host}]" if ":" in host else host
        # Without TLS who reads what travels between the nodes sees the calls of Ray as well, and may run code.
        self._worker = Worker(
            f"{brackets}:0", secret, context(server=True), insecure=True, once=True
        )
        self._address = f"{brackets}:{self._worker.port}"
        self._claimed = threading.Event()
        threading.Thread(target=self._serve, name="headrace-worker", daemon=True).start()
        threading.Thread(target=self._wait_claimed, name="headrace-unclaimed", daemon=True).start()

    def where(self) -> tuple[str, str]:
        """Return the address at which the container is awaited, and the identifier of the node."""
        node: str = ray.get_runtime_context().get_node_id()
        return self._address, node

    def claim(self) -> int:
        """Note that the container has come; return the process id of the actor."""
        self._claimed.set()
        return os.getpid()

    def _wait_claimed(self) -> None:
        if not self._claimed.wait(_UNCLAIMED_S):
            self._worker.close()

    def _serve(self) -> None:
        self._worker.serve()
        threading.Event().wait(_LINGERS_S)
        os._exit(0)
