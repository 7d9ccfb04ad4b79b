"""A hunt for wrong answers on a GPU: nothing is timed, and every answer is looked at.

Without ``--compile``: the stream of each client is asleep as its call begins, the input is written behind that, and
overwritten as soon as the call is over. Who reads too early or too late gives NaN. Clients call for one request and for
lists, submit, and use asyncio, on streams of their own, on the default stream, and with arrays and streams of CuPy where
that is installed. ``--plugin careless`` shows what the hunt finds where nobody waits.

With ``--compile``: the modes of torch's compiler, beside the module that is not compiled.

    python -m benchmarks.gpu_hunt [--plugin trt torch ort] [--requests 10000] [--clients 16] [--beside 4]
    python -m benchmarks.gpu_hunt --compile false true reduce-overhead max-autotune [--instances 1] [--requests 20000]

``--beside`` starts processes that keep processors and the device busy. The exit status is 1 if an answer is wrong or a
request fails. ``--device cpu`` shows on any machine that it runs, without TensorRT and without streams.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH = 1 << 16
IN_A_CALL = 4
LONGEST_SLEEP = 40_000_000
"""In cycles of the device: 20 ms at 2 GHz, longer than a call takes among many threads."""

HERE = "benchmarks.gpu_hunt:"
FORMS: dict[str, list[dict[str, Any]]] = {
    "torch": [
        {"backend": "TorchModule"},
        {"backend": "TorchModule", "cuda_graph": True},
        {"backend": "S[GpuTensor,ContiguousTensor,TorchModule]"},
        {"backend": "CatSplit[CatTensor,TorchModule,SplitTensor]"},
    ],
    "trt": [
        {"backend": "TensorrtTensor"},
        {"backend": "TensorrtTensor", "cuda_graph": True},
        {"backend": "S[ContiguousTensor,TensorrtTensor,ContiguousTensor]"},
    ],
    "ort": [
        {"backend": "OnnxTensor"},
        {"backend": "S[ContiguousTensor,OnnxTensor,ContiguousTensor]"},
    ],
    "careless": [{"backend": "Careless"}],
}
BUSY = """
import sys, torch
x = torch.randn(2048, 2048, device=sys.argv[1])
while True:
    (x @ x).sum().item()
"""


class TwiceAndOne(torch.nn.Module):
    """Twice the input and one: whole numbers stay exact in every library."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``2 x + 1``."""
        return x * 2 + 1


