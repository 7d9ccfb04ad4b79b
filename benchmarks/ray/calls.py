"""Batches to an actor of Ray: through `RayActor`, as calls of the actor, and through Ray Serve, in turn on one cluster.

*Calls*: 10 threads send arrays of 60 kB, which one actor copies (``copy.copy``); each gets its own back. `RayActor`
gathers up to 8 in a batch. The plain actor is called once a request. Serve is asked through its handle, with and
without ``serve.batch``, and with a pipeline as replica, which gathers up to 8. Wanted: at least 3 times the requests of the plain actor, and at most a sixth of the caller's
processor time of the better program of Serve.

*Sleep*: each request sleeps for 20 ms, in 1 to 16 actors with as many callers. Wanted: at least 0.9 of linear.

*JPEG*: from a picture to its class, light network, in threads of this process, and in as many actors. Wanted: at most 1.2
times the processor time of threads, all processes together.

The processor time is that of this process and of all that it has started: with the actors also those of Ray itself.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
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
    usable_cpus,
)

import headrace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

BYTES = 60_000
CLIENTS = 10
ACTORS = (1, 4, 16)
SLEEP_S = 0.02
STORE_BYTES = 200 << 20
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def processes_s() -> float:
    """Return the processor time of all processes that this one has started, with theirs (seconds)."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError, ValueError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                parents[int(folder.name)] = int(fields[1])
                used[int(folder.name)] = (int(fields[11]) + int(fields[12])) * _TICK_S

    def is_ours(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == os.getpid():
                return True
        return False

    return sum(time for process, time in used.items() if is_ours(process))


def show(loads: Mapping[str, list[Load]], base: str) -> None:
    """Print rates and processor times of all sides, and their ratios to one of them, with their spread."""
    for name, found in loads.items():
        load = middle(found)
        each = sorted(one.rps / two.rps for one, two in zip(found, loads[base], strict=True))
        print(
            f"  {name:24} {load.rps:7.0f} requests/s, {ratio(found, loads[base]):6.2f} "
            f"({each[0]:.2f} to {each[-1]:.2f}); processor time a request: "
            f"caller {load.cpu_us - load.others_us:6.0f} us, all {load.cpu_us:6.0f} us"
        )


def caller_us(loads: list[Load]) -> float:
    """Return the caller's processor time per request of the median round (microseconds)."""
    load = middle(loads)
    return load.cpu_us - load.others_us


# Calls.


class Copies:
    """The plain actor."""

    def run(self, data: Any) -> Any:
        """Return a copy."""
        return data.copy()


def serve_sides() -> dict[str, Callable[[Any], Any]]:
    """Start two programs of Ray Serve; return how each is called."""
    from ray import serve

    @serve.deployment(max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.1})
    class One:
        async def __call__(self, data: Any) -> Any:
            return data.copy()

    @serve.deployment(max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.1})
    class Batches:
        @serve.batch(max_batch_size=8, batch_wait_timeout_s=0.0)
        async def __call__(self, batch: list[Any]) -> list[Any]:
            return [one.copy() for one in batch]

    @serve.deployment(max_ongoing_requests=100, ray_actor_options={"num_cpus": 0.1})
    class Pipeline:
        def __init__(self) -> None:
            self.pipe = headrace.pipe({"backend": "Call(copy:copy)", "max": 8})

        async def __call__(self, data: Any) -> Any:
            return (await self.pipe.call_async({"data": data}))["result"]

    one = serve.run(One.bind(), name="one", route_prefix=None)
    batches = serve.run(Batches.bind(), name="batches", route_prefix=None)
    pipeline = serve.run(Pipeline.bind(), name="pipeline", route_prefix=None)
    return {
        "Serve": lambda data: one.remote(data).result(),
        "Serve, batches": lambda data: batches.remote(data).result(),
        "pipeline in Serve": lambda data: pipeline.remote(data).result(),
    }


