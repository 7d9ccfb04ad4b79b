"""A model.py for the conformance kit: twice its input."""

from __future__ import annotations

from typing import Any

from headrace_triton.python import interface as pb_utils


class TritonPythonModel:
    """Doubles."""

    def execute(self, requests: Any) -> Any:
        """Answer each request."""
        tensors = [pb_utils.Tensor("OUT", one.inputs()[0].as_numpy() * 2) for one in requests]
        return [pb_utils.InferenceResponse([one], parameters={"times": 2}) for one in tensors]
