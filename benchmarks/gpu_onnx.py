"""The part ``onnx`` of `benchmarks.gpu_torch`: OnnxTensor beside a bare loop with IOBinding."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import headrace

if TYPE_CHECKING:
    from benchmarks.gpu_torch import Bench

BATCH = 8
SIDE = 224


def run(bench: Bench) -> dict[str, Any]:
    """Measure, and print the ratios."""
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
        speeds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(bench.rounds):
            for name, side in sides.items():
                speeds[name].append(bench.repeated(side, BATCH))
        resident.close()
        host.close()
    bare, ours, through = (statistics.median(found) for found in speeds.values())
    print(
        f"ONNX Runtime {ort.__version__}, batch {BATCH}: run_with_iobinding {bare:.0f} pictures a second,"
        f" OnnxTensor {ours:.0f}, through the CPU {through:.0f}\n"
        f"  {ours / bare:.3f} x the bare loop (wanted: 0.95), {ours / through:.2f} x the way through the"
        " CPU\n",
        flush=True,
    )
    return {"ratio": ours / bare, "over_cpu": ours / through, "speeds": speeds}
