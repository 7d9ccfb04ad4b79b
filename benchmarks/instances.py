"""The requests per second that instances, threads and batches give, for three sizes of an ONNX model.

    python -m benchmarks.instances [--threads 20] [--quick]

The model is a stack of dense layers, of about 0.02, 0.2 and 2 ms for one sample on one core. Threads send
one sample after the other, in a closed loop, to

- one `InferenceSession` that all share, with one thread inside each run: every thread runs its own;
- Headrace with default settings: one instance, which may use all cores, batches of one;
- Headrace with an instance per core, without and with batches of up to 16.

and a single thread sends them to one instance with one core, and with all of them. Per side the
median of the requests per second, and its ratio to the shared session.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.load import (
    Load,
    arguments,
    beside,
    drive,
    environment,
    in_turn,
    middle,
    print_environment,
    ratio,
    save,
    usable_cpus,
)

import headrace
from headrace_ort import make_session

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"0.02 ms": (256, 2), "0.2 ms": (512, 8), "2 ms": (1024, 20)}
"""Per size of the model: width of a layer, and number of layers."""

CPUS = usable_cpus()
SETTINGS: dict[str, dict[str, Any]] = {
    "default settings": {},
    "an instance per core": {"instance_num": CPUS},
    "an instance per core, max 16": {"instance_num": CPUS, "max": 16},
    "one instance, max 16": {"max": 16},
}
ALONE: dict[str, dict[str, Any]] = {
    "alone, one core": {"intra_op_threads": 1},
    "alone, all cores": {"intra_op_threads": CPUS},
}


def make_model(path: Path, width: int, layers: int) -> None:
    """Write a network of dense layers from ``float32 [n, width]`` to the same."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(1)
    nodes, weights, name = [], [], "x"
    for layer in range(layers):
        kernel = random.normal(0, width**-0.5, (width, width)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [name, f"w{layer}"], [f"m{layer}"]))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"]))
        name = f"t{layer}"
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))


def shared(path: Path, sample: Any, threads: int, seconds: float) -> Load:
    """Let every thread run the one session itself."""
    session = make_session(str(path), intra_op_threads=1)
    (output,) = [port.name for port in session.get_outputs()]
    batch = sample[None]

    def call(_: int) -> None:
        session.run([output], {"x": batch})

    return drive(call, threads, seconds)


def piped(path: Path, sample: Any, threads: int, seconds: float, keys: dict[str, Any]) -> Load:
    """Let every thread call a pipeline."""
    with headrace.pipe({"backend": "OnnxTensor", "model": str(path), **keys}) as pipe:
        return drive(lambda _: pipe({"data": sample}), threads, seconds)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=20, help="that send requests")
    parser.add_argument("--rounds", type=int, default=7, help="of all sides, in turn")
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of the model"
    )
    chosen = parser.parse_args()
    rounds, seconds = (1, 0.05) if chosen.quick else (chosen.rounds, 1.0)
    about = environment(["headrace", "headrace-ort", "onnxruntime"])
    print_environment(about)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in chosen.sizes:
            width, layers = SIZES[size]
            path = Path(folder) / f"{width}x{layers}.onnx"
            make_model(path, width, layers)
            sample = np.random.default_rng(2).standard_normal(width, dtype=np.float32)
            sides: dict[str, Callable[[], Load]] = {
                "one shared session": partial(shared, path, sample, chosen.threads, seconds)
            }
            for name, keys in SETTINGS.items():
                sides[name] = partial(piped, path, sample, chosen.threads, seconds, keys)
            for name, keys in ALONE.items():
                sides[name] = partial(piped, path, sample, 1, seconds, keys)
            loads = in_turn(sides, rounds)
            figures[size] = loads
            mean_ms = 1e3 / middle(loads["alone, one core"]).rps
            print(f"a model of about {size} (here {mean_ms:.2f}), {chosen.threads} threads")
            base = loads["one shared session"]
            for name, found in loads.items():
                load = middle(found)
                print(
                    f"  {name:30} {load.rps:9.0f} requests/s {ratio(found, base):6.2f}"
                    f"   p99 {load.p99_us / 1e3:7.2f} ms   {load.cores:4.2f} cores"
                )
    shared_one = "one shared session"
    kept = [
        beside(f"a model of {size}, {name}", found, shared_one, loads[shared_one])
        for size, loads in figures.items()
        for name, found in loads.items()
        if name in SETTINGS
    ]
    save(chosen.json, about, {"loads": figures}, kept)


if __name__ == "__main__":
    main()