def calls(seconds: float, rounds: int) -> dict[str, Any]:
    """Compare the ways to send an array there and back."""
    data = np.zeros(BYTES, np.uint8)
    config = {"backend": "RayActor(num_cpus=0.1)[Call(copy:copy)]", "max": 8}
    with headrace.pipe(config) as pipe:
        actor = ray.remote(Copies).options(num_cpus=0.1).remote()
        ways: dict[str, Callable[[Any], Any]] = {
            "actor": lambda one: ray.get(actor.run.remote(one)),
            "RayActor": lambda one: pipe({"data": one})["result"],
        }
        if find_spec("starlette") and find_spec("uvicorn"):
            ways |= serve_sides()
        else:
            print("Serve is left out: pip install ray[serve]")

        def side(way: Callable[[Any], Any]) -> Callable[[], Load]:
            def call(number: int) -> None:
                assert way(data).nbytes == BYTES

            return lambda: drive(call, CLIENTS, seconds, others=processes_s)

        loads = in_turn({name: side(way) for name, way in ways.items()}, rounds)
    print(f"{CLIENTS} threads, {BYTES} bytes, one actor")
    show(loads, "actor")
    figures: dict[str, Any] = {"loads": loads, "ratio": ratio(loads["RayActor"], loads["actor"])}
    served = [name for name in loads if name.startswith("Serve")]
    if served:
        best = max(served, key=lambda name: middle(loads[name]).rps)
        share = caller_us(loads["RayActor"]) / caller_us(loads[best])
        figures["caller"] = share
        print(f"  processor time of the caller beside {best!r}: {share:.2f}")
    return figures


# Sleep.


def sleep(seconds: float, rounds: int) -> dict[str, Any]:
    """Measure requests that only sleep, in 1 to 16 actors."""
    with ExitStack() as opened:
        sides: dict[str, Callable[[], Load]] = {}
        for count in ACTORS:
            config = {"backend": "RayActor(num_cpus=0.1)[Call(time:sleep)]", "instance_num": count}
            pipe = opened.enter_context(headrace.pipe(config))

            def call(number: int, pipe: headrace.Pipeline = pipe) -> None:
                pipe({"data": SLEEP_S})

            sides[str(count)] = partial(drive, call, count, seconds, others=processes_s)
        loads = in_turn(sides, rounds)
    print(f"Sleep of {SLEEP_S * 1000:g} ms")
    shares = {name: ratio(found, loads["1"]) / int(name) for name, found in loads.items()}
    for name, share in shares.items():
        print(
            f"  {name:>2} actors: {middle(loads[name]).rps:6.1f} requests/s, {share:.2f} of linear"
        )
    return {"loads": loads, "linear": shares}


# JPEG.


def jpeg(seconds: float, rounds: int, folder: Path) -> dict[str, Any]:
    """Compare threads of this process with actors."""
    from benchmarks.jpeg_sides import SIDE, make_network
    from benchmarks.pictures import make_pictures

    pictures, model, count = make_pictures(), folder / "light.onnx", usable_cpus()
    make_network(model, 1)
    work = "S[DecodeMat,ResizeMat,Mat2Tensor,OnnxTensor]"
    keys = {"resize_h": SIDE, "resize_w": SIDE, "model": str(model), "max": 4}
    keys["instance_num"] = count
    with ExitStack() as opened:
        sides: dict[str, Callable[[], Load]] = {}
        for name, backend in {
            "threads": work,
            "RayActor": f"RayActor(num_cpus=0.5)[{work}]",
        }.items():
            pipe = opened.enter_context(headrace.pipe({**keys, "backend": backend}))

            def call(number: int, pipe: headrace.Pipeline = pipe) -> None:
                found = pipe({"data": pictures[number % len(pictures)]})["result"]
                assert found.size == 1000

            sides[name] = partial(drive, call, CLIENTS, seconds, others=processes_s)
        loads = in_turn(sides, rounds)
    print(f"JPEG to class, light network, {CLIENTS} threads, {count} instances")
    show(loads, "threads")
    cost = ratio(loads["RayActor"], loads["threads"], "cpu_us")
    print(f"  processor time of all processes beside threads: {cost:.2f}")
    return {"loads": loads, "processor_time": cost}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=["calls", "sleep", "jpeg"], help="one of the three")
    options = parser.parse_args()
    seconds, rounds = (0.3, 2) if options.quick else (2.0, 7)
    about = environment(["headrace", "headrace-ray", "headrace-process", "ray", "numpy"])
    print_environment(about)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        ray.init(
            "local",
            num_cpus=8,
            object_store_memory=STORE_BYTES,
            include_dashboard=False,
            configure_logging=False,
            log_to_driver=False,
        )
        try:
            if options.only in (None, "calls"):
                figures["calls"] = calls(seconds, rounds)
            if options.only in (None, "sleep"):
                figures["sleep"] = sleep(seconds, rounds)
            if options.only in (None, "jpeg"):
                figures["jpeg"] = jpeg(seconds, rounds, Path(folder))
        finally:
            ray.shutdown()
    save(options.json, about, figures)


if __name__ == "__main__":
    main()
