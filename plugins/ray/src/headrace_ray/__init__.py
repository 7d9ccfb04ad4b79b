"""A container for Headrace whose part lives in an actor of a Ray cluster: `RayActor`.

Nothing is imported until it is used: ``import headrace_ray`` does not load ray.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_ray.backend import RayActor

__version__ = "0.1.0"

__all__ = ["RayActor", "__version__"]

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, {"backend": "RayActor"})
