"""Headrace backends for torch, and the plain functions they are made of.

Nothing is imported until it is used: ``import headrace_torch`` loads neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_torch.images.normalization import Normalization
    from headrace_torch.images.transforms import (
        convert_color,
        crop_image,
        pad_image,
        resize_image,
    )
    from headrace_torch.models.graphs import Graphs
    from headrace_torch.models.loading import Model, load_model
    from headrace_torch.requests.tensors import as_tensor

__version__ = "0.1.0"

__all__ = [
    "Graphs",
    "Model",
    "Normalization",
    "__version__",
    "as_tensor",
    "convert_color",
    "crop_image",
    "load_model",
    "pad_image",
    "resize_image",
]

_HOME = {
    "images.normalization": "Normalization",
    "images.transforms": "convert_color crop_image pad_image resize_image",
    "models.graphs": "Graphs",
    "models.loading": "Model load_model",
    "requests.tensors": "as_tensor",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
