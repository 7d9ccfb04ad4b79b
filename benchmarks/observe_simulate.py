"""The predictions of `headrace simulate`, beside real runs of the same configuration.

- ``sleep``: the backend sleeps, so that instances do not slow each other down, as is assumed.
- ``jpeg``: JPEG to class on a light network, where instances share the processors, as times by ``beside`` show.

The times of batches are measured by the probe ``BatchTimes`` while the cells run; every cell is then
simulated. Printed are the ratios of simulation to run; aimed at are 5 % for throughput and mean batch, 10 % for
p50, 25 % for p99.

A closed loop may have several rhythms, each of which keeps going once it has begun (4 clients on two instances that
sleep 45 ms for one request and 55 ms for three run 2 or 3 batches of one per batch of three). The order in which
threads wake up at almost the same time decides which rhythm a run gets into. So for closed loops the range of the
simulated throughput over several wake-up times is printed too, over the throughput of the run. On a busy machine
threads wake up late: ``--slower 10`` sleeps ten times as long (at a tenth of the rates), so that late wake-ups weigh
a tenth as much.

    python -m benchmarks.observe_simulate [--part sleep jpeg] [--slower 1] [--seconds 2] [--json FILE]
"""

from __future__ import annotations

import itertools
import math
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
PARTS = ("sleep", "jpeg")


class Sleeper(headrace.Backend):
    """Sleep 4 ms and half a millisecond per request, or that many times longer."""

    max = None

    class Options(headrace.Options):
        """How much longer."""

        slower: float = 1.0

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Take how much longer."""
        self.slower = options.slower

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Sleep, then give `data` back."""
        time.sleep(self.slower * (0.004 + 0.0005 * len(batch)))
        for request in batch:
            request["result"] = request["data"]


class Patient(ConditionPolicy):
    """Wait for six requests, or for a while."""

    condition = Idle()

    class Options(headrace.Options):
        """How long."""

        patience_ms: float = 6.0

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.condition = Count(6) | Waited(ms=options.patience_ms) | Idle()


def sleeping(slower: float) -> dict[str, dict[str, Any]]:
    """Give the configurations that sleep."""
    config = {"backend": f"Sleeper(slower={slower})", "max": 8, "instance_num": 2}
    patient = f"Patient(patience_ms={6 * slower})"
    return {
        "greedy": config,
        "greedy, 5 ms": {**config, "batching_timeout": 5 * slower},
        "a policy of one's own": {**config, "batch_policy": patient},
    }


def pictures(folder: Path) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    """Give the configuration that reads JPEG files, and the files."""
    import cv2
    from benchmarks.jpeg_sides import SIDE, WIDTHS, make_network, make_pictures

    cv2.setNumThreads(1)
    make_network(folder / "light.onnx", WIDTHS["light"])
    config = {
        "backend": "S[DecodeMat,ResizeMat,Mat2Tensor,OnnxTensor]",
        "resize_h": SIDE,
        "resize_w": SIDE,
        "model": str(folder / "light.onnx"),
        "max": 4,
        "instance_num": 2,
    }
    return {"jpeg to class": config}, make_pictures()


def loads(rates: tuple[float, ...], *, quick: bool) -> list[LoadSpec]:
    # Quick runs, too, use loads under which batches of more than one request form.
    made = [LoadSpec(clients=n) for n in ((20,) if quick else (1, 2, 4, 10, 20, 40))]
    for rate in rates[-1:] if quick else rates:
        about = {"kind": "open", "rate": rate}
        made.append(LoadSpec(about=about, arrivals=lambda rate=rate: poisson(rate, 1)))
    return made


def real(
    config: dict[str, Any], data: list[Any], specs: list[LoadSpec], seconds: float, times: Path
) -> list[Point]:
    points: list[Point] = []
    probe = f'observe:BatchTimes(path="{times}")'
    plan = Plan(0.25 * seconds, seconds=seconds)
    with headrace.pipe({**config, "global": {"probes": [probe]}}) as pipe:
        measure_loads(pipe, [{"data": one} for one in data], specs, plan, points.append)
    return points


