# ruff: noqa: INP001, ANN001, ANN201
"""A model for the conformance kit: twice its input."""

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]


class TritonPythonModel:
    """Doubles."""

    def execute(self, requests):  # type: ignore[no-untyped-def]
        """Answer each request."""
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUT", one.inputs()[0].as_numpy() * 2)])
            for one in requests
        ]
