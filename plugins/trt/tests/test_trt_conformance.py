"""The words keep every rule; without a device those about the class alone are judged."""

import json
import tempfile
from pathlib import Path

import pytest

from headrace_testing.conformance import certify
from headrace_trt import conformance
from headrace_trt.building.cache import CachedPlan

CACHE = tempfile.TemporaryDirectory(prefix="headrace-trt-")
"""The engines of this module: the kit makes pipelines outside of fixtures."""

OPTIONS = {**conformance.TensorrtTensorConformance.options, "cache_dir": CACHE.name}


@pytest.mark.gpu
class Infer(conformance.TensorrtInferTensorConformance):
    """On a device."""

    options = OPTIONS


@pytest.mark.gpu
class Whole(conformance.TensorrtTensorConformance):
    """On a device."""

    options = OPTIONS


@pytest.mark.slow
class OnThisMachine(conformance.TensorrtInferTensorConformance):
    """Here: rules about the class, and the others where there is a device."""


OTHERS = [
    (conformance.Onnx2TensorrtConformance, {}),
    (conformance.LoadTensorrtEngineConformance, {}),
    (conformance.TensorrtCatConformance, {}),
    (conformance.TensorrtSplitConformance, {}),
    (conformance.TensorrtInferTensorConformance, {}),
    (conformance.TensorrtTensorConformance, {"cuda_graph": True}),
    (conformance.TensorrtInferTensorConformance, {"context_memory": "shared"}),
]


@pytest.mark.parametrize(
    ("kit", "more"),
    [
        pytest.param(
            conformance.TensorrtTensorConformance,
            {"output_device": "device"},
            marks=pytest.mark.first("run TensorRT engines: the backend keeps every rule"),
        ),
        *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS),
    ],
)
def test_every_rule_is_kept_on_a_device_of_host_memory(device, monkeypatch, kit, more):
    """Buffers, streams and graphs are ours; the engine is ONNX Runtime's."""
    pytest.importorskip("onnxruntime")

    def build_engine(settings, **_):
        most = settings.max or 1
        profile = {"x": ((1, 3), (most, 3), (most, 3))}
        sidecar = {"model": str(settings.model), "profiles": [profile], "data_dependent": []}
        sidecar["narrowed"] = False
        return CachedPlan(Path("it.plan"), json.dumps(sidecar).encode(), False, {})

    monkeypatch.setattr("headrace_trt.building.obtaining.build_engine", build_engine)
    here = {"unavailable": lambda self: None}
    inside = kit.inside and type("WholeOnFake", (kit.inside,), here)
    members = {**here, "options": {**kit.options, **more}, "inside": inside}
    certificate = certify(type("OnFake", (kit,), members))
    wrong = [(v.id, v.detail) for v in certificate.rules if v.outcome in ("failed", "blocked")]
    assert wrong == []
    assert certificate.certified
    assert device.memory == {}
