"""A container for Headrace whose part lives in an actor of a Ray cluster: `RayActor`.

Nothing is imported until it is used: ``import headrace_ray`` does not load ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_ray.backend import RayActor

__version__ = "0.1.0"

__all__ = ["RayActor", "__version__"]


def __getattr__(name: str) -> Any:
    import importlib

    if name != "RayActor":
        raise AttributeError(f"module 'headrace_ray' has no attribute {name!r}")
    value = importlib.import_module("headrace_ray.backend").RayActor
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
