"""Headrace backend on another server of the Open Inference Protocol: `Remote`, and its errors.

Nothing is imported until it is used: ``import headrace_remote`` loads neither grpc nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_remote.backend import Remote
    from headrace_remote.errors import ConnectionLostError, ServersAwayError

__version__ = "0.1.0"

__all__ = ["ConnectionLostError", "Remote", "ServersAwayError", "__version__"]

_HOME = {"ConnectionLostError": "errors", "Remote": "backend", "ServersAwayError": "errors"}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module 'headrace_remote' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headrace_remote.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
