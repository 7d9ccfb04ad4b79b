"""What `headrace simulate` foretells, against real runs of the same configuration.

The backend sleeps, so that instances do not slow each other down, as is assumed. Its times are
measured by the probe ``BatchTimes`` in a first run; every cell is then run and simulated. Printed are the
ratios of simulation to run; aimed at are 5 % for throughput and mean batch, 10 % for p50, 25 % for p99.

    python -m benchmarks.observe_simulate [--seconds 2] [--json FILE]
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load import arguments, environment, print_environment, save

import headrace
from headrace.policies import ConditionPolicy, Count, Idle, Waited
from headrace_observe.arrivals import poisson
from headrace_observe.bench import LoadSpec, measure_loads
from headrace_observe.measurement import Plan, Point
from headrace_observe.service_times import read_times
from headrace_observe.simulate import simulation_of

REQUESTS = 20_000


class Sleeper(headrace.Backend):
    """Sleep 4 ms and half a millisecond per request."""

    max = None

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Sleep, then give `data` back."""
        time.sleep(0.004 + 0.0005 * len(batch))
        for request in batch:
            request["result"] = request["data"]


class Patient(ConditionPolicy):
    """Wait for six requests, or for 6 ms."""

    condition = Count(6) | Waited(ms=6) | Idle()


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "greedy": {"backend": "Sleeper", "max": 8, "instance_num": 2},
    "greedy, 5 ms": {"backend": "Sleeper", "max": 8, "instance_num": 2, "batching_timeout": 5},
    "a policy of one's own": {
        "backend": "Sleeper",
        "max": 8,
        "instance_num": 2,
        "batch_policy": "Patient",
    },
}


def loads(*, quick: bool) -> list[LoadSpec]:
    made = [LoadSpec(clients=n) for n in ((2,) if quick else (1, 2, 4, 10, 20, 40))]
    for rate in (300.0,) if quick else (100.0, 600.0, 1500.0, 2500.0):
        about = {"kind": "open", "rate": rate}
        made.append(LoadSpec(about=about, arrivals=lambda rate=rate: poisson(rate, 1)))
    return made


def real(config: dict[str, Any], specs: list[LoadSpec], seconds: float, times: Path) -> list[Point]:
    points: list[Point] = []
    probe = f'observe:BatchTimes(path="{times}")'
    with headrace.pipe({**config, "global": {"probes": [probe]}}) as pipe:
        measure_loads(
            pipe, [{"data": 1}], specs, Plan(0.25 * seconds, seconds=seconds), points.append
        )
    return points


def simulated(config: dict[str, Any], spec: LoadSpec, times: Path) -> Point:
    run = simulation_of(headrace.PipelineConfig.load(config), read_times(times), 1)
    if spec.clients is not None:
        return run.closed_loop(spec.clients, REQUESTS, REQUESTS // 10)
    rate = spec.about["rate"]
    few = int(rate * 2.5)
    return run.open_loop(itertools.islice(spec.arrivals(), few), spec.about, few // 5)


def mean_batch(point: dict[str, Any]) -> float:
    return float(point["batch_size"]["main"]["mean"])


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each real run")
    given = parser.parse_args()
    about = environment(["headrace", "headrace-observe"])
    print_environment(about)
    headrace.register("Sleeper", Sleeper)
    headrace.register("Patient", Patient)
    seconds = 0.2 if given.quick else given.seconds
    specs = loads(quick=given.quick)
    cells: list[dict[str, Any]] = []
    print(f"{'load':34}{'req/s':>9}{'ratio':>8}{'batch':>8}{'p50':>8}{'p99':>8}")
    for name, config in CONFIGURATIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            times = Path(folder) / "times.json"
            runs = real(config, specs, seconds, times)
            for spec, point in zip(specs, runs, strict=True):
                was, is_ = point.to_dict(), simulated(config, spec, times).to_dict()
                label = " ".join(str(value) for value in was["load"].values())
                ratio = {
                    "throughput": is_["throughput_rps"] / was["throughput_rps"],
                    "batch": mean_batch(is_) / mean_batch(was),
                    "p50": is_["latency_ms"]["p50"] / was["latency_ms"]["p50"],
                    "p99": is_["latency_ms"]["p99"] / was["latency_ms"]["p99"],
                }
                cells.append({"config": name, "load": was["load"], "ratio": ratio})
                figures = "".join(f"{value:8.3f}" for value in ratio.values())
                print(f"{name + ', ' + label:34}{was['throughput_rps']:9.1f}{figures}")
    save(given.json, about, {"cells": cells})


if __name__ == "__main__":
    main()
