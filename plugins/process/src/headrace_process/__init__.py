"""Containers for Headrace whose part lives in another process, here or on another machine: `Process`, `Host`.

Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_process.host import Host
    from headrace_process.process import Process
    from headrace_workers.worker import Worker

__version__ = "0.1.0"

__all__ = ["Host", "Process", "Worker", "__version__"]

_HOME = {
    "Host": "headrace_process.host",
    "Process": "headrace_process.process",
    "Worker": "headrace_workers.worker",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module 'headrace_process' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
