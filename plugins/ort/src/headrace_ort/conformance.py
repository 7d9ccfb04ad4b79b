"""For ``headrace conformance headrace-ort``: an expression and requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.keys import Request

__all__ = ["MODEL", "OnnxTensorConformance"]

MODEL = Path(__file__).with_name("conformance.onnx")
"""``y = relu(x W + b)``: ``x`` is ``float32 [N, 3]``, ``y`` is ``float32 [N, 2]``."""


class OnnxTensorConformance(BackendConformance):
    """Samples for a model with one input, in batches of any size."""

    expression = "OnnxTensor"
    options: Mapping[str, Any] = {"model": str(MODEL)}

    def make_item(self, k: int) -> Request:
        """Return one sample."""
        return {"data": np.array([k, 1.5, -k], np.float32)}

    def expected(self, k: int) -> Any:
        """Return the sum of products by hand."""
        y = [k + 0.5 * 1.5 - 0.25 * k + 0.5, -k + 2 * 1.5 - 0.75 * k + 1]
        return np.maximum(np.array(y, np.float32), 0)
