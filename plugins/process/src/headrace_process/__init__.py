"""A container for Headrace whose part lives in another process of this machine: `Process`.

Nothing is imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_process.process import Process

__version__ = "0.1.0"

__all__ = ["Process", "__version__"]


def __getattr__(name: str) -> Any:
    import importlib

    if name != "Process":
        raise AttributeError(f"module 'headrace_process' has no attribute {name!r}")
    value = importlib.import_module("headrace_process.process").Process
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
