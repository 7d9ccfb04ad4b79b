"""A model.py for the conformance kit: twice its input."""

from __future__ import annotations

from typing import Any

from headrace_triton.python import interface as pb_utils


class TritonPythonModel:
    """Doubles."""

    def execute(self, requests: Any) -> Any:
        """Answer each request."""
        arrays = [request.inputs()[0].as_numpy() for request in requests]
        tensors = [pb_utils.Tensor("OUT", array * 2) for array in arrays]
        return [pb_utils.InferenceResponse([tensor], parameters={"times": 2}) for tensor in tensors]
