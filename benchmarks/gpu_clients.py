"""Many Python threads in front of a fast engine on a GPU: ResNet-50 in TensorRT, torch and ONNX Runtime, all in turn.

``--case device``: inputs and results stay on the device. The sides are

- the engine alone: two streams, full batches, queued by one thread that gives nobody an answer;
- a queue by hand: each client puts a slot on a queue, two threads take up to a batch of them, run it and release
  the slots. It checks nothing and reads inputs that the client's stream may not have finished;
- the same queue where each client records an event on its stream, which the thread's stream waits for. That is
  the promise of Headrace;
- ``pipe()``: each client calls for one request; ``list``: four clients, each with a list of a quarter of the
  requests; ``submit``: two clients, each with half of the requests in flight; ``rows``: as many rows in flight, a full
  batch of one array in each request.

``--case jpeg``: from the bytes of a JPEG picture to scores on the host. Clients, or threads of their own, decode
with OpenCV and send ``float32``; by hand, and in Headrace with a node that decodes, of four words or of one, and without.

    python -m benchmarks.gpu_clients [--library trt torch ort] [--case device jpeg] [--load 40x8 160x32]
                                     [--seconds 1.5] [--rounds 5] [--device cuda:0] [--json FILE]

``--load`` is clients x largest batch. TensorRT and torch compute in fp16 (torch with captured graphs), ONNX Runtime in
fp32. The clock of a request is the client's, from call to return. It needs torch and torchvision, and what the libraries
named need; ``--device cpu --quick`` shows on any machine that it runs, without TensorRT.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch
from benchmarks.figures import Figure, compare, measure
from benchmarks.gpu_engine import EngineBench
from benchmarks.gpu_lanes import EngineLane, Lane, SessionLane, TorchLane, alone
from benchmarks.gpu_networks import resnet, torch_resnet
from benchmarks.load import (
    Load,
    arguments,
    drive,
    environment,
    print_environment,
    save,
    usable_cpus,
)
from benchmarks.pictures import make_pictures
from benchmarks.two_stages import TwoStages

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

LIBRARIES = ("trt", "torch", "ort")
CASES = ("device", "jpeg")
NAMES = {"trt": "TensorrtTensor", "torch": "TorchModule", "ort": "OnnxTensor"}
ENGINE = "engine alone"
HAND = "queue by hand"
EVENT = "queue by hand, an event per request"
SEVERAL = ("list", "submit", "rows")
OURS = ("pipe()", *SEVERAL)


class Bench:
    """What one run measures with.

    Args:
        folder: Where models go. Engines go into the user's cache.
        asked: The options of the command.
    """

    def __init__(self, folder: Path, asked: Any) -> None:
        self.device, self.quick = asked.device, asked.quick
        self.cuda = self.device.startswith("cuda")
        self.seconds, self.rounds = asked.seconds, asked.rounds
        self.size = 64 if self.quick else 224
        self.shape = (3, self.size, self.size)
        self.half = torch.float16 if self.cuda else torch.float32
        self.folder, self.model = folder, resnet(folder)
        self.files = make_pictures(4 if self.quick else 32)

    # What runs the model, once by hand and once as the keys of a node.

    def lanes(self, library: str, batch: int) -> list[Lane]:
        """Return two streams with a model, as a program written by hand has them."""
        lane: Callable[[], Lane]
        if library == "torch":
            module = torch_resnet().eval().to(self.device, self.half)
            lane = partial(TorchLane, module, self.device, batch, self.shape, self.half)
        elif library == "ort":
            lane = partial(SessionLane, self.model, self.device, batch, self.shape)
        else:
            bench = EngineBench(self.folder, quick=self.quick)
            begun, built = time.perf_counter(), self._built(batch)
            engine = bench.built(self.model, **{**built, "profiles": tuple(built["profiles"])})
            print(f"  (the engine was ready in {time.perf_counter() - begun:.0f} s)", flush=True)
            lane = partial(EngineLane, engine, self.device, batch, self.shape)
        lanes = [lane(), lane()]
        for one in lanes:
            one.warm()
        return lanes

    def _built(self, batch: int) -> dict[str, Any]:
        row = "x".join(map(str, self.shape))
        profiles = [{"min": f"x:1x{row}", "max": f"x:{batch}x{row}"}]
        return {"precision": "fp16", "profiles": profiles, "max": batch}

    def node(self, library: str, batch: int, *, resident: bool) -> dict[str, Any]:
        """Return the keys of a node with two instances; ``resident``: results stay on the device."""
        node: dict[str, Any] = {
            "backend": NAMES[library],
            "device": self.device,
            "instance_num": 2,
            "max": batch,
        }
        if library == "torch":
            sizes = [1 << k for k in range((batch - 1).bit_length())] + [batch]
            node |= {"module": "benchmarks.gpu_networks:torch_resnet", "cuda_graph": True}
            node |= {"shape": "x".join(map(str, self.shape)), "batch_sizes": sizes, "pad": True}
            node["dtype"] = str(self.half).removeprefix("torch.")
            if not resident:
                node["backend"] = "S[GpuTensor,TorchModule,CpuTensor(numpy=true)]"
            return node
        node["model"] = str(self.model)
        if resident and self.cuda:
            node["output_device"] = "device"
        if library == "trt":
            node |= self._built(batch)
        return node

    # Inputs and results on the device.

    def on_device(self, library: str, clients: int, batch: int) -> list[Figure]:
        """Measure all sides with inputs that lie on the device."""
        dtype = self.half if library == "torch" else torch.float32
        samples = [torch.randn(self.shape, device=self.device).to(dtype) for _ in range(64)]
        rows = [torch.randn((batch, *self.shape), device=self.device).to(dtype) for _ in range(16)]
        lanes = self.lanes(library, batch)
        runners = [lane.on_device for lane in lanes]
        with contextlib.ExitStack() as stack:
            config = self.node(library, batch, resident=True)
            pipe = stack.enter_context(headrace.pipe(config))
            queues = [
                stack.enter_context(TwoStages(mark, runners, decoders=0, batch=batch, timeout_ms=0))
                for mark in (_unmarked, _marked if self.cuda else _unmarked)
            ]
            if self.cuda:
                torch.cuda.synchronize(self.device)
            load = partial(self._load, clients=clients)
            plain, ordered = (partial(_one, queue, samples) for queue in queues)
            each = max(1, clients // 4)
            sides: dict[str, Callable[[], Load | float]] = {
                ENGINE: partial(alone, lanes, self.seconds),
                HAND: partial(load, plain),
                EVENT: partial(load, ordered),
                "pipe()": partial(load, lambda i: pipe({"data": samples[i % 64]})),
                "list": partial(self._load, _lists(pipe, samples, each), 4, each),
                "submit": partial(self._load, _window(pipe, samples, clients // 2), 2),
                "rows": partial(
                    self._load,
                    lambda i: pipe({"data": rows[i % 16], "request_size": batch}),
                    max(2, clients // batch),
                    batch,
                ),
            }
            title = f"{NAMES[library]}, {clients} clients, batch {batch}"
            return self._in_turn(title, "requests", sides, OURS, (EVENT, HAND, ENGINE))

    # From JPEG.

    def from_jpeg(self, library: str, clients: int, batch: int) -> list[Figure]:
        """Measure clients and threads that decode, by hand and in Headrace."""
        decode = partial(_decoded, size=self.size)
        lanes = self.lanes(library, batch)
        runners = [lane.on_host for lane in lanes]
        model = self.node(library, batch, resident=False)
        cores = usable_cpus()
        words = f"DecodeMat,ResizeMat({self.size},{self.size}),CvtColorMat(rgb),Mat2Tensor(scale={1 / 255})"
        one_word = f"Decode2Tensor({self.size},{self.size},scale={1 / 255})"
        decode_keys = {"instance_num": cores, "next": "model"}
        fronts = {
            "four words decode": {"backend": f"S[{words}]", "max": 1, **decode_keys},
            "one word decodes": {"backend": one_word, "max": 4, **decode_keys},
        }
        by_clients, by_threads = "clients decode", f"{cores} threads decode"
        with contextlib.ExitStack() as stack:
            hand = {
                name: stack.enter_context(
                    TwoStages(decode, runners, decoders=decoders, batch=batch, timeout_ms=0)
                )
                for name, decoders in ((by_clients, 0), (by_threads, cores))
            }
            straight = stack.enter_context(headrace.pipe(model))
            whole = {
                name: stack.enter_context(headrace.pipe({"decode": front, "model": model}))
                for name, front in fronts.items()
            }
            files = self.files
            load = partial(self._load, clients=clients)
            ours = {
                f"Headrace, {by_clients}": lambda i: straight({"data": decode(files[i % len(files)])}),
            }  # fmt: skip
            ours |= {
                f"Headrace, {name}": partial(_sent, pipe, files) for name, pipe in whole.items()
            }
            others = {
                f"by hand, {name}": partial(_one, program, files) for name, program in hand.items()
            }
            calls = {**others, **ours}
            sides = {name: partial(load, call) for name, call in calls.items()}
            title = f"JPEG to {NAMES[library]}, {clients} clients, batch {batch}"
            return self._in_turn(title, "pictures", sides, tuple(ours), tuple(others))

    def _load(self, call: Callable[[int], object], clients: int, each: int = 1) -> Load:
        """Measure clients that send ``each`` requests with one call."""
        found = drive(call, clients, self.seconds)
        return replace(found, rps=found.rps * each)

    def _in_turn(
        self,
        title: str,
        things: str,
        sides: Mapping[str, Callable[[], Any]],
        ours: Sequence[str],
        beside: Sequence[str],
    ) -> list[Figure]:
        """Run all sides, ``rounds`` times; print each as it ends, and the medians and ratios; give the figures.

        The p99 of a side whose calls are one request each is beside those of others. That of any other side stands alone.
        """
        print(f"{title}: {self.rounds} rounds of {self.seconds:g} s", flush=True)
        rates: dict[str, list[float]] = {side: [] for side in sides}
        p99_ms: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(self.rounds):
            for side, run in sides.items():
                load = run()
                rates[side].append(load.rps if isinstance(load, Load) else load)
                if isinstance(load, Load):
                    p99_ms[side].append(load.p99_us / 1e3)
                print(f"  {turn + 1} {side} {rates[side][-1]:.0f}", flush=True)
        for side, speeds in rates.items():
            ratios = "".join(
                f"  {statistics.median(a / b for a, b in zip(speeds, rates[other], strict=True)):.3f} x {other}"
                for other in beside
                if other != side
            )
            latency = f"  p99 {statistics.median(p99_ms[side]):.1f} ms" if p99_ms[side] else ""
            print(
                f"  {side:36} {statistics.median(speeds):8.0f} [{min(speeds):.0f} to {max(speeds):.0f}]{latency}{ratios}"
            )
        print(flush=True)
        figures = [
            compare(f"{title}, {side}: {things} a second", "1/s", "higher", rates[side], other, rates[other])
            for side in ours
            for other in beside
        ]  # fmt: skip
        for side, latencies in p99_ms.items():
            said = f"{title}, {side}: 99th percentile of the latency"
            figures += [measure(said, "ms", "lower", latencies)] if latencies else []
            figures += [
                compare(said, "ms", "lower", latencies, other, p99_ms[other])
                for other in beside
                if side in ours and side not in SEVERAL and p99_ms[other]
            ]
        return figures


def _unmarked(tensor: torch.Tensor) -> tuple[torch.Tensor, None]:
    return tensor, None


def _marked(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.cuda.Event]:
    return tensor, torch.cuda.current_stream().record_event()


def _one(program: TwoStages, given: list[Any], i: int) -> Any:
    return program(given[i % len(given)])


def _sent(pipe: headrace.Pipeline, files: list[bytes], i: int) -> object:
    return pipe({"data": files[i % len(files)]})


def _lists(
    pipe: headrace.Pipeline, samples: list[torch.Tensor], each: int
) -> Callable[[int], object]:
    return lambda i: pipe([{"data": samples[(i + k) % 64]} for k in range(each)])


def _window(
    pipe: headrace.Pipeline, samples: list[torch.Tensor], most: int
) -> Callable[[int], object]:
    """Return a call that waits for the oldest of its thread's requests, of which ``most`` are in flight."""
    own = threading.local()

    def call(i: int) -> object:
        if not hasattr(own, "flying"):
            own.flying = deque()
        while len(own.flying) < max(1, most):
            own.flying.append(pipe.submit({"data": samples[(i + len(own.flying)) % 64]}))
        return own.flying.popleft().result()

    return call


