"""Onnx2Tensorrt in a pipeline: the real builder, on a device of host memory."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.errors import SetupError
from headrace_trt.building.cache import sidecar_of
from headrace_trt.engines import engine as engine_module

onnxruntime = pytest.importorskip("onnxruntime")

BACKEND = (
    "IoC[Onnx2Tensorrt,TensorrtInferTensor;CatSplit[TensorrtCat,TensorrtInferTensor,TensorrtSplit]]"
)
PROFILES = [{"min": "x:1x3x16x16", "max": "x:4x3x16x16"}]


@pytest.fixture
def built(device, rtx, small_net, monkeypatch):
    """Plans are built by TensorRT for RTX, and what runs them is the model of the test."""
    from fake_device import FakeEngine, FakeLibrary

    loaded = []

    def load_plan(library, cuda, plan, *, label, ordinal=0, **how):
        sidecar = json.loads(sidecar_of(Path(label)).read_text())
        profiles = [
            {name: tuple(tuple(r[k]) for k in ("min", "opt", "max")) for name, r in profile.items()}
            for profile in sidecar["profiles"]
        ]
        loaded.append((label, how))
        found = FakeEngine(cuda, small_net, profiles)
        device.engines.append(found)
        return engine_module.Engine(FakeLibrary(), None, found, label=label, ordinal=ordinal)

    monkeypatch.setattr("headrace_trt.engines.engine.load_plan", load_plan)
    monkeypatch.setattr("headrace_trt.libraries.tensorrt.find_library", lambda *_, **__: rtx)
    monkeypatch.setattr("headrace_trt.building.obtaining.find_library", lambda *_, **__: rtx)
    return loaded


def config(small_net, **more):
    return {
        "backend": BACKEND, "model": str(small_net), "profiles": PROFILES, "max": 4,
        "optimization_level": 0, **more,
    }  # fmt: skip


def test_it_builds_once_for_all_instances_and_finds_it_again(built, device, pipe, small_net):
    p = pipe(**config(small_net, instance_num=3))
    x = np.random.default_rng(0).standard_normal((9, 3, 16, 16)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(str(small_net)).run(None, {"x": x})
    for request, wanted in zip(p([{"data": image} for image in x]), expected, strict=True):
        assert np.allclose(request["result"], wanted, atol=1e-4)
    assert len(built) == len(device.engines) == 1
    text = json.dumps(p.describe())
    assert '"cache_hit": false' in text
    assert '"precision": "model"' in text
    again = pipe(**config(small_net))
    assert '"cache_hit": true' in json.dumps(again.describe())
    assert built[0][0] == built[1][0]


def test_another_precision_takes_another_plan(built, pipe, small_net):
    pipe(**config(small_net))
    p = pipe(**config(small_net, precision="fp16"))
    assert p({"data": np.zeros((3, 16, 16), np.float32)})["result"].shape == (10,)
    assert len({label for label, _ in built}) == 2
    with pytest.raises(SetupError, match="matches the name of no node"):
        pipe(**config(small_net, precision="fp16", keep_fp32=["nonsense"]))


def test_two_sets_of_options_in_one_node_are_two_engines(built, pipe, small_net):
    word = "IoC[Onnx2Tensorrt({}),TensorrtInferTensor;TensorrtInferTensor]"
    both = f"S[{word.format('precision=fp16')},{word.format('precision=bf16')}]"
    pipe(**config(small_net, backend=both))
    assert len({label for label, _ in built}) == 2


def test_an_explicit_file_and_a_stripped_plan(built, pipe, small_net, tmp_path):
    engine = tmp_path / "mine" / "net.engine"
    pipe(**config(small_net, engine=str(engine)))
    assert engine.stat().st_size > 1000
    assert built[0][1]["weights"] is None
    assert not built[0][1].get("trust")


def test_mean_without_image_input_is_warned_of(built, pipe, small_net, caplog):
    caplog.set_level(logging.WARNING)
    p = pipe(**config(small_net, mean=[1.0, 2.0, 3.0]))
    assert "nothing before it may apply them too" in caplog.text
    assert "[1.0, 2.0, 3.0]" in json.dumps(p.describe())


def test_the_timing_cache_is_refused_where_there_is_none(built, small_net, tmp_path):
    with pytest.raises(SetupError, match="no timing cache"):
        headrace.pipe(config(small_net, timing_cache=str(tmp_path / "timing.cache")))
