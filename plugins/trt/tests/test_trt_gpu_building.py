"""Builds, plans, caches, tools and plugins on a real device."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from gpu_helpers import ALONE, GATHERED, LOADED, PROFILE, QUICK, expected_of, images, relative
from onnx import TensorProto as T

import headrace
from headrace.errors import BackendError, SetupError
from headrace_trt import BuildCancelledError, BuildSettings, build_engine, build_plan
from headrace_trt.engines.layers import count_types
from headrace_trt.libraries.logs import logger_for
from headrace_trt.libraries.tensorrt import find_library

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu_cache")]


def other_weights(path, to):
    import onnx

    model = onnx.load(path)
    for weight in model.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        weight.CopyFrom(onnx.numpy_helper.from_array(values[::-1].copy(), weight.name))
    onnx.save(model, to)
    return to


def test_refit_changes_answers_as_a_new_build_does(pipe, small_net, tmp_path):
    other = other_weights(small_net, tmp_path / "other.onnx")
    engine = tmp_path / "refit.plan"
    settings = BuildSettings(model=small_net, profiles=(PROFILE,), refit=True, **QUICK)
    build_engine(settings, engine=engine)
    x = images(4)
    p = pipe(backend=LOADED, model=str(engine), max=4)
    assert (
        relative(p({"data": x, "request_size": 4})["result"], expected_of(small_net, x=x)[0]) < 1e-3
    )
    p = pipe(backend=LOADED, model=str(engine), weights=str(other), max=4)
    assert relative(p({"data": x, "request_size": 4})["result"], expected_of(other, x=x)[0]) < 1e-3
    fixed = tmp_path / "fixed.plan"
    build_engine(settings.with_(refit=False), engine=fixed)
    with pytest.raises(SetupError, match="without `refit`"):
        pipe(backend=LOADED, model=str(fixed), weights=str(other), max=4)


def test_a_stripped_plan_gets_its_weights_from_the_model(pipe, small_net):
    p = pipe(backend=ALONE, model=str(small_net), profiles=[PROFILE], max=4, strip=True, **QUICK)
    x = images(4)
    assert (
        relative(p({"data": x, "request_size": 4})["result"], expected_of(small_net, x=x)[0]) < 1e-3
    )


def test_weights_that_are_streamed(pipe, save):
    random = np.random.default_rng(0)
    matrix = random.standard_normal((2048, 2048)).astype(np.float32) / 45
    model = save(
        [("MatMul", ["x", "w"], ["y"], {})],
        [("x", T.FLOAT, ["n", 2048])],
        [("y", T.FLOAT, ["n", 2048])],
        [("w", matrix)],
        name="streamed.onnx",
    )
    p = pipe(backend=ALONE, model=str(model), max=4, weight_streaming_bytes=0, **QUICK)
    x = random.standard_normal((4, 2048)).astype(np.float32)
    assert relative(p({"data": x, "request_size": 4})["result"], x @ matrix) < 1e-3


@pytest.mark.parametrize("memory", ["on_profile_change", "shared"])
def test_scratch_memory(pipe, small_net, memory):
    p = pipe(
        backend=GATHERED, model=str(small_net), profiles=[PROFILE], max=4, instance_num=3,
        context_memory=memory, **QUICK,
    )  # fmt: skip
    x = images(24)
    (expected,) = expected_of(small_net, x=x)
    got = np.stack([r["result"] for r in p([{"data": image} for image in x])])
    assert relative(got, expected) <= 1e-3


def test_a_foreign_file_and_a_torn_plan_say_both_sides(pipe, small_net, tmp_path):
    torn = tmp_path / "torn.plan"
    found = build_engine(BuildSettings(model=small_net, profiles=(PROFILE,), **QUICK))
    for content in (b"nonsense" * 100, found.plan[: len(found.plan) // 2]):
        torn.write_bytes(content)
        with pytest.raises(SetupError, match=r"torn\.plan cannot be run by tensorrt") as caught:
            pipe(backend=LOADED, model=str(torn))
        assert "compute capability" in str(caught.value)


def compatible_plan(model):
    """A plan for newer versions, by TensorRT's own calls. It carries the lean runtime, which is code."""
    library = find_library()
    trt, logger = library.trt, logger_for(library)
    builder = trt.Builder(logger)
    network = builder.create_network()
    parser = trt.OnnxParser(network, logger)
    assert parser.parse_from_file(str(model))
    profile = builder.create_optimization_profile()
    profile.set_shape("x", (1, 3, 16, 16), (4, 3, 16, 16), (8, 3, 32, 32))
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    config.clear_flag(trt.BuilderFlag.TF32)
    config.set_flag(trt.BuilderFlag.VERSION_COMPATIBLE)
    return builder.build_serialized_network(network, config)


