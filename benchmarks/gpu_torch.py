"""JPEG to class on a GPU with torch: headrace beside the bare module and the naive program.

One request is the bytes of a JPEG picture (640 x 480): decode, resize to 224 x 224 (both on the CPU,
with OpenCV), through a network on the GPU, to the number of its class. Parts:

- ``model``: where the model is the limit (the first network of a list that is at most half as fast
  as decoding on all processors; which one is printed). headrace with two nodes (decoding in many
  instances, the model in two, captured graphs) and 40 clients, beside the same captured module
  called back to back with inputs that lie on the device, and beside a program of the same threads
  written by hand (`two_stages`): the floor of Python threads. Then half that load, open loop: p99.
- ``resnet``: ResNet-50 in fp16 with graphs, beside the lower of decoding alone and the module alone,
  beside the program written by hand, and beside the naive one: 40 threads, each decodes and calls
  the module. Decoding on the GPU runs too, whatever it gives.
- ``graphs``: the same module with and without captured graphs, batch 8, one instance; from one caller,
  whose waiting and waking is part of each batch, and from two, so that the next batch waits while one runs.
- ``host``: what a chain of five cheap words costs the host more than the same five calls of torch:
  one after the other, each of which takes the rows of all requests; and inside of ``CatSplit``, which
  gathers them once. Both sides run batches back to back: a thread that has slept is slow at first,
  whatever it runs.

The clock of a request runs from the call with the bytes to the class in the client's hands. Weights
are random: the arithmetic is the same.

    python -m benchmarks.gpu_torch [--device cuda:0] [--part model resnet graphs host]
                                   [--decoding 16 40 p16x8@4 ...] [--batch 8] [--timeout-ms 2]
                                   [--seconds 4] [--json FILE]

``--decoding`` says how pictures are decoded, in turn: ``[p]INSTANCES[xMAX][@CPUS[s]]`` (`benchmarks.ways`), an
instance per processor unless said; all but the first also with 160 clients. The program written by hand has as many threads as the first way has instances.

Needs headrace, headrace-cv, headrace-torch and torchvision. ``--device cpu --quick`` shows on any machine that it runs.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import torch
from benchmarks.gpu_classifier import BATCH, CLIENTS, SIDE, TIMEOUT_MS, Bench
from benchmarks.load import (
    Load,
    arguments,
    environment,
    middle,
    print_environment,
    ratio,
    save,
)
from benchmarks.ways import WAYS, Way

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable


IN_A_ROW = 20
PARTS = ("model", "resnet", "graphs", "host")
NETWORKS = ("resnet101", "resnet152", "vit_l_16", "vit_h_14")


def open_loop(pipe: headrace.Pipeline, files: list[bytes], rate: float, seconds: float) -> float:
    """Send requests at times of their own, whatever comes back; give the p99 in milliseconds."""
    rng, latencies = np.random.default_rng(5), []
    lock = threading.Lock()
    futures = []
    due = time.perf_counter()

    def noted(sent: float) -> Callable[[Any], None]:
        def note(_: Any) -> None:
            with lock:
                latencies.append(time.perf_counter() - sent)

        return note

    for i in range(max(20, int(rate * seconds))):
        due += rng.exponential(1 / rate)
        pause = due - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        future = pipe.submit({"data": files[i % len(files)]})
        future.add_done_callback(noted(due))
        futures.append(future)
    for future in futures:
        future.result(60)
    return 1e3 * float(np.percentile(latencies, 99))


def _beside_hand(ours: list[Load], by_hand: list[Load], bench: Bench) -> str:
    return (
        f"{ratio(ours, by_hand):.3f} x the same threads written by hand ({bench.ways[0].instances} decode, 2 run the"
        f" module): {middle(by_hand).rps:.0f} pictures a second"
    )


def _ways(loads: dict[str, list[Load]], of: float, what: str) -> str:
    return "".join(
        f"  decoding {text}, {load.clients} clients: {load.rps:.0f} pictures a second, {load.rps / of:.3f} x {what}\n"
        for text, both in loads.items()
        for load in both
    )


def part_model(bench: Bench) -> dict[str, Any]:
    decoding = bench.decoding()
    speeds = {}
    for name in ("tiny",) if bench.quick else NETWORKS:
        speeds[name] = bench.bare(name, half=False)
        if speeds[name] <= decoding / 2:
            break
    chosen = list(speeds)[-1]
    print(f"decoding on {bench.cores} processors alone: {decoding:.0f} pictures a second")
    for name, speed in speeds.items():
        print(f"{name}, fp32, batch {bench.batch}, captured, back to back: {speed:.0f}")
    ratios, loads, by_hand = [], [], []
    with (
        headrace.pipe(bench.pipeline(chosen, half=False)) as pipe,
        bench.by_hand(chosen, half=False) as program,
    ):
        for _ in range(bench.rounds):
            loads.append(bench.headrace(pipe))
            by_hand.append(bench.hand_written(program))
            ratios.append(loads[-1].rps / bench.bare(chosen, half=False))
        others = {way.text: bench.beside(chosen, way, half=False) for way in bench.ways[1:]}
        histogram = pipe.stats()["nodes"]["model"]["batch_size"]["mean"]
        rate = middle(loads).rps / 2
        open_loop(pipe, bench.files, rate, 0.3 * bench.seconds)  # so that all runners have started
        p99_ms = open_loop(pipe, bench.files, rate, bench.seconds)
    one_batch_ms = 1e3 * bench.batch / speeds[chosen]
    limit_ms = 2 * one_batch_ms + bench.timeout_ms
    print(
        f"headrace, {CLIENTS} clients, {chosen}: {middle(loads).rps:.0f} pictures a second, mean batch"
        f" {histogram:.2f}, p99 {middle(loads).p99_us / 1e3:.1f} ms\n"
        f"  {statistics.median(ratios):.3f} x the bare module (wanted: 0.95)\n"
        f"  {_beside_hand(loads, by_hand, bench)}\n{_ways(others, speeds[chosen], 'the bare module')}"
        f"  open loop at {rate:.0f} a second: p99 {p99_ms:.2f} ms (wanted: {limit_ms:.2f} ms, two batches"
        f" of {one_batch_ms:.2f} ms and the timeout of {bench.timeout_ms} ms)\n",
        flush=True,
    )
    return {
        "network": chosen,
        "decoding": decoding,
        "bare": speeds,
        "ratio": statistics.median(ratios),
        "over_by_hand": ratio(loads, by_hand),
        "by_hand": by_hand,
        "other_ways": others,
        "p99_ms": p99_ms,
        "limit_ms": limit_ms,
        "loads": loads,
    }


def part_resnet(bench: Bench) -> dict[str, Any]:
    name = "tiny" if bench.quick else "resnet50"
    ours, by_hand, naive, decoding, module = [], [], [], [], []
    with (
        headrace.pipe(bench.pipeline(name, half=True)) as pipe,
        bench.by_hand(name, half=True) as program,
    ):
        for _ in range(bench.rounds):
            ours.append(bench.headrace(pipe))
            by_hand.append(bench.hand_written(program))
            decoding.append(bench.decoding())
            module.append(bench.bare(name, half=True))
            naive.append(bench.naive(name, half=True))
        others = {way.text: bench.beside(name, way, half=True) for way in bench.ways[1:]}
    lower = [*map(min, decoding, module)]
    share = statistics.median(a.rps / b for a, b in zip(ours, lower, strict=True))
    times = ratio(ours, naive)
    on_gpu = None
    try:
        with headrace.pipe(bench.pipeline(name, half=True, decode="gpu")) as pipe:
            on_gpu = bench.headrace(pipe)
    except headrace.errors.HeadraceError as error:
        print(f"decoding on the GPU cannot run here: {str(error).splitlines()[0]}")
    print(
        f"{name} fp16: headrace {middle(ours).rps:.0f} pictures a second, naive {middle(naive).rps:.0f},"
        f" decoding alone {statistics.median(decoding):.0f}, module {statistics.median(module):.0f}\n"
        f"  {share:.3f} x the lower one (wanted: 0.90), {times:.1f} x the naive program (wanted: 5)\n"
        f"  {_beside_hand(ours, by_hand, bench)}\n"
        f"{_ways(others, statistics.median(lower), 'the lower one')}",
        end="",
    )
    if on_gpu is not None:
        print(f"  decoding on the GPU: {on_gpu.rps:.0f} pictures a second")
    print(flush=True)
    return {
        "decoding": decoding,
        "module": module,
        "share": share,
        "over_naive": times,
        "over_by_hand": ratio(ours, by_hand),
        "ours": ours,
        "by_hand": by_hand,
        "naive": naive,
        "other_ways": others,
        "on_gpu": on_gpu,
    }


def part_graphs(bench: Bench) -> dict[str, Any]:
    name = "tiny" if bench.quick else "resnet50"
    config = bench.pipeline(name, half=True)["model"]
    config = {**config, "backend": "TorchModule", "instance_num": 1, "batching_timeout": 0}
    given = torch.zeros((bench.batch, SIDE, SIDE, 3), dtype=torch.uint8, device=bench.device)
    bench.wait()
    figures: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        pipes = {
            graph: stack.enter_context(headrace.pipe({**config, "cuda_graph": graph}))
            for graph in (True, False)
        }
        print(f"{name} fp16, batch {bench.batch}, one instance, inputs on the device")
        for callers in (1, 2):
            speeds: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(bench.rounds):
                for graph, pipe in pipes.items():
                    request = {"data": given, "request_size": bench.batch}
                    load = bench.load(lambda _, pipe=pipe, sent=request: pipe(dict(sent)), callers)  # type: ignore[misc]
                    speeds[graph].append(load.rps * bench.batch)
            times = statistics.median(
                a / b for a, b in zip(speeds[True], speeds[False], strict=True)
            )
            print(
                f"  {callers} caller(s): {max(speeds[True]):.0f} pictures a second with graphs,"
                f" {max(speeds[False]):.0f} without: {times:.2f} x (wanted: 2.5)"
            )
            figures[f"{callers} callers"] = {
                "times": times,
                "with": speeds[True],
                "without": speeds[False],
            }
    print(flush=True)
    return figures


_marks: list[float] = []
_all_sent = threading.Event()


class Mark(headrace.Backend):
    """Waits until all batches have been sent, then notes the time of each batch and passes it on."""

    owns_thread = True

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Note the time."""
        _all_sent.wait()
        _marks.append(time.perf_counter())
        for request in batch:
            request["result"] = request["data"]


