"""TensorRT on one GPU: the pipeline beside the engine alone, and what an instance costs.

Parts, each of which runs its sides in turn:

- ``overhead``: a batch of 8 and of 32 requests with inputs on the device, through gathering, running
  and splitting, beside a bare loop with the same engine (addresses, ``execute_async_v3``, wait). Per
  batch and per further request, in microseconds of the host.
- ``limit``: JPEG → decoding on the CPU → TensorRT fp16, 40 clients, two nodes, with a wide and deep
  network, at most half as fast as decoding alone, so that the engine is the limit; beside the engine
  alone at the same batch size (two contexts on two streams, inputs on the device), decoding alone,
  and the same threads in a program written by hand. Then an open loop at half that load.
- ``resnet``: the same with ResNet-50, where decoding is the limit.
- ``table``: ResNet-50 and a detector at batch 1, 8 and 32: the loop of trtexec, ours, ONNX Runtime's
  CUDA provider, torch eager and compiled, whichever are installed (`benchmarks.gpu_table`).
- ``image``: pictures as uint8 from the host (``image_input``), decoded by OpenCV, beside float32, with
  a network that does almost nothing, so that copies are the limit.
- ``start``: building, beside a second start from the cache; memory of one and of four instances.

    python -m benchmarks.gpu_trt [--part overhead limit ...] [--decoding 16 40 p16x8 p16x8@4 ...]
                                 [--timeout-ms 2] [--cuda-graph] [--quick] [--json FILE]

``--decoding`` says how pictures are decoded, in turn: ``[p]INSTANCES[xMAX][@CPUS[s]]``, `benchmarks.ways`. An
instance per processor unless said; with as many as clients each client decodes its own. ``p`` puts each into a
process of its own, ``xMAX`` hands it several pictures at a time, and ``@CPUS`` keeps the threads of this process
to a few processors, with ``s`` and the others to the rest. The threads of the program written by hand are as many as the first way has instances.

The engine alone is also measured with the copies of its inputs and results, which the pipeline cannot do without.
``--cuda-graph`` is the node's option: launching the layers of a deep network takes a thread milliseconds, beside those that decode.

The networks have random weights and are made at run time. Needs headrace, headrace-cv, headrace-trt
and a CUDA device. The clock of a request runs from the call with the bytes to the result in the
client's hands; that of a bare loop is the host's around many runs.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.decoding import by_processes, decoding_node, picture_of
from benchmarks.gpu_engine import EngineBench, EngineRunner
from benchmarks.gpu_networks import mean_only, resnet, tiny
from benchmarks.load import (
    arguments,
    drive,
    environment,
    print_environment,
    save,
)
from benchmarks.two_stages import TwoStages
from benchmarks.ways import WAYS, Way

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.load import Load

ENGINE = "Onnx2Tensorrt,TensorrtInferTensor"
GATHERED = f"IoC[{ENGINE};CatSplit[TensorrtCat,TensorrtInferTensor,TensorrtSplit]]"
ALONE = f"IoC[{ENGINE};TensorrtInferTensor]"
CLIENTS = 40


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
        from headrace_trt.gathering import Gathering
        from headrace_trt.memory import DevicePool, Stream
        from headrace_trt.options import InferOptions
        from headrace_trt.runner import Runner
        from headrace_trt.signature import read_signature

        engine = self.built(tiny(self.folder), min=1, max=32, optimization_level=0)
        signature = read_signature(engine)
        stream = Stream(self.cuda)
        options = InferOptions(output_device="device")
        runner = Runner(
            engine, self.cuda, stream.handle, profile=0, signature=signature, keys={"x": "data"},
            options=options, context=headrace.InitContext(),
        )  # fmt: skip
        gathering = Gathering(runner)
        pool = DevicePool(self.cuda, stream.handle)
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
        runner.close()
        pool.close()

    def _served(self, part: str, model: Path, size: int, most: int, **more: Any) -> None:
        """Measure decoding alone, the engine alone, and both as a pipeline of two nodes."""
        import cv2

        decode = partial(picture_of, size=size)
        pictures = _pictures(cv2, 32)
        profiles = [{"min": f"x:1x{size}x{size}x3", "max": f"x:{most}x{size}x{size}x3"}]
        built = {
            "precision": "fp16", "image_input": True, "mean": [127.5], "std": [64.0],
        }  # fmt: skip
        engine = self.built(
            model, profiles=tuple(profiles), precision="fp16", image_input=True,
            mean=(127.5,), std=(64.0,), max=most, **more,
        )  # fmt: skip
        alone = self.alone(engine, most, streams=2)
        copying = self.alone(engine, most, streams=2, copies=True)
        by_hand = self._by_hand(decode, engine, pictures, most, size)
        del engine
        with headrace.pipe(decoding_node(self.ways[0], size)) as pipe:
            decoding = drive(
                lambda i: pipe({"data": pictures[i % len(pictures)]}), CLIENTS, self.seconds
            )
        independent = by_processes(pictures, size, self.seconds)
        infer = self.common(
            model, backend=GATHERED, profiles=profiles, max=most, instance_num=2,
            batching_timeout=self.timeout_ms, cuda_graph=self.cuda_graph, **built, **more,
        )  # fmt: skip
        lower = min(alone.rows_per_s, max(decoding.rps, independent))
        print(
            f"{part}: engine alone {alone.rows_per_s:.0f}/s at batch {most} ({alone.latency_ms['p50']:.1f} ms), with"
            f" its copies {copying.rows_per_s:.0f}/s, decoding alone {decoding.rps:.0f}/s, by independent processes {independent:.0f}; {self.ways[0].instances} threads by hand"
            f" {by_hand.rps:.0f}/s: {by_hand.rps / lower:.3f} of the lower stage"
        )
        limit_ms = 2 * alone.latency_ms["p50"] + self.timeout_ms
        found: dict[str, Any] = {}
        for way in self.ways:
            config = {"decode": {**decoding_node(way, size), "next": "infer"}, "infer": infer}
            found[way.text] = ours = self._two_nodes(way, config, pictures, most, alone.rows_per_s)
            ours["of_lower_stage"] = ours["rps"] / lower
            ours["of_lower_stage_160_clients"] = ours["rps_160_clients"] / lower
            ours["p99_over_engine"] = ours["open_loop"]["p99_ms"] / alone.latency_ms["p50"]
            print(
                f"  decoding {way.text}: {ours['rps']:.0f}/s with {CLIENTS} clients (mean batch"
                f" {ours['mean_batch']:.1f}), {ours['of_lower_stage']:.3f} of the lower stage; with"
                f" {4 * CLIENTS} {ours['of_lower_stage_160_clients']:.3f}; open loop at"
                f" {ours['open_loop']['rate']:.0f}/s: p50 {ours['open_loop']['p50_ms']:.1f}, p99"
                f" {ours['open_loop']['p99_ms']:.1f} ms (wanted <= {limit_ms:.1f})",
                flush=True,
            )
        self.figures[part] = {
            "engine_rows_per_s": alone.rows_per_s,
            "engine_with_copies_rows_per_s": copying.rows_per_s,
            "cuda_graph": self.cuda_graph,
            "engine_latency_ms": dict(alone.latency_ms),
            "decoding_rps": decoding.rps,
            "independent_decoding_rps": independent,
            "by_hand_rps": by_hand.rps,
            "ways": found,
        }

    def _two_nodes(
        self, way: Way, config: dict[str, Any], pictures: list[bytes], most: int, limit: float
    ) -> dict[str, Any]:
        """Measure the pipeline in a closed loop, and in an open one at half of that or of ``limit``."""
        with headrace.pipe(config) as pipe, way.front():
            whole, wide = (
                drive(lambda i: pipe({"data": pictures[i % len(pictures)]}), clients, self.seconds)
                for clients in (CLIENTS, 4 * CLIENTS)
            )
            batch = pipe.stats()["nodes"]["infer"]["batch_size"]["mean"]
            rate = min(whole.rps, limit) / 2
            for seconds in (0.3 * self.seconds, self.seconds):  # the first run starts the runners
                late = open_loop(
                    lambda i: pipe.submit({"data": pictures[i % len(pictures)]}), rate, seconds
                )
        return {
            "rps": whole.rps,
            "rps_160_clients": wide.rps,
            "mean_batch": batch,
            "open_loop": late,
        }

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

    def limit(self) -> None:
        """JPEG to a ResNet three times as wide as ResNet-50 and twice as deep: the engine is the limit."""
        model = resnet(self.folder, width=3, depth=4, name="deep")
        size, most = (64, 4) if self.quick else (224, 8)
        self._served("limit", model, size, most, optimization_level=2)

    def resnet(self) -> None:
        """JPEG to ResNet-50: decoding is the limit."""
        size, most = (64, 4) if self.quick else (224, 32)
        self._served("resnet", resnet(self.folder), size, most)

    def table(self) -> None:
        """ResNet-50 and a detector at batch 1, 8 and 32, all sides."""
        from benchmarks.gpu_table import run

        self.figures["table"] = run(self)

    def image(self) -> None:
        """Pictures of uint8 from the host beside float32."""
        size, most = (128, 4) if self.quick else (640, 16)
        model = mean_only(self.folder)
        import cv2

        files = _pictures(cv2, 1)
        picture = cv2.resize(
            cv2.imdecode(np.frombuffer(files[0], np.uint8), cv2.IMREAD_COLOR), (size, size)
        )
        planar = np.ascontiguousarray(picture.transpose(2, 0, 1), np.float32)
        found = {}
        shared = {"backend": GATHERED, "max": most, "instance_num": 2, "optimization_level": 0}
        sides = {
            "uint8": ({"profiles": [{"max": f"x:{most}x{size}x{size}x3", "min":
                       f"x:1x{size}x{size}x3"}], "image_input": True}, picture),
            "float32": ({"profiles": [{"max": f"x:{most}x3x{size}x{size}", "min":
                         f"x:1x3x{size}x{size}"}]}, planar),
        }  # fmt: skip
        for name, (options, value) in sides.items():
            with headrace.pipe(self.common(model, **shared, **options)) as pipe:
                load = drive(lambda _, value=value: pipe({"data": value}), CLIENTS, self.seconds)
            engine = self.built(
                model, **{**options, "profiles": tuple(options["profiles"])}, max=most,
                optimization_level=0,
            )  # fmt: skip
            alone = self.alone(engine, most, streams=2, copies=True)
            found[f"{name}_alone_rps"] = alone.rows_per_s
            found[f"{name}_rps"] = load.rps
            found[f"{name}_bytes"] = float(value.nbytes)
        found["alone_ratio"] = found["uint8_alone_rps"] / found["float32_alone_rps"]
        found["ratio"] = found["uint8_rps"] / found["float32_rps"]
        self.figures["image"] = found
        print(
            f"image: uint8 {found['uint8_rps']:.0f}/s, float32 {found['float32_rps']:.0f}/s:"
            f" {found['ratio']:.2f}x (wanted >= 2); {found['uint8_bytes'] / found['float32_bytes']:.2f}"
            f" of the bytes; the engine alone with its copies from pinned memory"
            f" {found['uint8_alone_rps']:.0f}/s and {found['float32_alone_rps']:.0f}/s:"
            f" {found['alone_ratio']:.2f}x"
        )

    def start(self) -> None:
        """A build beside a start from the cache; memory of one and of four instances."""
        from headrace_trt.engine import load_plan

        size = 64 if self.quick else 224
        model = resnet(self.folder, name="started")
        most = 8 if self.quick else 32
        profiles = [{"min": f"x:1x3x{size}x{size}", "max": f"x:{most}x3x{size}x{size}"}]
        config = self.common(
            model, backend=ALONE, profiles=profiles, max=most, optimization_level=2, precision="fp16",
            cache_dir=str(self.folder / "fresh"),
        )  # fmt: skip
        rows = np.random.default_rng(0).random((most, 3, size, size), np.float32)
        request = {"data": rows, "request_size": most}
        seconds, memory = {}, {}
        for name, instances in (("build", 1), ("cache", 1), ("four", 4)):
            gc.collect()
            free, _ = self.cuda.memory_bytes()
            begun = time.perf_counter()
            with headrace.pipe({**config, "instance_num": instances}) as pipe:
                seconds[name] = time.perf_counter() - begun
                about = str(pipe.describe())
                while True:  # an instance allocates its buffers in its first batch
                    pipe([dict(request) for _ in range(2 * instances)])
                    instances = pipe.stats()["nodes"]["main"]["instances"]
                    if all(instance["batches"] for instance in instances):
                        break
                memory[name] = free - self.cuda.memory_bytes()[0]
            assert ("'cache_hit': True" in about) is (name != "build")
        (plan,) = (self.folder / "fresh").glob("*.plan")
        engine = load_plan(self.library, self.cuda, plan.read_bytes(), label=plan.name)
        context = int(engine.engine.device_memory_size_v2)
        engine.close()
        buffers = rows.nbytes + most * 1000 * 4
        weights = memory["cache"] - context - buffers
        allowed = 1.05 * (weights + 4 * (context + buffers))
        self.figures["start"] = {
            "build_s": seconds["build"],
            "cache_s": seconds["cache"],
            "ratio": seconds["build"] / seconds["cache"],
            "one_instance_bytes": memory["cache"],
            "four_instances_bytes": memory["four"],
            "plan_bytes": plan.stat().st_size,
            "context_bytes": context,
            "buffer_bytes": buffers,
            "allowed_bytes": allowed,
        }
        mib = 2**20
        print(
            f"start: build {seconds['build']:.1f} s, from the cache {seconds['cache']:.2f} s:"
            f" {seconds['build'] / seconds['cache']:.0f}x (wanted >= 10); memory one instance"
            f" {memory['cache'] / mib:.0f} MiB (context {context / mib:.1f}, buffers"
            f" {buffers / mib:.1f}), four {memory['four'] / mib:.0f} MiB (wanted <="
            f" {allowed / mib:.0f})"
        )


PARTS = ("overhead", "limit", "resnet", "table", "image", "start")


def open_loop(submit: Callable[[int], Any], rate: float, seconds: float) -> dict[str, float]:
    """Send requests at given moments, whether or not others are answered; latency from there."""
    count = max(20, int(rate * seconds))
    gaps = np.random.default_rng(0).exponential(1 / rate, count).cumsum()
    ended = [0.0] * count
    done = threading.Semaphore(0)
    begun = time.perf_counter()

    def note(i: int) -> Callable[[Any], None]:
        def ends(future: Any) -> None:
            ended[i] = time.perf_counter()
            done.release()

        return ends

    for i in range(count):
        wait = begun + gaps[i] - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        submit(i).add_done_callback(note(i))
    for _ in range(count):
        done.acquire()
    late = 1e3 * (np.asarray(ended) - begun - gaps)
    return {
        "rate": rate,
        "requests": float(count),
        **{f"p{q}_ms": float(np.percentile(late, q)) for q in (50, 90, 99)},
    }


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
            save(
                chosen.json,
                {"device": device, "library": bench.library.text, **bench.figures},
                about,
            )
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
