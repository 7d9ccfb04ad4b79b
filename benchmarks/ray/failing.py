"""Actors of Ray that are killed under load.

Each request sleeps for 20 ms in one of three actors of a cluster on this machine. Requests arrive at 70 % of what three actors can
do, and every 30 seconds one actor is killed; nothing is run a second time. Wanted: 0.85 of the requests that arrive are answered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

from benchmarks.load import arguments, environment, print_environment, save

import headrace
from headrace_observe.bench.arrivals import poisson
from headrace_observe.bench.benchmark import LoadSpec, measure_loads
from headrace_observe.bench.measurement import Plan, Point

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

SLEEP_S = 0.02
ACTORS = 3
RATE = 0.7 * ACTORS / SLEEP_S
CONFIG = {
    "backend": "RayActor(num_cpus=0.1)[Call(time:sleep)]",
    "instance_num": ACTORS,
}


def kill_in_turn(pipe: headrace.Pipeline, every_s: float, over: threading.Event) -> None:
    """Kill the actor of the first instance again and again."""
    while not over.wait(every_s):
        process = pipe.describe()["nodes"]["main"]["tree"]["built"]["process"]
        with contextlib.suppress(OSError, IndexError):
            stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)


def killed(seconds: float, every_s: float) -> dict[str, Any]:
    """Measure what is answered while actors are killed."""
    points: list[Point] = []
    spec = LoadSpec(about={"kind": "open", "rate": RATE}, arrivals=lambda: poisson(RATE, 1))
    with headrace.pipe(CONFIG) as pipe:
        over = threading.Event()
        killing = threading.Thread(target=kill_in_turn, args=(pipe, every_s, over))
        killing.start()
        try:
            plan = Plan(0.0, seconds=seconds)
            measure_loads(pipe, [{"data": SLEEP_S}], [spec], plan, points.append)
        finally:
            over.set()
            killing.join()
    figures = points[0].to_dict()
    goodput = figures["throughput_rps"] / RATE
    print(
        f"Killed every {every_s:g} s for {seconds:g} s, {RATE:g} requests/s: goodput {goodput:.2f}, "
        f"p50 {figures['latency_ms']['p50']:.1f} ms, p99 {figures['latency_ms']['p99']:.0f} ms"
    )
    return {"goodput": goodput, "figures": figures}


def main() -> None:
    options = arguments(__doc__).parse_args()
    about = environment(["headrace", "headrace-ray", "headrace-observe", "ray"])
    print_environment(about)
    ray.init(
        "local",
        num_cpus=8,
        object_store_memory=80 << 20,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
    )
    try:
        figures = {"killed": killed(*((2.0, 1.0) if options.quick else (100.0, 30.0)))}
    finally:
        ray.shutdown()
    save(options.json, about, figures)


if __name__ == "__main__":
    main()
