"""OnnxTensor on a CUDA device against a bare loop of ONNX Runtime, and against the way through the CPU.

Three sides run the same network on the same device, in turn, in rounds:

- ``bare``: ``session.run_with_iobinding`` in a loop, inputs and outputs bound once, in GPU memory;
- ``headrace``: a pipeline with one `OnnxTensor`, a batch that lies on the GPU per call, results that
  stay there;
- ``through the CPU``: the batch is copied to numpy, ``session.run``, and the result copied back.

The clock covers whole calls, one after the other in one thread, each until its result is finished on
the GPU. Needs onnxruntime-gpu, cuda-bindings, onnx and a CUDA device.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from benchmarks.load import arguments, environment, save
from onnx import TensorProto, helper, numpy_helper

import headrace

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = (3, 224, 224)
STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Channels and blocks of two convolutions each, as in a residual network of 34 layers."""


def make_network(path: Path) -> None:
    """Write a residual network with random weights: ``x float32 [N, 3, 224, 224]`` to ``y [N, 512]``."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    weights: list[Any] = []

    def conv(source: str, before: int, after: int, size: int, stride: int) -> str:
        name = f"w{len(weights)}"
        scale = (2 / (before * size * size)) ** 0.5 / 2
        values = (rng.standard_normal((after, before, size, size)) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        pads, strides = [size // 2] * 4, [stride, stride]
        nodes.append(
            helper.make_node("Conv", [source, name], [f"c{name}"], pads=pads, strides=strides)
        )
        return f"c{name}"

    def relu(source: str) -> str:
        nodes.append(helper.make_node("Relu", [source], [f"r{source}"]))
        return f"r{source}"

    last, channels = relu(conv("x", 3, 64, 7, 4)), 64
    for stage, (wide, blocks) in enumerate(STAGES):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            short = last if wide == channels else conv(last, channels, wide, 1, stride)
            long = conv(relu(conv(last, channels, wide, 3, stride)), wide, wide, 3, 1)
            nodes.append(helper.make_node("Add", [short, long], [f"a{long}"]))
            last, channels = relu(f"a{long}"), wide
    nodes.append(helper.make_node("GlobalAveragePool", [last], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *SHAPE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512])],
        weights,
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))


def bare_loop(session: Any, x: Any, batch: int) -> Callable[[], Any]:
    """Return a call of ``run_with_iobinding`` with everything bound once."""
    y = ort.OrtValue.ortvalue_from_shape_and_type([batch, 512], np.float32, "cuda", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return y

    return call


def through_the_cpu(session: Any, x: Any) -> Callable[[], Any]:
    """Give a call that has its input and its output on the GPU, and runs with numpy arrays."""

    def call() -> Any:
        (y,) = session.run(None, {"x": x.numpy()})
        return ort.OrtValue.ortvalue_from_numpy(y, "cuda", 0)

    return call


def per_second(call: Callable[[], Any], seconds: float) -> float:
    """Return the calls per second of a loop that lasts for about ``seconds``."""
    count, start = 0, time.perf_counter()
    while True:
        for _ in range(10):
            call()
        count += 10
        took = time.perf_counter() - start
        if took >= seconds:
            return count / took


def gpu_name() -> str:
    """Return name and driver of the first GPU."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "-i", "0"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown (there is no nvidia-smi)"


def main() -> None:
    """Print calls per second of each side and their ratios."""
    parser = arguments(__doc__)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--seconds", type=float, default=1.0, help="of one side in one round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.quick:
        args.batches, args.seconds, args.rounds = [1, 8], 0.1, 1
    print(f"GPU: {gpu_name()}")
    print(f"onnxruntime {ort.__version__}, headrace {headrace.__version__}, numpy {np.__version__}")
    print("clock: whole calls in one thread, until the result is finished on the GPU")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "residual.onnx"
        make_network(path)
        config = {
            "backend": "OnnxTensor",
            "model": str(path),
            "device": "cuda:0",
            "max": max(args.batches),
            "output_device": "device",
        }
        with headrace.pipe(config) as pipe, headrace.pipe({**config, "cuda_graph": True}) as graphs:
            # OnnxTensor sets this option by default. Without it the sides would run other kernels.
            options = {"cudnn_conv_algo_search": "HEURISTIC"}
            providers = [("CUDAExecutionProvider", options)]
            session = ort.InferenceSession(str(path), providers=providers)
            figures = {
                f"batch {batch}": compare(session, pipe, graphs, batch, args.seconds, args.rounds)
                for batch in args.batches
            }
    about = environment(["headrace", "headrace-ort", "onnxruntime-gpu", "numpy"])
    save(args.json, {**about, "gpu": gpu_name()}, figures)


def compare(
    session: Any, pipe: Any, graphs: Any, batch: int, seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Run the sides in turn for one batch size, check that they agree, print and return calls per second."""
    rng = np.random.default_rng(batch)
    array = rng.standard_normal((batch, *SHAPE)).astype(np.float32)
    x = ort.OrtValue.ortvalue_from_numpy(array, "cuda", 0)
    sides = {
        "bare": bare_loop(session, x, batch),
        "headrace": lambda: pipe({"data": x, "request_size": batch})["result"],
        "headrace, cuda_graph": lambda: graphs({"data": x, "request_size": batch})["result"],
        "through the CPU": through_the_cpu(session, x),
    }
    answers = {}
    for name, call in sides.items():
        for _ in range(10):
            answer = call()
        value = answer if isinstance(answer, ort.OrtValue) else ort.OrtValue.from_dlpack(answer)
        answers[name] = value.numpy()
        np.testing.assert_allclose(answers[name], answers["bare"], rtol=2e-2, atol=2e-2)
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, call in sides.items():
            found[name].append(per_second(call, seconds))
    ours = statistics.median(found["headrace"])
    print(f"\nbatch {batch}: calls per second (median of {rounds} rounds), ms per call")
    for name, rates in found.items():
        rate = statistics.median(rates)
        print(f"  {name:22} {rate:9.1f} {1000 / rate:9.3f} ms   headrace / this: {ours / rate:.3f}")
    to_bare = [a / b for a, b in zip(found["headrace"], found["bare"], strict=True)]
    print(f"  headrace / bare per round: {', '.join(f'{ratio:.3f}' for ratio in to_bare)}")
    return found


if __name__ == "__main__":
    main()
