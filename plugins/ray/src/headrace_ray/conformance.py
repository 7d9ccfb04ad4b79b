"""For ``headrace conformance headrace-ray``: an expression, requests, and a cluster of this process alone."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["RayActorConformance"]

_STORE_BYTES = 80 << 20


@functools.cache
def _cluster() -> None:
    """Start a cluster of one node, which ends with this process, unless it is connected to one."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    if not ray.is_initialized():
        ray.init("local", num_cpus=4, object_store_memory=_STORE_BYTES, include_dashboard=False)
        atexit.register(ray.shutdown)


class _Options(Mapping[str, Any]):
    """The options; the cluster is started when they are first read, not when this module is imported."""

    def __getitem__(self, key: str) -> Any:
        _cluster()
        return {"num_cpus": 0.1}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("num_cpus",))

    def __len__(self) -> int:
        return 1


class RayActorConformance(BackendConformance):
    """`RayActor`, whose child lives in an actor of a cluster on this machine."""

    expression = "RayActor[Identity]"
    options: Mapping[str, Any] = _Options()

    def make_item(self, k: int) -> Request:
        """Return a request whose numbers no other request has."""
        return {"data": [k, k + 1], "mask": k + 2}

    def expected(self, k: int) -> Any:
        """Return what came."""
        return self.make_item(k)["data"]
