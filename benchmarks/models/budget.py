"""Models that together do not fit: how often a request finds its model, and what the process takes beside its budget.

Twelve models have a budget of four: ONNX models, and with ``--device cuda:0`` every second one an engine of TensorRT.
Clients ask for them by Zipf's law, each as soon as it has its answer, which is compared with numpy's. A hit is a request
that causes no load: one that waits for a model that comes for another request is a hit, too. The rate of hits is beside two that
are computed afterwards, from the order in which the requests were answered. In the best possible one, Belady's, the model
leaves whose next request is the farthest. In the other one the least recently used leaves.

A thread reads the memory ten times a second: the resident bytes of this process, or the used bytes of the device as
``nvidia-smi`` shows them, so nothing else may use it. What libraries take once does not count. Of a device that is an
empty context of CUDA, measured in a process of its own, and what stays after a model of each kind has left. Each model counts there with the
most that one of these took, rounded up to 16 MiB. Engines are built before, in another process.

What a budget adds to a call is measured before: one thread calls an idle model of Models with a budget, and one without,
by turns.

    python -m benchmarks.models.budget [--device cuda:0] [--seconds 300] [--clients 40] [--quick] [--json FILE]
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import onnx
from benchmarks.figures import Figure, compare, measure
from benchmarks.load import arguments, environment, print_environment, save
from onnx import TensorProto, helper, numpy_helper

import headrace
from headrace_models import Memory, Models

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

MODELS, ROOM = 12, 4
ROWS = 16
READ_S = 0.1
MIB = 2**20
STEP = 16 * MIB

_T = TypeVar("_T")


def write_model(path: Path, side: int, seed: int = 0) -> NDArray[np.float32]:
    """Write a model of one product with a square matrix, which is returned."""
    weights = np.random.default_rng(seed).standard_normal((side, side), np.float32)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", side]) for n in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node], "product", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return weights


def best_hits(asked: Sequence[str], room: int) -> int:
    """Return the most requests that can find their model, if ``room`` models fit.

    Source:
        L. A. Belady, A study of replacement algorithms for a virtual-storage computer, 1966.
    """
    following: list[float] = [float("inf")] * len(asked)
    seen: dict[str, int] = {}
    for at in reversed(range(len(asked))):
        following[at] = seen.get(asked[at], float("inf"))
        seen[asked[at]] = at
    here: dict[str, float] = {}
    hits = 0
    for name, after in zip(asked, following, strict=True):
        hits += name in here
        if name not in here and len(here) == room:
            del here[max(here, key=here.__getitem__)]
        here[name] = after
    return hits


def recent_hits(asked: Sequence[str], room: int) -> int:
    """Return the requests that find their model, if ``room`` models fit, and the least recently used leaves at once."""
    here: dict[str, None] = {}
    hits = 0
    for name in asked:
        hits += name in here
        here.pop(name, None)
        here[name] = None
        if len(here) > room:
            del here[next(iter(here))]
    return hits


def used_bytes(device: str) -> int:
    """Return the resident bytes of this process, or all bytes in use on a device."""
    if device == "cpu":
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.partition(":")[2]))
    return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def apart(function: Callable[..., _T], *args: Any) -> _T:
    """Call a function in a process of its own, which leaves nothing on the device."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(function, *args).result()


def context_bytes(device: str) -> int:
    """Return the bytes in use on a device while this process has an empty context of CUDA there."""
    from headrace_trt.libraries.cuda import load_cuda

    cuda = load_cuda()
    cuda.set_device(int(device.partition(":")[2]))
    cuda.memory_bytes()
    return used_bytes(device)


def build(configs: Sequence[Mapping[str, Any]]) -> None:
    """Build the engines of configurations into their cache."""
    for config in configs:
        headrace.pipe(dict(config)).close()


def config_of(path: Path, device: str, *, engine: bool) -> dict[str, Any]:
    """Return the configuration of a model, as an engine of TensorRT or by ONNX Runtime."""
    if engine:
        cache = str(path.parent / "engines")
        config = {"backend": "TensorrtTensor", "cache_dir": cache}
    else:
        config = {"backend": "OnnxTensor"}
    return {**config, "model": str(path), "device": None if device == "cpu" else device}


