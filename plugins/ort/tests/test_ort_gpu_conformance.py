"""OnnxTensor keeps every rule of the contract on a CUDA device, too."""

import os

import pytest

from headrace_ort.conformance import OnnxTensorConformance
from headrace_testing import BackendConformance


@pytest.mark.gpu
class OnnxTensorOnCuda(BackendConformance):
    """Samples for a model with one input, in batches of any size."""

    expression = OnnxTensorConformance.expression
    options = {  # noqa: RUF012
        **OnnxTensorConformance.options,
        "device": os.environ.get("HEADRACE_TORCH_DEVICE", "cuda:0"),
        "providers": ["cuda"],
    }
    make_item = OnnxTensorConformance.make_item
