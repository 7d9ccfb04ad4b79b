"""ONNX Runtime, which calibration and comparing need: imported without its telemetry."""

from __future__ import annotations

import importlib
import os
from typing import Any

from headrace.errors import MissingDependencyError

__all__ = ["import_runtime"]


def import_runtime(what: str, module: str = "onnxruntime") -> Any:
    """Import ONNX Runtime, or one of its modules.

    Args:
        what: What needs it, for the error.
        module: The module.

    Raises:
        MissingDependencyError: ONNX Runtime is not installed, or cannot be imported.
    """
    # It is read once, at the import. With telemetry ONNX Runtime writes into the user's home and looks up its maker.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} needs ONNX Runtime ({error})",
            distribution="headrace-trt",
            hint='`pip install "headrace-trt[calibration]"` brings it.',
        ) from error
