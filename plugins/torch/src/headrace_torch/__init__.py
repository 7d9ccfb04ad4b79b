"""Headrace backends for torch, and the plain functions they are made of.

Nothing is imported until it is used: ``import headrace_torch`` loads neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_torch.devices import check_device, listed_devices
    from headrace_torch.graphs import Graphs
    from headrace_torch.images import (
        convert_color,
        crop_image,
        pad_image,
        resize_image,
    )
    from headrace_torch.jpeg import JpegHeader, check_jpeg
    from headrace_torch.loading import Model, kind_of, load_model
    from headrace_torch.modules import load_module, load_weights
    from headrace_torch.normalization import Normalization
    from headrace_torch.own_stream import OwnStream
    from headrace_torch.tensors import as_tensor

__version__ = "0.1.0"

__all__ = [
    "Graphs",
    "JpegHeader",
    "Model",
    "Normalization",
    "OwnStream",
    "__version__",
    "as_tensor",
    "check_device",
    "check_jpeg",
    "convert_color",
    "crop_image",
    "kind_of",
    "listed_devices",
    "load_model",
    "load_module",
    "load_weights",
    "pad_image",
    "resize_image",
]

_HOME = {
    "devices": "check_device listed_devices",
    "graphs": "Graphs",
    "images": "convert_color crop_image pad_image resize_image",
    "jpeg": "JpegHeader check_jpeg",
    "loading": "Model kind_of load_model",
    "modules": "load_module load_weights",
    "normalization": "Normalization",
    "own_stream": "OwnStream",
    "tensors": "as_tensor",
}

__getattr__, __dir__ = lazy_names(__name__, _HOME)
