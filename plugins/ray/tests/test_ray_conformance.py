"""RayActor keeps every rule of the contract; pytest collects a test per rule."""

from headrace_ray.conformance import RayActorConformance

__all__ = ["RayActorConformance"]
