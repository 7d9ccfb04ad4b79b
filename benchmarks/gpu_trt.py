"""TensorRT on one GPU: the pipeline beside the engine alone, and what a batch costs the host.

Parts, each of which runs its sides in turn:

- ``overhead``: a batch of 8 and of 32 requests with inputs on the device, through gathering, running
  and splitting, beside a bare loop with the same engine (addresses, ``execute_async_v3``, wait). Per
  batch and per further request, in microseconds of the host.
- ``resnet``: JPEG → decoding on the CPU → ResNet-50 in TensorRT, fp16, with 40 and 160 clients, two nodes; beside
  the engine alone (two contexts on two streams, inputs on the device), decoding alone, and the same threads in a
  program written by hand.
- ``table``: ResNet-50 at batch 1, 8 and 32: the loop of trtexec, ours, ONNX Runtime's CUDA provider and torch,
  whichever are installed (`benchmarks.gpu_table`).

    python -m benchmarks.gpu_trt [--part overhead resnet table] [--decoding 16 40 p16x8 p16x8@4 ...]
                                 [--timeout-ms 2] [--cuda-graph] [--quick] [--json FILE]

``--decoding`` says how pictures are decoded, in turn: ``[p]INSTANCES[xMAX][@CPUS[s]]``, `benchmarks.ways`. An
instance per processor unless said; with as many as clients each client decodes its own. ``p`` puts each into a
process of its own, ``xMAX`` hands it several pictures at a time, and ``@CPUS`` keeps the threads of this process
to a few processors, with ``s`` and the others to the rest. The threads of the program written by hand are as many as the first way has instances.

With ``--switch-interval-ms`` each of these loads comes once more, with CPython's usual 5 ms.
``--cuda-graph`` is the node's option: launching the layers of a deep network takes a thread milliseconds, beside those that decode.

The networks have random weights and are made at run time. Engines go into the user's cache: the next run finds them. Needs headrace,
headrace-cv, headrace-trt and a CUDA device. The clock of a request runs from the call with the bytes to the result in
the client's hands; that of a bare loop is the host's around many runs.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.decoding import by_processes, decoding_node, picture_of
from benchmarks.figures import Figure, measure
from benchmarks.gpu_engine import EngineBench, EngineRunner
from benchmarks.gpu_networks import resnet, tiny
from benchmarks.load import (
    arguments,
    beside,
    drive,
    environment,
    print_environment,
    save,
    usable_cpus,
)
from benchmarks.two_stages import TwoStages
from benchmarks.ways import WAYS, Way

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.load import Load

ENGINE = "Onnx2Tensorrt,TensorrtInferTensor"
GATHERED = f"IoC[{ENGINE};CatSplit[TensorrtCat,TensorrtInferTensor,TensorrtSplit]]"
CLIENTS = 40
USUAL_S = 0.005
"""How long a thread keeps the interpreter, unless set."""


class Bench(EngineBench):
    """The parts of this script."""

    def __init__(
        self,
        folder: Path,
        ways: Sequence[Way],
        timeout_ms: float,
        *,
        cuda_graph: bool,
        quick: bool,
    ) -> None:
        super().__init__(folder, quick=quick)
        self.ways, self.timeout_ms, self.cuda_graph = ways, timeout_ms, cuda_graph

    def overhead(self) -> None:
        """Show what gathering, running and splitting cost the host beyond the bare loop."""
        from headrace_tensors.device_arrays import DeviceArray, StreamRef
        from headrace_trt.engines.signature import read_signature
        from headrace_trt.running.gathering import Gathering
        from headrace_trt.running.memory import DevicePool, Stream
        from headrace_trt.running.options import InferOptions
        from headrace_trt.running.runner import Runner

        engine = self.built(tiny(self.folder), min=1, max=32, optimization_level=0)
        signature = read_signature(engine)
        stream = Stream(self.cuda)
        options = InferOptions(output_device="device")
        runner = Runner(
            engine, self.cuda, stream.handle, profile=0, signature=signature, keys={"x": "data"},
            options=options, context=headrace.InitContext(),
        )  # fmt: skip
        gathering = Gathering(runner)
        pool = DevicePool(self.cuda, stream.handle, 0)
        ref = StreamRef(stream.handle)
        arrays = []
        for _ in range(32):
            block = pool.take(1024)
            arrays.append(
                DeviceArray(
                    self.cuda, block.pointer, (256,), "float32", ordinal=0, stream=ref, owner=block
                )
            )

        def through(size: int) -> None:
            batch = [{"data": array} for array in arrays[:size]]
            gathering.gather(batch)
            gathered = dict(batch[0])
            gathered["data"] = gathered.pop("result")
            gathered["request_size"] = size
            gathering.run(gathered)
            for request in batch:
                request["data"] = gathered["result"]
            gathering.split(batch)
            gathering.finish()
            runner.finish()

        execution = runner._execution
        assert execution is not None
        target = pool.take(32 * 64)

        def bare(size: int) -> None:
            context = execution.context
            context.set_tensor_address("x", arrays[0].pointer)
            context.set_tensor_address("y", target.pointer)
            context.execute_async_v3(stream.handle)
            self.cuda.stream_synchronize(stream.handle)

        rounds = 50 if self.quick else 1000
        found: dict[str, float] = {}
        for size in (8, 32):
            through(size)
            times: dict[str, list[float]] = {"through": [], "bare": []}
            for _ in range(5):
                for name, side in (("through", through), ("bare", bare)):
                    begun = time.perf_counter()
                    for _ in range(rounds):
                        side(size)
                    times[name].append(1e6 * (time.perf_counter() - begun) / rounds)
            middle = {name: statistics.median(values) for name, values in times.items()}
            found[f"batch_{size}_us"] = middle["through"]
            found[f"bare_{size}_us"] = middle["bare"]
            found[f"beyond_{size}_us"] = middle["through"] - middle["bare"]
        found["further_request_us"] = (found["beyond_32_us"] - found["beyond_8_us"]) / 24
        self.figures["overhead"] = found
        print(
            f"overhead: 8 requests {found['beyond_8_us']:.1f} us beyond the bare loop"
            f" ({found['bare_8_us']:.1f} us; wanted <= 60), each further request"
            f" {found['further_request_us']:.2f} us (wanted <= 3)"
        )
        batch = "a batch of eight requests with inputs on the GPU through TensorrtTensor"
        more_us = {
            f"{batch}: time of the host, more": found["beyond_8_us"],
            "the same, for each further request: more": found["further_request_us"],
        }
        self.kept += [
            Figure(said, "µs", "lower", value, "the bare loop of execute_async_v3")
            for said, value in more_us.items()
        ]
        runner.close()
        pool.close()

    def resnet(self) -> None:
        """Measure decoding alone, the engine alone, and both as a pipeline of two nodes."""
        import cv2

        size, most = (64, 4) if self.quick else (224, 32)
        model, decode = resnet(self.folder), partial(picture_of, size=size)
        pictures = _pictures(cv2, 32)
        profiles = [{"min": f"x:1x{size}x{size}x3", "max": f"x:{most}x{size}x{size}x3"}]
        engine = self.built(
            model, profiles=tuple(profiles), precision="fp16", image_input=True,
            mean=(127.5,), std=(64.0,), max=most,
        )  # fmt: skip
        alone = self.alone(engine, most, streams=2).rows_per_s
        by_hand = self._by_hand(decode, engine, pictures, most, size).rps
        del engine
        independent = by_processes(pictures, size, self.seconds)
        infer = {
            "model": str(model), "backend": GATHERED, "profiles": profiles, "max": most, "instance_num": 2,
            "batching_timeout": self.timeout_ms, "cuda_graph": self.cuda_graph,
            "precision": "fp16", "image_input": True, "mean": [127.5], "std": [64.0],
        }  # fmt: skip
        rates = {
            "the engine alone": alone,
            f"{usable_cpus()} independent processes that only decode": independent,
            f"{self.ways[0].instances} threads written by hand, {CLIENTS} clients": by_hand,
        }
        for way in self.ways:
            config = {"decode": {**decoding_node(way, size), "next": "infer"}, "infer": infer}
            with headrace.pipe(config) as pipe, way.front():
                for clients in (CLIENTS, 4 * CLIENTS):
                    send = partial(_send, pipe, pictures)
                    load = drive(send, clients, self.seconds)
                    side = f"decoding {way.text}, {clients} clients"
                    rates[side] = load.rps
                    p99_ms = [load.p99_us / 1e3]
                    said = f"{side}: 99th percentile of the latency"
                    self.kept.append(measure(said, "ms", "lower", p99_ms))
                    if (interval_s := sys.getswitchinterval()) != USUAL_S:
                        sys.setswitchinterval(USUAL_S)
                        usual = drive(send, clients, self.seconds)
                        sys.setswitchinterval(interval_s)
                        title = (
                            f"a thread keeps the interpreter for {1e3 * interval_s:g} ms, {side}"
                        )
                        self.kept += [
                            beside(title, [load], f"{1e3 * USUAL_S:g} ms", [usual], key, own=True)
                            for key in ("rps", "p99_us")
                        ]
        for side, rate in rates.items():
            print(f"resnet: {side}: {rate:.0f} pictures a second")
            self.kept.append(measure(f"{side}: pictures a second", "1/s", "higher", [rate]))
        self.figures["resnet"] = rates

    def _by_hand(
        self,
        decode: Callable[[bytes], Any],
        engine: Any,
        pictures: list[bytes],
        most: int,
        size: int,
    ) -> Load:
        """Measure the same threads in a program written by hand: the floor of Python threads."""
        runners = [EngineRunner(engine, self.cuda, most, (size, size, 3)) for _ in range(2)]
        with TwoStages(
            decode, runners, decoders=self.ways[0].instances, batch=most, timeout_ms=self.timeout_ms
        ) as program:
            load = drive(lambda i: program(pictures[i % len(pictures)]), CLIENTS, self.seconds)
        for runner in runners:
            runner.close()
        return load

    def table(self) -> None:
        """ResNet-50 at batch 1, 8 and 32, all sides."""
        from benchmarks.gpu_table import run

        self.figures["table"] = run(self)


PARTS = ("overhead", "resnet", "table")


def _send(pipe: headrace.Pipeline, pictures: list[bytes], i: int) -> object:
    return pipe({"data": pictures[i % len(pictures)]})


def _pictures(cv2: Any, count: int) -> list[bytes]:
    random = np.random.default_rng(0)
    made = []
    for _ in range(count):
        small = random.integers(0, 256, (30, 40, 3), np.uint8)
        made.append(cv2.imencode(".jpg", cv2.resize(small, (640, 480)))[1].tobytes())
    return made


def main() -> int:
    """Run the parts that were asked for; a part that fails is told and the others go on."""
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--decoding", type=Way.read, nargs="+", default=[Way.usual()], help=f"in turn: {WAYS}"
    )
    parser.add_argument("--timeout-ms", type=float, default=2.0, help="batching_timeout")
    parser.add_argument("--cuda-graph", action="store_true", help="cuda_graph of the engine's node")
    chosen = parser.parse_args()
    packages = ("headrace", "headrace-trt", "tensorrt_cu12_bindings", "tensorrt", "torch", "numpy")
    about: Mapping[str, Any] = environment(packages)
    print_environment(about)
    failed = []
    with tempfile.TemporaryDirectory(prefix="headrace-gpu-trt-") as folder:
        bench = Bench(
            Path(folder),
            chosen.decoding,
            chosen.timeout_ms,
            cuda_graph=chosen.cuda_graph,
            quick=chosen.quick,
        )
        device = bench.cuda.describe(0)
        print(f"{device['name']} ({device['compute_capability']}), {bench.library.text}\n")
        for part in chosen.part:
            begun = time.perf_counter()
            try:
                getattr(bench, part)()
            except Exception:  # noqa: BLE001 - the device is lent: the other parts still count
                failed.append(part)
                traceback.print_exc()
            print(f"  ({part}: {time.perf_counter() - begun:.0f} s)\n", flush=True)
        if chosen.json is not None:
            more = {"device": device, "library": bench.library.text}
            save(chosen.json, {**about, **more}, bench.figures, bench.kept)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