def test_a_plan_that_holds_code_must_be_trusted(rtx_or_full, pipe, small_net, tmp_path):
    content = compatible_plan(small_net)
    if content is None:
        pytest.skip("this TensorRT finds no lean runtime to put into the plan")
    engine = tmp_path / "compatible.plan"
    engine.write_bytes(bytes(memoryview(content)))
    with pytest.raises(SetupError, match="cannot be run") as caught:
        pipe(backend=LOADED, model=str(engine), max=4)
    assert "trust_engine" in caught.value.hint
    p = pipe(backend=LOADED, model=str(engine), max=4, trust_engine=True)
    x = images(4)
    got = p({"data": x, "request_size": 4})["result"]
    assert relative(got, expected_of(small_net, x=x)[0]) < 1e-3


@pytest.mark.whole_device
def test_too_little_memory_is_an_error_and_the_others_go_on(pipe, small_net, cuda):
    p = pipe(backend=ALONE, model=str(small_net), profiles=[PROFILE], max=4, **QUICK)
    free, _ = cuda.memory_bytes()
    held = cuda.malloc(free - (64 << 20))
    try:
        huge = {"min": "x:1x3x16x16", "max": "x:64x3x2048x2048"}
        with pytest.raises((SetupError, BackendError)):
            pipe(backend=ALONE, model=str(small_net), profiles=[huge], max=64, **QUICK)
    finally:
        cuda.free(held)
    assert p({"data": images(1)[0]})["result"].shape == (10,)


@pytest.mark.whole_device
def test_memory_and_threads_after_ten_pipelines(small_net, cuda):
    gc.collect()
    threads = threading.active_count()
    config = {
        "backend": GATHERED, "model": str(small_net), "profiles": [PROFILE], "max": 8,
        "instance_num": 2, **QUICK,
    }  # fmt: skip
    free = []
    for turn in range(11):
        with headrace.pipe({**config, "cuda_graph": turn % 2 == 0, "output_device": "cpu"}) as p:
            p({"data": images(1)[0]})
        gc.collect()
        free.append(cuda.memory_bytes()[0])
    assert free[0] - free[-1] < 64 << 20
    assert threading.active_count() <= threads


def test_a_build_is_given_up_at_the_next_step(small_net):
    asked = []

    def cancelled():
        asked.append(time.monotonic())
        return len(asked) > 10

    settings = BuildSettings(model=small_net, profiles=(PROFILE,), optimization_level=3)
    with pytest.raises(BuildCancelledError):
        build_plan(settings, cancelled=cancelled)
    assert len(asked) < 30


