"""What runs in the actor: a worker for one container, which ends with that container.

Ray starts this process, counts its resources, and can end it. Batches never pass through Ray: the worker
starts a process in which X lives, with a connection of its own to the container.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import ray

from headrace_ray.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Holding"]

_LINGERS_S = 10.0
"""Ray ends the actor once its container has gone; where Ray cannot, it ends itself after this time (seconds)."""

_UNCLAIMED_S = 120.0
"""An actor whose container has not come within this time (seconds) ends."""


class Holding:
    """The class of the actor.

    Args:
        secret: By which the container and its worker know each other.
        versions: The versions that the container needs, by distribution. ``python`` among them.
        heartbeat_s: How often the worker says that it is there (seconds).
    """

    def __init__(self, secret: bytes, versions: Mapping[str, str], heartbeat_s: float) -> None:
        self._host = ray.util.get_node_ip_address()
        self._worker = Worker(self._host, secret, heartbeat_s)
        self._differing = _differing(versions)
        threading.Thread(target=self._serve, name="headrace-worker", daemon=True).start()

    def where(self) -> tuple[str, int, str, list[str]]:
        """Return where the container is awaited, the identifier of the node, and the versions that differ there."""
        node: str = ray.get_runtime_context().get_node_id()
        return self._host, self._worker.port, node, self._differing

    def _serve(self) -> None:
        try:
            self._worker.serve(_UNCLAIMED_S)
        finally:
            threading.Event().wait(_LINGERS_S)
            os._exit(0)


def _differing(digests: Mapping[str, str]) -> list[str]:
    """Return what is installed here in another version than is wanted, a sentence each."""
    differences: list[str] = []
    for name, there in digests.items():
        try:
            here = "{}.{}".format(*sys.version_info) if name == "python" else version(name)
        except PackageNotFoundError:
            here = "not installed"
        if here != there:
            differences.append(f"{name} is {there} at the caller's, {here} on the node")
    return differences
