"""For ``headrace conformance headrace-triton``: a model.py and requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["TritonPythonConformance"]

_PORT = {"data_type": "TYPE_FP32", "dims": [2]}


class TritonPythonConformance(BackendConformance):
    """`TritonPython` with a model that doubles rows."""

    expression = "TritonPython"
    options = {  # noqa: RUF012 - a class of this kind is a table
        "model": str(Path(__file__).with_name("conformance_model.py")),
        "config": json.dumps(
            {
                "name": "conformance_model",
                "max_batch_size": 64,
                "input": [{"name": "IN", **_PORT}],
                "output": [{"name": "OUT", **_PORT}],
            }
        ),
    }

    def make_item(self, k: int) -> Request:
        """Return a request of one row."""
        return {"IN": np.array([[k, k + 1]], np.float32)}

    def expected(self, k: int) -> Any:
        """Return twice the row, under the name of the output."""
        return {"OUT": self.make_item(k)["IN"] * 2}
