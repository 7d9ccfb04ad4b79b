"""The words keep every rule; without a device those about the class alone are judged."""

import pytest

from headrace_trt import conformance


@pytest.mark.gpu
class TestInfer(conformance.TensorrtInferTensorConformance):
    """On a device."""


@pytest.mark.gpu
class TestGathered(conformance.TensorrtCatConformance):
    """On a device."""


@pytest.mark.gpu
class TestLoaded(conformance.LoadTensorrtEngineConformance):
    """On a device."""


@pytest.mark.gpu
class TestTensorrtTensor(conformance.TensorrtTensorConformance):
    """On a device."""


class OnThisMachine(conformance.TensorrtInferTensorConformance):
    """Here: rules about the class, and the others where there is a device."""
