"""From a plan to backends, instances and schedulers."""

from headrace._build.builder import Built, build_pipeline
from headrace._build.door import Door

__all__ = ["Built", "Door", "build_pipeline"]
