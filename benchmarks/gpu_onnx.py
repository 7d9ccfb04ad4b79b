"""The part ``onnx`` of `benchmarks.gpu_torch`: OnnxTensor beside a bare loop with IOBinding.

The bare loop is one thread that calls without a pause. One caller of a pipeline waits for two thread switches
per request, in which the device is idle; with several callers the next batch already waits in the queue.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import headrace

if TYPE_CHECKING:
    from benchmarks.gpu_classifier import Bench

BATCH = 8
SIDE = 224
CLIENTS = 4


def _one(pipe: headrace.Pipeline, given: torch.Tensor, _: int) -> None:
    pipe({"data": given, "request_size": BATCH})


def run(bench: Bench) -> dict[str, Any]:
    """Measure, and print the ratios."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    import onnxruntime as ort
    from benchmarks.jpeg_sides import make_network

    provider = "CUDAExecutionProvider" if bench.cuda else "CPUExecutionProvider"
    if provider not in ort.get_available_providers():
        print(f"onnx: this build of ONNX Runtime has no {provider}\n")
        return {}
    kind = "cuda" if bench.cuda else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "network.onnx"
        make_network(model, 1 if bench.quick else 6)
        given = torch.zeros((BATCH, 3, SIDE, SIDE), device=bench.device)
        bench.wait()
        session = ort.InferenceSession(str(model), providers=[provider])
        binding = session.io_binding()
        shape = tuple(given.shape)
        binding.bind_input("image", kind, 0, np.float32, shape, given.data_ptr())
        binding.bind_output("scores", kind, 0)
        config = {
            "backend": "OnnxTensor",
            "model": str(model),
            "device": bench.device,
            "max": BATCH,
        }
        resident = headrace.pipe({**config, "output_device": "device"})
        host, array = headrace.pipe(config), given.cpu().numpy()
        sides = {
            "run_with_iobinding": lambda: session.run_with_iobinding(binding),
            "headrace, on the device": lambda: resident({"data": given, "request_size": BATCH}),
            "headrace, through the CPU": lambda: host({"data": array, "request_size": BATCH}),
        }
        loaded = {
            f"headrace, {CLIENTS} callers, {number}": headrace.pipe(
                {**config, "output_device": "device", "instance_num": number}
            )
            for number in (1, 2)
        }
        speeds: dict[str, list[float]] = {name: [] for name in (*sides, *loaded)}
        for _ in range(bench.rounds):
            for name, side in sides.items():
                speeds[name].append(bench.repeated(side, BATCH))
            for name, pipe in loaded.items():
                load = bench.load(partial(_one, pipe, given), CLIENTS)
                speeds[name].append(load.rps * BATCH)
        for pipe in (resident, host, *loaded.values()):
            pipe.close()
    bare, ours, through, one, two = (statistics.median(found) for found in speeds.values())
    print(
        f"ONNX Runtime {ort.__version__}, batch {BATCH}: run_with_iobinding {bare:.0f} pictures a second,"
        f" OnnxTensor {ours:.0f}, through the CPU {through:.0f}\n"
        f"  one caller: {ours / bare:.3f} x the bare loop, {ours / through:.2f} x the way through the CPU\n"
        f"  {CLIENTS} callers: {one / bare:.3f} x with one instance, {two / bare:.3f} x with two (wanted: 0.95)\n",
        flush=True,
    )
    return {
        "ratio": ours / bare,
        "over_cpu": ours / through,
        "loaded": {"1": one / bare, "2": two / bare},
        "speeds": speeds,
    }
