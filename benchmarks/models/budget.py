"""Models that together do not fit: how often a request finds its model, and what the process takes beside its budget.

Twelve ONNX models have a budget of four. Clients ask for them by Zipf's law, each as soon as it has its answer. A hit is a request
that causes no load: one that waits for a model that comes for another request is a hit, too. The rate of hits is beside two that
are computed afterwards, from the order in which the requests were answered. In the best possible one, Belady's, the model
leaves whose next request is the farthest. In the other one the least recently used leaves.

    python -m benchmarks.models.budget [--device cuda:0] [--seconds 300] [--clients 40] [--quick] [--json FILE]
"""

from __future__ import annotations

import os
import random
import tempfile
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from benchmarks.load import arguments, environment, print_environment, save
from onnx import TensorProto, helper, numpy_helper

from headrace_models import Memory, Models

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS, ROOM = 12, 4


def write_model(path: Path, side: int) -> None:
    """Write a model of one product with a square matrix."""
    weights = np.random.default_rng(0).standard_normal((side, side), np.float32)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", side]) for n in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph(
        [node], "product", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")]
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)


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


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def trace(folder: Path, device: str, seconds: float, clients: int, side: int) -> dict[str, Any]:
    """Let clients ask for models, and return what came of it."""
    place = "host" if device == "cpu" else device
    names = [f"m{n}" for n in range(MODELS)]
    for name in names:
        write_model(folder / f"{name}.onnx", side)
    size_mib = 2 * (folder / "m0.onnx").stat().st_size / 2**20
    memory = Memory(
        {place: f"{size_mib * ROOM:.3f} MiB"},
        sizes=dict.fromkeys(names, f"{size_mib:.3f} MiB"),
        min_stay_s=0.05,
    )
    configs = {
        name: {
            "backend": f"OnnxTensor(model={str(folder / name) + '.onnx'!r})",
            "device": None if device == "cpu" else device,
        }
        for name in names
    }
    answered: list[str] = []
    lock, failed = threading.Lock(), count()
    comings: Counter[str] = Counter()
    with Models(configs, preload=False, memory=memory) as models:
        models("m0", {"data": np.zeros((1, side), np.float32)})  # what the library takes once
        models.unload("m0")
        base = resident_bytes()
        most = 0
        models.subscribe(lambda change: comings.update([change.state]))
        models.load("m0")
        until = time.monotonic() + seconds

        def client(seed: int) -> None:
            nonlocal most
            draw = random.Random(seed)
            shares = [1 / rank for rank in range(1, MODELS + 1)]
            while time.monotonic() < until:
                (name,) = draw.choices(names, shares)
                try:
                    with models.lease(name, timeout=60) as pipe:
                        pipe({"data": np.zeros((1, side), np.float32)})
                        with lock:  # while the model is here, so that this order is possible
                            answered.append(name)
                            most = max(most, resident_bytes() - base)
                except Exception:
                    next(failed)
                    raise

        threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return {
        "requests": len(answered),
        "lost": next(failed),
        "hits": 1 - comings["ready"] / len(answered),
        "best_hits": best_hits(answered, ROOM) / len(answered),
        "recent_hits": recent_hits(answered, ROOM) / len(answered),
        "loaded": comings["ready"],
        "evicted": comings["unloaded"],
        "budget_bytes": memory.budget_bytes[place],
        "most_resident_bytes": most,
    }


def main() -> None:
    """Print what came of the trace."""
    parser = arguments(__doc__)
    parser.add_argument("--device", default="cpu", help="where the models are: cpu or cuda:0")
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--clients", type=int, default=40)
    asked = parser.parse_args()
    about = environment(["headrace", "headrace-models", "headrace-ort", "onnxruntime"])
    print_environment(about)
    seconds, clients, side = (2.0, 8, 256) if asked.quick else (asked.seconds, asked.clients, 2048)
    with tempfile.TemporaryDirectory() as folder:
        found = trace(Path(folder), asked.device, seconds, clients, side)
    for name, value in found.items():
        print(f"{name:<20} {value:.3f}" if isinstance(value, float) else f"{name:<20} {value}")
    save(asked.json, about, found)


if __name__ == "__main__":
    main()
