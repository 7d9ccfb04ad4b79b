"""Videos, cameras and pictures through one Headrace pipeline: ordered, tracked, saved, seen.

Nothing is imported until it is used: ``import headrace_vision`` loads no other library. ``headrace_vision.open`` is ``open_vision``,
which ``from headrace_vision import *`` brings: Python's own ``open`` stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_vision.clock import Clock
    from headrace_vision.file.tables import VisionConfig
    from headrace_vision.file.vision import Vision, open_vision
    from headrace_vision.frames import Frame
    from headrace_vision.options import SourceOptions
    from headrace_vision.pipelines.crop_models import CropModel
    from headrace_vision.pipelines.lanes import VideoModel
    from headrace_vision.records import frame_record, from_records, to_records
    from headrace_vision.running.detecting import Detecting, detect
    from headrace_vision.running.group import Handle
    from headrace_vision.running.runner import VideoRunner
    from headrace_vision.sinks.mqtt import MQTT
    from headrace_vision.sinks.recording import SaveVideo
    from headrace_vision.sinks.saving import SaveImages, SaveJSONL
    from headrace_vision.sinks.sink import Sink
    from headrace_vision.sinks.view import View
    from headrace_vision.sinks.webhook import Webhook

    open = open_vision  # noqa: A001 - only within this package

__version__ = "0.1.0"

__all__ = [
    "MQTT",
    "Clock",
    "CropModel",
    "Detecting",
    "Frame",
    "Handle",
    "SaveImages",
    "SaveJSONL",
    "SaveVideo",
    "Sink",
    "SourceOptions",
    "VideoModel",
    "VideoRunner",
    "View",
    "Vision",
    "VisionConfig",
    "Webhook",
    "__version__",
    "detect",
    "frame_record",
    "from_records",
    "open_vision",
    "to_records",
]

_HOME = {
    "clock": "Clock",
    "file.tables": "VisionConfig",
    "file.vision": "Vision open:open_vision open_vision",
    "frames": "Frame",
    "options": "SourceOptions",
    "pipelines.crop_models": "CropModel",
    "pipelines.lanes": "VideoModel",
    "records": "frame_record from_records to_records",
    "running.detecting": "Detecting detect",
    "running.group": "Handle",
    "running.runner": "VideoRunner",
    "sinks.mqtt": "MQTT",
    "sinks.recording": "SaveVideo",
    "sinks.saving": "SaveImages SaveJSONL",
    "sinks.sink": "Sink",
    "sinks.view": "View",
    "sinks.webhook": "Webhook",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
