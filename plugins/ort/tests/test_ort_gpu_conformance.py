"""OnnxTensor keeps every rule of the contract on a CUDA device, too."""

import pytest

from headrace_ort.conformance import OnnxTensorConformance
from headrace_testing import BackendConformance


@pytest.mark.gpu
class OnnxTensorOnCuda(BackendConformance):
    """Samples for a model with one input, in batches of any size."""

    expression = OnnxTensorConformance.expression
    options = {**OnnxTensorConformance.options, "providers": ["cuda"]}  # noqa: RUF012
    make_item = OnnxTensorConformance.make_item