def weigh(
    configs: Mapping[str, Mapping[str, Any]], device: str, row: NDArray[np.float32]
) -> tuple[int, dict[str, Any]]:
    """Return the bytes in use after each model has come and left, and what each took when it came again.

    That is ``used``, beside ``account``, which the budget has measured or estimated itself.
    """
    weights: dict[str, Any] = {}
    base = 0
    with Models(configs, preload=False, memory=Memory({device: "1 TiB"})) as models:
        for _ in range(2):
            base = used_bytes(device)
            for name in configs:
                models.load(name)
                models(name, {"data": row})
                used = used_bytes(device)
                models.unload(name)
                about = models.status()[name]
                account = about["memory"][device], about["memory_origin"]
                weights[name] = {"used": used - base, "account": account}
    return base, weights


def trace(folder: Path, device: str, seconds: float, clients: int, side: int) -> dict[str, Any]:
    """Let clients ask for models, and return what came of it."""
    place = "host" if device == "cpu" else device
    os.environ["HEADRACE_CACHE"] = str(folder)  # no sizes of an earlier run
    names = [f"m{n}" for n in range(MODELS)]
    rows = np.random.default_rng(MODELS).standard_normal((ROWS, side), np.float32)
    context = 0 if device == "cpu" else apart(context_bytes, device)
    configs: dict[str, Any] = {}
    answers: dict[str, NDArray[np.float32]] = {}
    for number, name in enumerate(names):
        path = folder / f"{name}.onnx"
        answers[name] = rows @ write_model(path, side, number)
        configs[name] = config_of(path, device, engine=device != "cpu" and number % 2 == 1)
    apart_most = (1e-5 if device == "cpu" else 1e-2) * side**0.5 * 4
    weights: dict[str, Any] = {}
    size, base = 2 * (folder / "m0.onnx").stat().st_size, 0
    if device != "cpu":
        apart(build, [configs[name] for name in names[1::2]])
        base, weights = weigh({name: configs[name] for name in names[:2]}, device, rows[0])
        size = -(-max(weight["used"] for weight in weights.values()) // STEP) * STEP
    memory = Memory(
        {place: f"{size * ROOM} B"}, sizes=dict.fromkeys(names, f"{size} B"), min_stay_s=0.05
    )
    answered: list[str] = []
    lock, failed, wrong = threading.Lock(), count(), count()
    comings: Counter[str] = Counter()
    read: list[tuple[float, int]] = []
    with Models(configs, preload=False, memory=memory) as models:
        models("m0", {"data": rows[0]})  # what the library takes once
        models.unload("m0")
        base = base or used_bytes(device)
        models.subscribe(lambda change: comings.update([change.state]))
        models.load("m0")
        begun = time.monotonic()
        ended = threading.Event()

        def client(seed: int) -> None:
            draw = random.Random(seed)
            shares = [1 / rank for rank in range(1, MODELS + 1)]
            while time.monotonic() < begun + seconds:
                (name,) = draw.choices(names, shares)
                at = draw.randrange(ROWS)
                try:
                    with models.lease(name, timeout=60) as pipe:
                        answer = pipe({"data": rows[at]})["result"]
                        with lock:  # while the model is here, so that this order is possible
                            answered.append(name)
                except Exception:
                    next(failed)
                    raise
                if not np.allclose(answer, answers[name][at], 0, apart_most):
                    next(wrong)

        def look() -> None:
            while not ended.wait(READ_S):
                read.append((time.monotonic() - begun, used_bytes(device) - base))

        looking = threading.Thread(target=look)
        threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
        for thread in (looking, *threads):
            thread.start()
        for thread in threads:
            thread.join()
        ended.set()
        looking.join()
    budget = memory.budget_bytes[place]
    return {
        "requests": len(answered),
        "lost": next(failed),
        "wrong": next(wrong),
        "hits": 1 - comings["ready"] / len(answered),
        "best_hits": best_hits(answered, ROOM) / len(answered),
        "recent_hits": recent_hits(answered, ROOM) / len(answered),
        "loaded": comings["ready"],
        "evicted": comings["unloaded"],
        "context_bytes": context,
        "libraries_bytes": base - context,
        "weights": weights,
        "budget_bytes": budget,
        "most_bytes": max(nbytes for _, nbytes in read),
        "seconds_above": len({int(second) for second, nbytes in read if nbytes > budget}),
        "read": read,
    }


class Copies(headrace.Backend):
    """Gives the data back."""

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Write data into result."""
        for request in batch:
            request["result"] = request["data"]


def call_us(rounds: int, calls: int) -> tuple[list[float], list[float]]:
    """Return the microseconds of a call of a model with a budget, and without, by round: the median of its calls."""
    headrace.register("Copies", Copies, replace=True)
    took: tuple[list[float], list[float]] = ([], [])

    def call_all() -> None:  # requests of the main thread run in another one
        budgets = (Memory({"host": "1 GiB"}, sizes={"m": "1 MiB"}), None)
        with ExitStack() as stack:
            sides = [
                stack.enter_context(Models({"m": {"backend": "Copies"}}, memory=one))
                for one in budgets
            ]
            for number in range(2 * rounds + 2):
                models, request = sides[number % 2], {"data": 0}
                each_ns = []
                for _ in range(calls):
                    begun_ns = time.perf_counter_ns()
                    models("m", request)
                    each_ns.append(time.perf_counter_ns() - begun_ns)
                if number >= 2:  # the first round of each warms up
                    took[number % 2].append(statistics.median(each_ns) / 1e3)

    thread = threading.Thread(target=call_all)
    thread.start()
    thread.join()
    return took


def figures(shown: Mapping[str, Any], device: str) -> list[Figure]:
    """Return the figures to keep."""
    title = f"twelve models in a budget of four on {device}"
    hits, loads = [shown["hits"]], [float(shown["loaded"])]
    most, budget = shown["most_bytes"] / MIB, shown["budget_bytes"] / MIB
    counts = {
        f"{title}: answers": ("neither", shown["requests"]),
        f"{title}: wrong answers": ("lower", shown["wrong"]),
        f"{title}: requests without an answer": ("lower", shown["lost"]),
        f"{title}: seconds in which the memory was above the budget": ("lower", shown["seconds_above"]),
    }  # fmt: skip
    with_us, without_us = shown["call_us"]
    added_us = [one - other for one, other in zip(with_us, without_us, strict=True)]
    return [
        compare("a call of a model of Models with a budget", "us", "lower", with_us, "without a budget", without_us, own=True),
        measure("what a budget adds to a call of a model", "us", "lower", added_us),
        compare(f"{title}: requests that cause no load", "", "higher", hits, "Belady's, which knows the next request", [shown["best_hits"]]),
        compare(f"{title}: requests that cause no load", "", "higher", hits, "the least recently used leaves", [shown["recent_hits"]]),
        compare(f"{title}: the greatest memory of the models", "MiB", "lower", [most], "the budget", [budget]),
        measure(f"{title}: what stays without a model", "MiB", "neither", [shown["libraries_bytes"] / MIB]),
        measure(f"{title}: loads", "", "neither", loads),
        *(Figure(said, "", better, float(number)) for said, (better, number) in counts.items()),
    ]  # fmt: skip


def main() -> None:
    """Print what came of the trace."""
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="where the models are: cpu or cuda:0")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--clients", type=int)
    asked = parser.parse_args()
    libraries = ["onnxruntime", "onnxruntime-gpu", "tensorrt_cu12_bindings"]
    about = environment(["headrace", "headrace-models", *libraries])
    print_environment(about)
    seconds = asked.seconds or (2.0 if asked.quick else 300.0)
    clients = asked.clients or (8 if asked.quick else 40)
    side = 256 if asked.quick else 2048 if asked.device == "cpu" else 8192
    took = call_us(*((5, 200) if asked.quick else (41, 5_000)))
    with tempfile.TemporaryDirectory() as folder:
        shown = trace(Path(folder), asked.device, seconds, clients, side)
    shown["call_us"] = took
    for name, value in shown.items():
        if name not in ("read", "call_us"):
            print(f"{name:<16} {value:.3f}" if isinstance(value, float) else f"{name:<16} {value}")
    kept = figures(shown, asked.device)
    for figure in kept:
        ratio = "" if figure.ratio is None else f", {figure.ratio:.3f} of {figure.beside}"
        print(f"{figure.what}: {figure.value:.4g} {figure.unit}{ratio}")
    save(asked.json, about, shown, kept)


if __name__ == "__main__":
    main()