@headrace.register("Careless", replace=True)
class Careless(headrace.Backend):
    """`TwiceAndOne` on a stream that waits for nobody: on a GPU the hunt finds that."""

    owns_thread = True

    def init(self, options: Any, context: Any) -> None:
        """Make a stream."""
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Compute at once."""
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            for request in batch:
                request["result"] = torch.as_tensor(request["data"]) * 2 + 1
            if self._stream is not None:
                self._stream.synchronize()


class Deep(torch.nn.Module):
    """Six layers, for the compiler."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (m for _ in range(6) for m in (torch.nn.Linear(128, 128), torch.nn.Tanh()))
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``float32 [N, 128]``."""
        found: torch.Tensor = self.layers(x)
        return found


def onnx_file(folder: Path) -> Path:
    """Write `TwiceAndOne` as ONNX."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    numbers = [numpy_helper.from_array(np.float32(v), f"c{v}") for v in (1, 2)]
    nodes = [
        helper.make_node("Mul", ["x", "c2"], ["m"]),
        helper.make_node("Add", ["m", "c1"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ports[:1], ports[1:], numbers)
    opset = [helper.make_opsetid("", 17)]
    path = folder / "twice.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


# Ways to call, from one thread.


def call(pipe: headrace.Pipeline, inputs: list[Any]) -> list[Any]:
    """Call for the first input alone."""
    return [pipe({"data": inputs[0]})["result"]]


def call_with_a_list(pipe: headrace.Pipeline, inputs: list[Any]) -> list[Any]:
    """Call for all."""
    return [one["result"] for one in pipe([{"data": one} for one in inputs])]


def submit(pipe: headrace.Pipeline, inputs: list[Any]) -> list[Any]:
    """Submit each, then wait."""
    futures = [pipe.submit({"data": one}) for one in inputs]
    return [future.result(60)["result"] for future in futures]


def call_async(pipe: headrace.Pipeline, inputs: list[Any]) -> list[Any]:
    """Await all at once."""

    async def gathered() -> list[Any]:
        return await asyncio.gather(*(pipe.call_async({"data": one}) for one in inputs))

    return [one["result"] for one in asyncio.run(gathered())]


WAYS = (call, call_with_a_list, submit, call_async)


class Caller:
    """A thread's stream and inputs.

    Args:
        device: Where the inputs lie.
        kind: ``own`` stream, ``default`` stream, or ``cupy``: stream and arrays of CuPy.
    """

    def __init__(self, device: str, kind: str) -> None:
        self.cuda, self.kind = device.startswith("cuda"), kind
        self.stream: Any = None
        if kind == "cupy":
            import cupy

            self._place = cupy.cuda.Device(torch.device(device).index)
            with self._place:
                self._cupy = cupy.cuda.Stream(non_blocking=True)
                self.inputs: list[Any] = [cupy.empty(WIDTH, cupy.float32) for _ in range(IN_A_CALL)]
            self.stream = torch.cuda.ExternalStream(self._cupy.ptr, device=device)
        else:
            if self.cuda and kind == "own":
                self.stream = torch.cuda.Stream(device)
            self.inputs = [torch.empty(WIDTH, device=device) for _ in range(IN_A_CALL)]

    def ask(self, way: Callable[..., list[Any]], pipe: headrace.Pipeline, value: int, cycles: int) -> list[Any]:  # fmt: skip
        """Call behind a kernel that sleeps; give the results, and leave NaN in the inputs."""
        if self.cuda:
            with torch.cuda.stream(self.stream):
                torch.cuda._sleep(cycles)
        with self._current():
            for k, one in enumerate(self.inputs):
                self._fill(one, value + k)
            results = way(pipe, self.inputs)
            for one in self.inputs:
                self._fill(one, float("nan"))
        return results

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """Make the stream current in this thread, in CuPy with its device. torch finds the device of a tensor itself."""
        if self.kind != "cupy":
            with torch.cuda.stream(self.stream):
                yield
        else:
            with self._place, self._cupy:
                yield

    def _fill(self, array: Any, value: float) -> None:
        if self.kind == "cupy":
            array[...] = value
        else:
            array.fill_(value)


def is_all(result: Any, value: float) -> bool:
    """Return whether every number of a result is ``value``."""
    there = result if torch.is_tensor(result) else torch.from_dlpack(result)
    return not bool((there != value).any())


class Found:
    """What the answers were; the first wrong ones are printed."""

    def __init__(self, requests: int) -> None:
        self._lock = threading.Lock()
        self._left = requests
        self.counts: collections.Counter[str] = collections.Counter()

    def more(self) -> bool:
        """Return whether fewer answers than wanted were looked at."""
        return self.counts.total() < self._left

    def note(self, kind: str, about: str = "") -> None:
        """Count an answer."""
        with self._lock:
            self.counts[kind] += 1
            if about and self.counts[kind] <= 5:
                print(f"    {kind}: {about[:400]}", flush=True)

    def told(self, what: str, begun: float) -> int:
        """Print the counts; give how many were not right."""
        others = {kind: n for kind, n in self.counts.items() if kind != "right"}
        bad, all_of_them = sum(others.values()), self.counts.total()
        spent = time.perf_counter() - begun
        print(f"  {what}: {bad} of {all_of_them} wrong {others or ''} ({spent:.0f} s)", flush=True)
        return bad


def asked_by_threads(number: int, work: Callable[[int, Found], None], found: Found) -> None:
    """Let threads ask until enough answers were looked at; what a call raises counts as an answer."""

    def client(k: int) -> None:
        while found.more():
            try:
                work(k, found)
            except Exception as error:  # noqa: BLE001 - it is what is hunted
                found.note(
                    type(error).__name__, " ".join(f"{error} <- {error.__cause__!r}".split())
                )

    threads = [threading.Thread(target=client, args=(k,)) for k in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hunt_streams(asked: Any, folder: Path) -> int:
    """Hunt with streams that are asleep; give how many answers were not right."""
    cuda = asked.device.startswith("cuda")
    kinds = ["own", "own", "default"] + (["cupy"] if cuda and find_spec("cupy") else [])
    print(f"streams: {', '.join(dict.fromkeys(kinds))}")
    model, bad = str(onnx_file(folder)), 0
    for plugin in asked.plugin:
        if plugin == "trt" and not cuda:
            print("  TensorRT runs on a GPU alone: left out")
            continue
        for form in FORMS[plugin]:
            config = {"device": asked.device, "max": 8, "instance_num": asked.instances, **form}
            if plugin == "torch":
                config |= {"module": f"{HERE}TwiceAndOne", "shape": str(WIDTH)}
            elif plugin != "careless":
                config |= {"model": model} | ({"output_device": "device"} if cuda else {})
            if plugin == "trt":
                config["cache_dir"] = str(folder / "cache")
            found, begun = Found(asked.requests // len(FORMS[plugin])), time.perf_counter()
            callers = [Caller(asked.device, kinds[k % len(kinds)]) for k in range(asked.clients)]
            turns = [k * 7919 for k in range(asked.clients)]
            with headrace.pipe(config) as pipe:

                def work(k: int, found: Found, pipe: Any = pipe, callers: Any = callers, turns: Any = turns) -> None:  # fmt: skip
                    turns[k] = turn = turns[k] + 1
                    value, way = turn % 1_000_000, WAYS[turn % len(WAYS)]
                    results = callers[k].ask(way, pipe, value, turn * 104_729 % LONGEST_SLEEP)
                    for j, result in enumerate(results):
                        if is_all(result, 2 * (value + j) + 1):
                            found.note("right")
                        else:
                            about = f"{way.__name__} on {callers[k].kind}, wanted {2 * (value + j) + 1}: {_first(result)}"
                            found.note("wrong", about)

                asked_by_threads(asked.clients, work, found)
            graph = ", cuda_graph" if form.get("cuda_graph") else ""
            bad += found.told(f"{form['backend']}{graph}", begun)
    return bad


def _first(result: Any) -> list[float]:
    there = result if torch.is_tensor(result) else torch.from_dlpack(result)
    found: list[float] = there.unique().tolist()[:4]
    return found


def hunt_compiled(asked: Any) -> int:
    """Hunt in the modes of the compiler; give how many answers were not right."""
    x = torch.randn(256, 128, generator=torch.Generator().manual_seed(1)).to(asked.device)
    with torch.inference_mode():
        want = Deep().eval().to(asked.device)(x)
    bad = 0
    for mode in asked.compile:
        compiled = {"true": True, "false": False}.get(mode, mode)
        config = {
            "backend": "TorchModule",
            "module": f"{HERE}Deep",
            "shape": "128",
            "device": asked.device,
            "max": 8,
            "instance_num": asked.instances,
            "compile": compiled,
        }
        begun, found = time.perf_counter(), Found(asked.requests)
        turns = list(range(asked.clients))
        with headrace.pipe(config) as pipe:
            print(f"  {mode}: started in {time.perf_counter() - begun:.0f} s", flush=True)

            def work(k: int, found: Found, pipe: Any = pipe, turns: Any = turns) -> None:
                turns[k] += asked.clients
                row = turns[k] % 256
                result = pipe({"data": x[row]})["result"]
                off = float((result - want[row]).abs().max())
                if off < 1e-3:
                    found.note("right")
                    return
                if asked.device.startswith("cuda"):
                    torch.cuda.synchronize()
                later = float((result - want[row]).abs().max())
                near = (want - result).abs().amax(1)
                found.note(
                    "wrong",
                    f"row {row} is off by {off:.3g}, after a wait by {later:.3g};"
                    f" nearest is row {int(near.argmin())}, off by {float(near.min()):.3g}",
                )

            asked_by_threads(asked.clients, work, found)
        bad += found.told(f"compile = {mode}, {asked.instances} instance(s)", begun)
    return bad


@contextlib.contextmanager
def company(number: int, device: str) -> Iterator[None]:
    """Keep processors and the device busy meanwhile."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY, device]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Hunt."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plugin", nargs="+", choices=FORMS, default=["trt", "torch", "ort"])
    parser.add_argument(
        "--compile", nargs="+", metavar="MODE", help="false, true or a mode of torch"
    )
    parser.add_argument("--requests", type=int, help="answers per plugin, or per mode")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--instances", type=int, help="of each model")
    parser.add_argument("--beside", type=int, default=0, help="processes that keep the device busy")
    parser.add_argument("--device", default="cuda:0")
    asked = parser.parse_args()
    asked.requests = asked.requests or (20_000 if asked.compile else 10_000)
    asked.instances = asked.instances or (1 if asked.compile else 2)
    with (
        company(asked.beside, asked.device),
        tempfile.TemporaryDirectory(prefix="headrace-gpu-hunt-") as folder,
    ):
        bad = hunt_compiled(asked) if asked.compile else hunt_streams(asked, Path(folder))
    print(f"{bad} answers are wrong (wanted: 0)")
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    main()
