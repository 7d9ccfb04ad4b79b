"""For ``headrace conformance headrace-triton``: a model.py and requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_testing import BackendConformance
from headrace_triton.pbtxt import of_json

if TYPE_CHECKING:
    from headrace.keys import Request

__all__ = ["TritonEnsembleConformance", "TritonPythonConformance", "TritonTensorsConformance"]

_PORT = {"data_type": "TYPE_FP32", "dims": [2]}
_FOUR = {"data_type": "TYPE_FP32", "dims": [4], "reshape": {"shape": [2, 2]}}


def _config(port: dict[str, Any], **more: Any) -> str:
    ports = {"input": [{"name": "IN", **port}], "output": [{"name": "OUT", **port}]}
    text = json.dumps({"name": "conformance_model", "max_batch_size": 64, **ports, **more})
    return json.dumps(of_json(text, "the configuration").as_json())


class TritonPythonConformance(BackendConformance):
    """`TritonPython` with a model that doubles rows."""

    expression = "TritonPython"
    options = {  # noqa: RUF012 - a class of this kind is a table
        "model": str(Path(__file__).with_name("conformance_model.py")),
        "config": _config(_PORT),
    }

    def make_item(self, k: int) -> Request:
        """Return a request of one row."""
        return {"IN": np.array([[k, k + 1]], np.float32)}

    def expected(self, k: int) -> Any:
        """Return twice the row, under the name of the output."""
        return {"OUT": self.make_item(k)["IN"] * 2}


class TritonTensorsConformance(TritonPythonConformance):
    """`TritonTensors` around that model, which gets rows of four as two times two."""

    expression = "TritonTensors[TritonPython]"
    options = {  # noqa: RUF012 - as above
        **TritonPythonConformance.options,
        "config": _config(_FOUR),
    }

    def make_item(self, k: int) -> Request:
        """Return a request of one row."""
        return {"IN": np.arange(k, k + 4, dtype=np.float32)[None]}


class TritonEnsembleConformance(TritonPythonConformance):
    """`TritonEnsemble`, whose requests need models beside it."""

    expression = "TritonEnsemble"
    options = {  # noqa: RUF012 - as above
        "config": _config(_PORT, ensemble_scheduling={"step": []})
    }

    def unavailable(self) -> str | None:
        """Say that there is no server, whose models it calls."""
        return "it calls the other models of a server, and here is none"