def test_ctrl_c_ends_a_build_and_leaves_no_half_file(save, tmp_path):
    """The interrupt comes when the builder has reported its first phase, from another process."""
    random = np.random.default_rng(0)
    deep = save(
        [("Conv", [f"t{k}", f"w{k}"], [f"t{k + 1}"], {"pads": [1, 1, 1, 1]}) for k in range(12)],
        [("t0", T.FLOAT, ["n", 16, 64, 64])],
        [("t12", T.FLOAT, ["n", 16, 64, 64])],
        [(f"w{k}", random.standard_normal((16, 16, 3, 3)).astype(np.float32)) for k in range(12)],
    )
    code = textwrap.dedent(
        """
        import contextlib, signal, sys
        from headrace_trt import BuildSettings, build_engine
        signal.signal(signal.SIGINT, signal.default_int_handler)
        @contextlib.contextmanager
        def progress(total, phase):
            print(phase, flush=True)
            yield lambda steps: None
        settings = BuildSettings(model=sys.argv[1], max=8, optimization_level=5)
        build_engine(settings, cache_dir=sys.argv[2], progress=progress)
        print("built")
        """
    )
    cache = tmp_path / "cache"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(deep), str(cache)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert first, err
    assert "built" not in out
    assert "KeyboardInterrupt" in err
    assert process.returncode in (-signal.SIGINT, 130)
    assert [path.name for path in cache.glob("*") if path.suffix != ".lock"] == []


def test_two_processes_one_cache(small_net, tmp_path):
    code = textwrap.dedent(
        """
        import sys
        import numpy as np, headrace
        config = {"backend": sys.argv[2], "model": sys.argv[1], "max": 4, "optimization_level": 0,
                  "profiles": [{"min": "x:1x3x16x16", "max": "x:4x3x16x16"}]}
        with headrace.pipe(config) as p:
            print(p({"data": np.ones((3, 16, 16), np.float32)})["result"].shape)
            print('"cache_hit": true' in __import__("json").dumps(p.describe()))
        """
    )
    env = {**os.environ, "HEADRACE_TRT_CACHE": str(tmp_path / "cache")}
    args = [sys.executable, "-c", code, str(small_net), ALONE]
    running = [
        subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        for _ in range(2)
    ]
    reported = []
    for process in running:
        out, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        reported.append(out.split("\n")[1])
    assert sorted(reported) == ["False", "True"]
    assert len(list(Path(tmp_path / "cache").glob("*.plan"))) == 1


def test_the_timing_cache_makes_the_second_build_no_slower_and_is_shared(
    rtx_or_full, small_net, tmp_path
):
    path = tmp_path / "timing.cache"
    settings = BuildSettings(model=small_net, profiles=(PROFILE,), timing_cache=path)
    build_plan(settings)
    size = path.stat().st_size
    assert size > 0
    build_plan(settings.with_(precision="fp16"))
    assert path.stat().st_size >= size


def test_the_tool_measures(small_net, cuda, tmp_path):
    from headrace_trt.tools.benching import bench_engine
    from headrace_trt.tools.opening import opened

    settings = BuildSettings(model=small_net, profiles=(PROFILE,), **QUICK)
    plan = build_engine(settings, engine=tmp_path / "it.plan").path
    with opened(plan) as (engine, cuda):
        for options in ({}, {"cuda_graph": True}, {"copies": True}, {"streams": 2}):
            found = bench_engine(engine, cuda, window_s=0.05, most_s=0.3, **options)
            assert found.rows == 4
            assert 0 < found.latency_ms["p50"] <= found.latency_ms["p99"]
        assert count_types(engine.layers()).get("fp32")
        assert tuple(engine.engine.get_tensor_profile_shape("x", 0)[2]) == (8, 3, 32, 32)


def test_a_refitted_plan_is_written(pipe, small_net, tmp_path):
    from headrace_trt.tools.refitting import refit_plan

    other = other_weights(small_net, tmp_path / "other.onnx")
    plan, target = tmp_path / "it.plan", tmp_path / "new.plan"
    settings = BuildSettings(model=small_net, profiles=(PROFILE,), refit=True, **QUICK)
    build_engine(settings, engine=plan)
    assert refit_plan(plan, other, target)["bytes"] == target.stat().st_size
    p, x = pipe(backend=LOADED, model=str(target), max=4), images(4)
    assert relative(p({"data": x, "request_size": 4})["result"], expected_of(other, x=x)[0]) <= 1e-3
