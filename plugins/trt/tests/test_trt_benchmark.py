"""What the benchmark of TensorRT calls of this distribution, on a device of host memory; no time is looked at."""

from pathlib import Path

import numpy as np
import pytest

from headrace_trt.engines import engine

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="the benchmarks are in the repository alone"
)


def test_the_host_work_of_a_batch_is_measured(device, plan, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import gpu_networks, gpu_table, gpu_trt

    path = plan(gpu_networks.tiny(tmp_path), {"x": ((1, 256), (32, 256), (32, 256))})
    bench = gpu_trt.Bench(tmp_path, [], 0.0, cuda_graph=False, quick=True)

    def built(*_, **__):
        return engine.load_plan(bench.library, device, path.read_bytes(), label="tiny")

    monkeypatch.setattr(bench, "built", built)  # the real builder needs the real library
    bench.overhead()
    assert [figure.unit for figure in bench.kept] == ["µs", "µs"]
    rows = gpu_table.resident(device, (2, 3))
    assert np.array_equal(rows.get(), np.random.default_rng(0).random((2, 3), np.float32))
