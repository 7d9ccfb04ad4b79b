"""The processor time of a request through `OnnxTensor` whose idle threads spin, and of one whose threads sleep.

    python -m benchmarks.spinning [--threads 4] [--quick]

A request is an array from which its sample is computed in numpy, as a picture is decoded, and a run of a stack of dense
layers with as many threads inside as there are cores. Threads send one request after the other, in a closed loop, through
two nodes: `Prepare` with an instance per core, then one instance of `OnnxTensor`, with ``spin = false`` and with
``spin = true``. Beside them one thread does both in a plain loop, with a session of the same threads, which do not spin.
Per side the median of the processor time per request, and its ratio to the plain loop.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from benchmarks.instances import SIZES, make_model
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

CPUS = usable_cpus()
PLAIN = "plain loop"


def prepare(data: Any) -> Any:
    """Compute a sample, ``float32 [width]``, from ``float32 [n, width]``."""
    return np.sqrt(np.abs(np.sin(data))).mean(0)


def plain(path: Path, data: Any, seconds: float) -> Load:
    """Let one thread do everything itself."""
    session = make_session(str(path), intra_op_threads=CPUS, spinning=False)
    (output,) = [port.name for port in session.get_outputs()]
    return drive(lambda _: session.run([output], {"x": prepare(data)[None]}), 1, seconds)


def piped(path: Path, data: Any, threads: int, seconds: float, spin: bool) -> Load:
    """Let every thread call a pipeline of two nodes."""
    net = {"backend": "OnnxTensor", "model": str(path), "intra_op_threads": CPUS, "spin": spin}
    first = {"backend": "Prepare", "instance_num": CPUS, "next": "net"}
    with headrace.pipe({"prepare": first, "net": net}) as pipe:
        return drive(lambda _: pipe({"data": data}), threads, seconds)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--threads", type=int, default=4, help="that send requests")
    parser.add_argument("--rounds", type=int, default=9, help="of all sides, in turn")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["0.2 ms", "2 ms"])
    chosen = parser.parse_args()
    rounds, seconds = (1, 0.05) if chosen.quick else (chosen.rounds, 1.0)
    about = environment(["headrace", "headrace-ort", "onnxruntime"])
    print_environment(about)
    headrace.register("Prepare", prepare)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size in chosen.sizes:
            width, layers = SIZES[size]
            path = Path(folder) / f"{width}x{layers}.onnx"
            make_model(path, width, layers)
            data = np.random.default_rng(2).standard_normal((100, width), dtype=np.float32)
            sides: dict[str, Callable[[], Load]] = {PLAIN: partial(plain, path, data, seconds)}
            for spin in (False, True):
                name = f"spin = {str(spin).lower()}"
                sides[name] = partial(piped, path, data, chosen.threads, seconds, spin)
            loads = in_turn(sides, rounds)
            print(f"a model of about {size}, {chosen.threads} threads, {CPUS} inside a run")
            for name, found in loads.items():
                load = middle(found)
                print(
                    f"  {name:14} {load.cpu_us:8.0f} us of processor a request"
                    f" {ratio(found, loads[PLAIN], 'cpu_us'):6.2f}"
                    f"   {load.rps:7.0f} requests/s   p99 {load.p99_us / 1e3:7.2f} ms"
                )
            figures[size] = loads
    kept = []
    for size, loads in figures.items():
        for name in ("spin = false", "spin = true"):
            what = f"a network of {size}, {name}"
            kept.append(beside(what, loads[name], "a plain loop", loads[PLAIN], "cpu_us"))
        kept.append(
            beside(what, loads["spin = true"], "spin = false", loads["spin = false"], own=True)
        )
    save(chosen.json, about, {"loads": figures}, kept)


if __name__ == "__main__":
    main()
