"""The words keep every rule; without a device those about the class alone are judged."""

import pytest

from headrace_trt import conformance


@pytest.mark.gpu
class Infer(conformance.TensorrtInferTensorConformance):
    """On a device."""


@pytest.mark.gpu
class Whole(conformance.TensorrtTensorConformance):
    """On a device."""


class OnThisMachine(conformance.TensorrtInferTensorConformance):
    """Here: rules about the class, and the others where there is a device."""