def simulated(config: dict[str, Any], spec: LoadSpec, seconds: float, times: Path) -> Point:
    run = simulation_of(headrace.PipelineConfig.load(config), read_times(times), 1)
    if spec.clients is not None:
        return run.closed_loop(spec.clients, REQUESTS, REQUESTS // 10)
    # The simulation gets the arrivals of the real run, and leaves the same arrivals out as warm-up.
    came = list(itertools.takewhile(lambda at: at < 1.25 * seconds, spec.arrivals()))
    return run.open_loop(came, spec.about, sum(at < 0.25 * seconds for at in came))


def rhythms(config: dict[str, Any], clients: int, times: Path, found: float) -> tuple[float, float]:
    """Give the lowest and highest throughput of a closed loop over several wake-up times of threads.

    ``found`` is the throughput that was simulated with threads that wake up at once.
    """
    loaded, known = headrace.PipelineConfig.load(config), read_times(times)
    rates = [
        simulation_of(loaded, known, 1, wake_s)
        .closed_loop(clients, REQUESTS, REQUESTS // 10)
        .throughput_rps
        for wake_s in (20e-6, 100e-6)
    ]
    return min(found, *rates), max(found, *rates)


def compare(
    name: str, config: dict[str, Any], data: list[Any], specs: list[LoadSpec], seconds: float
) -> list[dict[str, Any]]:
    """Run and simulate one configuration under each load; print and give the ratios."""
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        runs = real(config, data, specs, seconds, times)
        for spec, point in zip(specs, runs, strict=True):
            was, is_ = point.to_dict(), simulated(config, spec, seconds, times).to_dict()
            label = " ".join(str(value) for value in was["load"].values())
            pairs = {
                "throughput": (is_["throughput_rps"], was["throughput_rps"]),
                "batch": (is_["batch_size"]["main"]["mean"], was["batch_size"]["main"]["mean"]),
                "p50": (is_["latency_ms"]["p50"], was["latency_ms"]["p50"]),
                "p99": (is_["latency_ms"]["p99"], was["latency_ms"]["p99"]),
            }
            # On a busy machine no request may end in a short window: the ratio is then NaN.
            ratio = {name: a / b if a and b else math.nan for name, (a, b) in pairs.items()}
            figures = "".join(f"{value:8.3f}" for value in ratio.values())
            if spec.clients is not None and was["throughput_rps"]:
                foretold = rhythms(config, spec.clients, times, is_["throughput_rps"])
                low, high = (rate / was["throughput_rps"] for rate in foretold)
                ratio |= {"lowest": low, "highest": high}
                figures += f"   {low:.3f} to {high:.3f}"
            cells.append({"config": name, "load": was["load"], "ratio": ratio})
            print(f"{name + ', ' + label:34}{was['throughput_rps']:9.1f}{figures}")
    return cells


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each real run")
    parser.add_argument("--slower", type=float, default=1.0, help="of the part sleep")
    given = parser.parse_args()
    about = environment(["headrace", "headrace-observe"])
    print_environment(about)
    headrace.register("Sleeper", Sleeper)
    headrace.register("Patient", Patient)
    seconds = 0.2 if given.quick else given.seconds
    cells: list[dict[str, Any]] = []
    print(f"{'load':34}{'req/s':>9}{'ratio':>8}{'batch':>8}{'p50':>8}{'p99':>8}   by wake-up")
    if "sleep" in given.part:
        rates = tuple(rate / given.slower for rate in (100.0, 600.0, 1500.0, 2500.0))
        specs = loads(rates, quick=given.quick)
        for name, config in sleeping(given.slower).items():
            cells += compare(name, config, [1], specs, seconds)
    if "jpeg" in given.part:
        with tempfile.TemporaryDirectory() as name:
            configs, data = pictures(Path(name))
            for named, config in configs.items():
                specs = loads((60.0, 120.0, 600.0), quick=given.quick)
                cells += compare(named, config, data, specs, seconds)
    save(given.json, about, {"cells": cells})


if __name__ == "__main__":
    main()
