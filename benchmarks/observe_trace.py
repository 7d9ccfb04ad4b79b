"""The cost of the probe Trace: a pipeline with it, beside the same pipeline without a probe.

- ``jpeg``: JPEG to class on a light network (about 60 million multiply-adds) with 10 clients: without a
  probe, with a trace of every request, and with ``sample = 0.01``. Aimed at: 0.9 and 0.97 of the requests per
  second without one.
- ``request``: a node of one element, and a node of three (a sequence of two). Printed are the microseconds of
  processor time that a request takes more than without a probe: after `trace` has ended (nothing), with a Trace
  without a path (nothing, as it hears of no request), and with a Trace that records. Aimed at: 5 for
  the node of one element. The figures include the work of the thread that writes, since processor time is that of
  the process.
- ``long``: so many traced requests in a row (`--requests`): size of the file, and memory of the process
  after every tenth of them.

The clock of a request runs from the call to the answer in the client's hands.

    python -m benchmarks.observe_trace [--part jpeg request long] [--requests 1000000] [--json FILE]

Needs headrace-observe, and for ``jpeg`` headrace-cv, headrace-ort and onnx.
"""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import (
    Load,
    arguments,
    drive,
    environment,
    in_turn,
    middle,
    print_environment,
    ratio,
    save,
)

import headrace
import headrace_observe

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("jpeg", "request", "long")
MAX_BYTES = 20_000_000


def traced(config: dict[str, Any], path: Path, sample: float) -> headrace.Pipeline:
    probe = f'Trace("{path}",sample={sample},max_bytes={MAX_BYTES})'
    return headrace.pipe({**config, "probes": [probe]})


def sides_of(config: dict[str, Any], folder: Path) -> dict[str, headrace.Pipeline]:
    """Return the same pipeline without a probe, after a trace, with a probe without a path, with two samples."""
    after = headrace.pipe(config)
    with headrace_observe.trace(after, folder / "after.json"):
        pass
    return {
        "no probe": headrace.pipe(config),
        "after a trace": after,
        "Trace without a path": headrace.pipe({**config, "probes": ["Trace"]}),
        "Trace, every request": traced(config, folder / "all.json", 1.0),
        "Trace, sample 0.01": traced(config, folder / "sample.json", 0.01),
    }


def measure(
    pipes: dict[str, headrace.Pipeline],
    data: list[Any],
    clients: int,
    run: tuple[float, float, int],
) -> dict[str, list[Load]]:
    seconds, warm_up, rounds = run
    runs: dict[str, Callable[[], Load]] = {}
    for name, pipe in pipes.items():

        def call(i: int, pipe: headrace.Pipeline = pipe) -> None:
            pipe({"data": data[i % len(data)]})

        runs[name] = partial(drive, call, clients, seconds, warm_up)
    loads = in_turn(runs, rounds)
    for pipe in pipes.values():
        pipe.close()
    return loads


def jpeg(folder: Path, run: tuple[float, float, int]) -> dict[str, Any]:
    """Measure the pipeline of pictures."""
    import cv2
    from benchmarks.jpeg_sides import SIDE, WIDTHS, make_network
    from benchmarks.pictures import make_pictures

    cv2.setNumThreads(1)
    model = folder / "light.onnx"
    make_network(model, WIDTHS["light"])
    config = {
        "backend": "S[DecodeMat,ResizeMat,Mat2Tensor,OnnxTensor]",
        "resize_h": SIDE,
        "resize_w": SIDE,
        "model": str(model),
        "max": 4,
        "instance_num": 2,
    }
    loads = measure(sides_of(config, folder), make_pictures(), 10, run)
    print("JPEG to class, light network, 10 clients")
    ratios = {}
    for name, rounds in loads.items():
        ratios[name] = ratio(rounds, loads["no probe"])
        m = middle(rounds)
        print(f"  {name:24}{m.rps:8.0f}/s  p99 {m.p99_us / 1e3:6.2f} ms  {ratios[name]:.3f} x")
    return {"loads": loads, "ratio": ratios}


def request(folder: Path, run: tuple[float, float, int]) -> dict[str, Any]:
    """Measure the extra time of a request at a node, by the number of elements in its expression."""
    found: dict[str, Any] = {}
    print(
        "a request at one node, one client: processor time, and how much more than without a probe"
    )
    for backend in ("Identity", "S[Identity,Identity]"):
        loads = measure(sides_of({"backend": backend, "max": 4}, folder), [1], 1, run)
        more = {}
        print(f"  {backend}")
        for name, rounds in loads.items():
            pairs = zip(rounds, loads["no probe"], strict=True)
            more[name] = statistics.median(a.cpu_us - b.cpu_us for a, b in pairs)
            own = more[name] - more.get("Trace without a path", more[name])
            tail = f", {own:+.2f} us over one without a path" if own else ""
            print(f"    {name:24}{middle(rounds).cpu_us:7.2f} us  {more[name]:+.2f} us{tail}")
        found[backend] = {"loads": loads, "more_us": more}
    return found


def resident_bytes() -> int:
    """Return the memory of this process in RAM; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0
    import resource

    return int(fields[1]) * resource.getpagesize()


def long(folder: Path, requests: int) -> dict[str, Any]:
    """Trace many requests, with a bound that most of them pass."""
    path = folder / "long.json"
    memory = []
    with traced({"backend": "S[Identity,Identity]", "max": 4}, path, 1.0) as pipe:
        for _ in range(10):
            for _ in range(requests // 10):
                pipe({"data": 1})
            memory.append(resident_bytes())
        errors = pipe.stats()["probes"]
    size = path.stat().st_size
    print(
        f"{requests} traced requests: file {size} bytes of at most {MAX_BYTES}; memory after each"
    )
    print("  tenth: " + ", ".join(f"{one / 2**20:.0f}" for one in memory) + " MiB")
    failed = sum(one["errors"] for one in errors.values())
    return {"file_bytes": size, "max_bytes": MAX_BYTES, "memory_bytes": memory, "errors": failed}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--requests", type=int, default=1_000_000, help="of the part long")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one window")
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    seconds, rounds = (0.02, 1) if chosen.quick else (chosen.seconds, chosen.rounds)
    about = environment(["headrace", "headrace-observe", "onnxruntime"])
    print_environment(about)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = (seconds, min(0.4, seconds), rounds)
        if "jpeg" in chosen.part:
            figures["jpeg"] = jpeg(folder, run)
        if "request" in chosen.part:
            figures["request"] = request(folder, run)
        if "long" in chosen.part:
            figures["long"] = long(folder, min(chosen.requests, 2000 if chosen.quick else 10**9))
    save(chosen.json, about, figures)


if __name__ == "__main__":
    main()
