"""Headrace backend for ONNX models: `OnnxTensor`, and the plain functions it is made of. Those on arrays are in `headrace_tensors`.

Nothing is imported until it is used: ``import headrace_ort`` loads neither onnxruntime nor numpy.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from headrace.lazy import lazy_names

if TYPE_CHECKING:
    from headrace_ort.backend import OnnxTensor
    from headrace_ort.providers import check_providers, choose_providers
    from headrace_ort.session import make_session
    from headrace_ort.signature import read_signature

__version__ = "0.1.0"

__all__ = [
    "OnnxTensor",
    "__version__",
    "check_providers",
    "choose_providers",
    "make_session",
    "read_signature",
]

# ONNX Runtime reads this once, when it is imported: with telemetry it writes a device id into the user's home and
# looks up its maker. Every module of this package comes after this line.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    "backend": "OnnxTensor",
    "providers": "check_providers choose_providers",
    "session": "make_session",
    "signature": "read_signature",
}

if not TYPE_CHECKING:  # with these a type checker would accept every name
    __getattr__, __dir__ = lazy_names(__name__, _HOME)
