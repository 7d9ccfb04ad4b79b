"""Actors of Ray that are killed under load, and what `headrace simulate` says of such a cluster beside real runs.

Each request sleeps for 20 ms in one of three actors of a cluster on this machine.

*Simulated*: a closed and an open loop are run and then simulated, with the times of batches of that run. Aimed at are 15 % for
throughput and 25 % for p50; p99 is reported.

*Killed*: requests arrive at 70 % of what three actors can do, and every 30 seconds one actor is killed; nothing is run a
second time. Wanted: 0.85 of the requests that arrive are answered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any

from benchmarks.load import arguments, environment, print_environment, save

import headrace
from headrace_observe.arrivals import poisson
from headrace_observe.bench import LoadSpec, measure_loads
from headrace_observe.measurement import Plan, Point
from headrace_observe.service_times import read_times
from headrace_observe.simulate import simulation_of
from headrace_observe.simulated_cluster import ClusterFile

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray

SLEEP_S = 0.02
ACTORS = 3
RATE = 0.7 * ACTORS / SLEEP_S
CONFIG = {
    "backend": "RayActor(num_cpus=0.1)[Call(time:sleep)]",
    "instance_num": ACTORS,
}
CLUSTER = ClusterFile.model_validate({"machines": [{"count": 1, "num_cpus": 8}]})


def real(spec: LoadSpec, seconds: float, times: Path) -> Point:
    """Run a load; write the times of its batches."""
    points: list[Point] = []
    probe = f'observe:BatchTimes(path="{times}")'
    with headrace.pipe({**CONFIG, "global": {"probes": [probe]}}) as pipe:
        plan = Plan(0.25 * seconds, seconds=seconds)
        measure_loads(pipe, [{"data": SLEEP_S}], [spec], plan, points.append)
    return points[0]


def simulated(spec: LoadSpec, times: Path) -> Point:
    """Simulate the same load."""
    config = headrace.PipelineConfig.load(CONFIG)
    run = simulation_of(config, read_times(times), 1, cluster=CLUSTER)
    if spec.clients is not None:
        return run.closed_loop(spec.clients, 20_000, 2_000)
    arrivals = spec.arrivals()
    return run.open_loop((next(arrivals) for _ in range(20_000)), spec.about, 2_000)


def compare(seconds: float, rounds: int) -> dict[str, Any]:
    """Run and simulate both loads."""
    specs = {
        "closed loop, 10 clients": LoadSpec(clients=10),
        "open loop, 70 %": LoadSpec(
            about={"kind": "open", "rate": RATE}, arrivals=lambda: poisson(RATE, 1)
        ),
    }
    figures: dict[str, Any] = {}
    print("Simulated / real: median of the rounds (lowest to highest)")
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        for name, spec in specs.items():
            found: dict[str, list[float]] = {"throughput": [], "p50": [], "p99": []}
            for _ in range(rounds):
                was, is_ = real(spec, seconds, times).to_dict(), simulated(spec, times).to_dict()
                found["throughput"].append(is_["throughput_rps"] / was["throughput_rps"])
                for key in ("p50", "p99"):
                    found[key].append(is_["latency_ms"][key] / was["latency_ms"][key])
            figures[name] = found
            texts = (
                f"{key} {statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
                for key, each in found.items()
            )
            print(f"  {name:24} {', '.join(texts)}")
    return figures


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
    seconds, rounds = (0.5, 1) if options.quick else (4.0, 5)
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
        figures = {"simulated": compare(seconds, rounds)}
        figures["killed"] = killed(*((2.0, 1.0) if options.quick else (100.0, 30.0)))
    finally:
        ray.shutdown()
    save(options.json, about, figures)


if __name__ == "__main__":
    main()
