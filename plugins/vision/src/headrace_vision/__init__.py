"""Videos, cameras and pictures through one Headrace pipeline: ordered, tracked, saved, seen.

Nothing is imported until it is used: ``import headrace_vision`` loads no other library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_vision.clock import Clock
    from headrace_vision.frames import Frame
    from headrace_vision.group import Handle
    from headrace_vision.options import SourceOptions
    from headrace_vision.runner import VideoRunner
    from headrace_vision.sinks import Sink

__version__ = "0.1.0"

__all__ = [
    "Clock",
    "Frame",
    "Handle",
    "Sink",
    "SourceOptions",
    "VideoRunner",
    "__version__",
]

_HOME = {
    "Clock": "clock",
    "Frame": "frames",
    "Handle": "group",
    "Sink": "sinks",
    "SourceOptions": "options",
    "VideoRunner": "runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headrace_vision' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"headrace_vision.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