def _decoded(file: bytes, size: int) -> NDArray[np.float32]:
    """Decode and resize by hand, with the functions that headrace-cv calls; ``float32 [3, size, size]``."""
    picture = cv2.resize(
        cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR), (size, size)
    )
    found: NDArray[np.float32] = cv2.dnn.blobFromImage(picture, 1 / 255, swapRB=True)[0]
    return found


def _pair(text: str) -> tuple[int, int]:
    clients, batch = text.split("x")
    return int(clients), int(batch)


def main() -> None:
    """Run what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--library", nargs="+", choices=LIBRARIES, default=LIBRARIES)
    parser.add_argument("--case", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--load", nargs="+", type=_pair, metavar="CLIENTSxBATCH")
    parser.add_argument("--seconds", type=float, help="of one side in one round")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="cuda:0")
    asked = parser.parse_args()
    asked.seconds = asked.seconds or (0.2 if asked.quick else 1.5)
    asked.rounds = asked.rounds or (1 if asked.quick else 5)
    asked.load = asked.load or ([(8, 2)] if asked.quick else [(40, 8), (160, 32)])
    packages = ("headrace", "torch", "onnxruntime-gpu", "onnxruntime", "tensorrt_cu12_bindings")
    about = environment((*packages, "opencv-python-headless", "numpy"))
    if asked.device.startswith("cuda"):
        about["gpu"] = torch.cuda.get_device_name(asked.device)
        print(about["gpu"])
    print_environment(about)
    cv2.setNumThreads(1)  # as headrace-cv sets it: requests already run in many threads
    kept: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="headrace-gpu-clients-") as folder:
        bench = Bench(Path(folder), asked)
        measures = {"device": bench.on_device, "jpeg": bench.from_jpeg}
        for case in asked.case:
            for clients, batch in asked.load:
                for library in asked.library:
                    if library == "trt" and not bench.cuda:
                        print("TensorRT runs on a GPU alone: left out\n")
                        continue
                    kept += measures[case](library, clients, batch)
                    save(asked.json, about, {}, kept)  # what is there stays, if a later one fails


if __name__ == "__main__":
    main()
