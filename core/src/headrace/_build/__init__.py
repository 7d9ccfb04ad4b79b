"""From a plan to backends, instances and schedulers."""

from headrace._build.builder import Built, BuiltNode, build_pipeline
from headrace._build.door import Door

__all__ = ["Built", "BuiltNode", "Door", "build_pipeline"]
