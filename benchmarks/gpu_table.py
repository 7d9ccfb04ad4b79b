"""The part ``table`` of `benchmarks.gpu_trt`: ResNet-50 at batch 1, 8 and 32, all sides in turn.

Every side computes in float16 with inputs that lie on the device (random ones: zeros run faster) and
leaves its results there; ONNX Runtime gets the graph that TensorRT gets. A figure is the milliseconds
of a batch, from the throughput of a loop: of two streams for trtexec's method, of one for ONNX Runtime and torch.
trtexec queues two runs ahead on each stream, so four are under way. An instance of headrace waits for its run before
it takes the next, so four runs under way are four instances; two instances have as many contexts as
trtexec in place of as many runs, and three lie between. ``one caller`` is the latency of one client.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from benchmarks.figures import compare, measure
from benchmarks.gpu_networks import resnet, torch_resnet
from benchmarks.load import drive

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from benchmarks.gpu_engine import EngineBench

ALONE = "IoC[Onnx2Tensorrt,TensorrtInferTensor;TensorrtInferTensor]"
BATCHES = (1, 8, 32)
METHOD, GRAPHS = "trtexec's method, two streams", ", with graphs"
INSTANCES = {"four instances": 4, "three instances": 3, "two instances": 2}
CLIENTS = {1: 1, 2: 3, 3: 6, 4: 6}
"""How many clients send to so many instances."""


def run(bench: EngineBench) -> dict[str, Any]:
    """Measure ResNet-50; give ``{batch: {side: ms of each round}}``."""
    size = 64 if bench.quick else 224
    model, shape = resnet(bench.folder), (3, size, size)
    text = "x".join(map(str, shape))
    profiles = [{"min": f"x:1x{text}", "max": f"x:{max(BATCHES)}x{text}"}]
    options = {"precision": "fp16", "profiles": profiles, "max": max(BATCHES)}
    begun = time.perf_counter()
    engine = bench.built(model, **{**options, "profiles": tuple(profiles)})
    print(f"table: {size} x {size}, built in {time.perf_counter() - begun:.0f} s")
    config = {"model": str(model), "backend": ALONE, "output_device": "device", **options}
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        settings = {"one caller": (1, False)}
        for side, number in INSTANCES.items():
            settings |= {side: (number, False), f"{side}{GRAPHS}": (number, True)}
        pipes = {
            side: stack.enter_context(
                headrace.pipe({**config, "instance_num": number, "cuda_graph": graph})
            )
            for side, (number, graph) in settings.items()
        }
        others = dict([*_onnxruntime(bench, model), *_torch()])
        for batch in BATCHES:
            sides = {
                METHOD: partial(_alone_ms, bench, engine, batch),
                f"{METHOD}{GRAPHS}": partial(_alone_ms, bench, engine, batch, graph=True),
            }
            request = {"data": resident(bench.cuda, (batch, *shape)), "request_size": batch}
            for side, pipe in pipes.items():
                clients = CLIENTS[settings[side][0]]
                sides[side] = partial(_piped_ms, bench, pipe, request, clients)
            for side, prepare in others.items():
                call = _guarded(side, partial(prepare, (batch, *shape)))
                if call is not None:
                    sides[side] = partial(_timed, call, bench.seconds / 4)
            times: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(1 if bench.quick else 3):
                for side, measured in sides.items():
                    times[side].append(measured())
            rows[str(batch)] = times
            for side, ms in times.items():
                said = f"{side}, batch {batch}: a batch"
                beside = METHOD + GRAPHS * side.endswith(GRAPHS)
                figure = measure(said, "ms", "lower", ms)
                if side in pipes:
                    figure = compare(said, "ms", "lower", ms, beside, times[beside])
                bench.kept.append(figure)
                print(f"table: {said} {figure.value:.3f} ms", flush=True)
    return rows


def _alone_ms(bench: EngineBench, engine: Any, batch: int, *, graph: bool = False) -> float:
    """Time the loop of trtexec, two streams."""
    found = bench.alone(engine, batch, streams=2, graph=graph)
    return float(1e3 / found.runs_per_s)


def _piped_ms(bench: EngineBench, pipe: Any, request: dict[str, Any], clients: int) -> float:
    load = drive(lambda _: pipe(dict(request)), clients, bench.seconds / 4)
    return 1e3 / load.rps


def _timed(run: Callable[[], object], seconds: float) -> float:
    """Give the milliseconds of one call, over ``seconds`` after a warm-up."""
    for _ in range(5):
        run()
    count, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        run()
        count += 1
    return 1e3 * (time.perf_counter() - begun) / count


def _guarded(side: str, prepare: Callable[[], Callable[[], object]]) -> Any:
    """Prepare a side and call it once; None, with the reason printed, where it cannot run here."""
    try:
        call = prepare()
        call()
    except Exception as error:  # noqa: BLE001 - a side that is not there is left out
        print(f"table: {side} is left out: {type(error).__name__}: {str(error)[:300]}")
        return None
    return call


def _onnxruntime(bench: EngineBench, model: Path) -> Iterator[tuple[str, Any]]:
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
        import torch  # the provider uses the CUDA libraries that torch loads
    except ImportError as error:
        print(f"table: onnxruntime is left out: {error}")
        return
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        print("table: this build of ONNX Runtime has no CUDAExecutionProvider")
        return
    from headrace_trt.building.network import prepare_model
    from headrace_trt.building.settings import BuildSettings

    half = bench.folder / f"{model.stem}_fp16.onnx"
    onnx.save(prepare_model(BuildSettings(model=model, precision="fp16")), half)
    session = onnxruntime.InferenceSession(str(half), providers=["CUDAExecutionProvider"])

    def prepare(shape: tuple[int, ...]) -> Callable[[], object]:
        x = torch.rand(shape, device="cuda")
        torch.cuda.synchronize()
        binding = session.io_binding()
        binding.bind_input("x", "cuda", 0, np.float32, shape, x.data_ptr())
        for output in session.get_outputs():
            binding.bind_output(output.name, "cuda", 0)

        def call() -> None:
            session.run_with_iobinding(binding)
            assert x is not None  # keeps the tensor alive for as long as its address is bound

        return call

    yield "onnxruntime, CUDA", prepare


def _torch() -> Iterator[tuple[str, Any]]:
    try:
        import torch

        eager = torch_resnet().half().cuda().eval().to(memory_format=torch.channels_last)
    except ImportError as error:
        print(f"table: torch is left out: {error}")
        return

    def prepare(shape: tuple[int, ...]) -> Callable[[], object]:
        x = torch.rand(shape, device="cuda").half().contiguous(memory_format=torch.channels_last)

        @torch.inference_mode()
        def call() -> None:
            eager(x)
            torch.cuda.current_stream().synchronize()

        return call

    yield "torch, eager", prepare


def resident(cuda: Any, shape: tuple[int, ...]) -> Any:
    """Return an array of random numbers on the device."""
    from headrace_tensors.device_arrays import DeviceArray, StreamRef
    from headrace_trt.running.memory import DevicePool, Stream

    stream = Stream(cuda)
    pool = DevicePool(cuda, stream.handle, 0)
    values = np.random.default_rng(0).random(shape, np.float32)
    block = pool.take(values.nbytes)
    cuda.copy(block.pointer, values.ctypes.data, values.nbytes, stream.handle)
    cuda.stream_synchronize(stream.handle)
    ref = StreamRef(0)
    return DeviceArray(
        cuda, block.pointer, shape, "float32", ordinal=0, stream=ref, owner=(block, pool)
    )
