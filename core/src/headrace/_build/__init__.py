"""From a plan to backends, instances and schedulers."""

from headrace._build.aside import Aside, build_aside
from headrace._build.builder import Built, BuiltNode, build_pipeline
from headrace._build.door import Door
from headrace._plan.needs import needed_with_each

__all__ = [
    "Aside",
    "Built",
    "BuiltNode",
    "Door",
    "build_aside",
    "build_pipeline",
    "needed_with_each",
]