def part_host(bench: Bench) -> dict[str, Any]:
    headrace.register("BenchMark", Mark, replace=True)
    words = (
        "CvtColorTensor(bgr),NormalizeTensor(0.01,0.5),CropTensor(box=[1,1,15,15]),PadTensor(16,16),"
        "SoftmaxTensor"
    )
    images = [torch.full((3, 16, 16), 7.0, device=bench.device) for _ in range(BATCH)]
    factor = torch.full((1, 1), 0.01, device=bench.device)
    offset = torch.full((1, 1), -0.5, device=bench.device)
    bench.wait()

    def plain() -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            whole = torch.stack(images).flip(1) * factor + offset
            whole = whole[:, :, 1:15, 1:15].clone()
            canvas = whole.new_full((BATCH, 3, 16, 16), 0.0)
            canvas[:, :, :14, :14] = whole
            canvas.softmax(-1).unbind(0)
        return time.perf_counter() - began

    turns = 5 if bench.quick else 150
    forms = {
        "one after the other": words,
        "inside of CatSplit": f"CatSplit[CatTensor,S[{words}],SplitTensor]",
    }
    pipes = {
        form: headrace.pipe(
            {"backend": f"S[BenchMark,{inner},BenchMark]", "device": bench.device, "max": BATCH}
        )
        for form, inner in forms.items()
    }
    ours: dict[str, list[float]] = {form: [] for form in forms}
    theirs = []
    for turn in range(turns):
        for form, pipe in pipes.items():
            _marks.clear()
            _all_sent.clear()
            sent = pipe.submit([{"data": image, "color": "rgb"} for image in images * IN_A_ROW])
            _all_sent.set()
            for future in reversed(sent):  # the last first: this thread sleeps until all have ended
                future.result(60)
            bench.wait()
            if turn > turns // 10:
                ours[form] += (
                    end - begin for begin, end in zip(_marks[::2], _marks[1::2], strict=True)
                )
        mine = [plain() for _ in range(IN_A_ROW)]
        bench.wait()
        if turn > turns // 10:
            theirs += mine
    for pipe in pipes.values():
        pipe.close()
    bare_us = 1e6 * statistics.median(theirs)
    more_us = {form: 1e6 * statistics.median(times) - bare_us for form, times in ours.items()}
    print(f"five cheap words, batch of {BATCH}, on the host: the calls of torch {bare_us:.1f} us")
    for form, more in more_us.items():
        print(f"  {form}: {more:.1f} us more (wanted: 30)")
    print(flush=True)
    return {"bare_us": bare_us, "more_us": more_us}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cuda:0", help="where the model runs")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="what to run")
    parser.add_argument("--seconds", type=float, help="length of a window of load")
    parser.add_argument(
        "--decoding", type=Way.read, nargs="+", default=[Way.usual()], help=f"in turn: {WAYS}"
    )
    parser.add_argument("--batch", type=int, default=BATCH, help="most pictures in one")
    parser.add_argument("--timeout-ms", type=float, default=TIMEOUT_MS, help="batching_timeout")
    given = parser.parse_args()
    seconds = given.seconds or (0.3 if given.quick else 4.0)
    about = environment(("headrace", "torch", "torchvision"))
    if given.device.startswith("cuda"):
        about["gpu"] = torch.cuda.get_device_name(given.device)
        print(about["gpu"])
    print_environment(about)
    cv2.setNumThreads(1)  # as headrace-cv sets it: requests already run in many threads
    bench = Bench(given.device, seconds, 1 if given.quick else 2, quick=given.quick)
    bench.ways, bench.batch, bench.timeout_ms = given.decoding, given.batch, given.timeout_ms
    parts = {
        "model": part_model,
        "resnet": part_resnet,
        "graphs": part_graphs,
        "host": part_host,
    }
    figures = {}
    for name in given.part:
        began = time.perf_counter()
        figures[name] = parts[name](bench)
        figures[name]["seconds"] = time.perf_counter() - began
    save(given.json, about, figures)


if __name__ == "__main__":
    main()
