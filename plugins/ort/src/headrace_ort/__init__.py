"""Headrace backend for ONNX models: `OnnxTensor`, and the plain functions it is made of.

Nothing is imported until it is used: ``import headrace_ort`` loads neither onnxruntime nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_ort.backend import OnnxTensor
    from headrace_ort.collate import concatenate, group_items, split_outputs
    from headrace_ort.items import Item, as_array, read_item
    from headrace_ort.providers import check_providers, choose_providers
    from headrace_ort.session import make_session
    from headrace_ort.signature import Port, Signature, read_signature

__version__ = "0.1.0"

__all__ = [
    "Item",
    "OnnxTensor",
    "Port",
    "Signature",
    "__version__",
    "as_array",
    "check_providers",
    "choose_providers",
    "concatenate",
    "group_items",
    "make_session",
    "read_item",
    "read_signature",
    "split_outputs",
]

_HOME = {
    "Item": "items",
    "OnnxTensor": "backend",
    "Port": "signature",
    "Signature": "signature",
    "as_array": "items",
    "check_providers": "providers",
    "choose_providers": "providers",
    "concatenate": "collate",
    "group_items": "collate",
    "make_session": "session",
    "read_item": "items",
    "read_signature": "signature",
    "split_outputs": "collate",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module 'headrace_ort' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headrace_ort.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
