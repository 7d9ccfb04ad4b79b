"""The predictions of `headrace simulate`, beside real runs of the same configuration.

- ``sleep``: the backend sleeps, so that instances do not slow each other down, as is assumed.
- ``jpeg``: JPEG to class on a light network, where instances share the processors, as times by ``beside`` show.

Each load is run and then simulated, several times over. The times of batches are those that the probe ``Remember``
keeps of that run: how long a batch takes depends on the load, too (a machine that rests between batches takes
longer for each), and no simulation can know that. Printed are the medians of the ratios of simulation to run; aimed at
are 5 % for throughput and mean batch, 10 % for p50, 25 % for p99. The open loops of ``jpeg`` have rates below and
above the most requests per second of the closed loops.

A closed loop may have several rhythms, each of which keeps going for a while once it has begun (10 clients on two
instances run 8 and 2 requests at a time, or 7 and 3). The order in which threads wake up at almost the same time decides
which rhythm a run gets into, and runs of the same loop differ by some percent. So for closed loops two ranges are
printed too, over the throughput of the run: that of the runs, and that of simulations with several wake-up times. On a busy machine
threads wake up late: ``--slower 10`` sleeps ten times as long (at a tenth of the rates), so that late wake-ups weigh
a tenth as much.

    python -m benchmarks.observe_simulate [--part sleep jpeg] [--slower 1] [--seconds 2] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.load import arguments, environment, print_environment, save

import headrace
from headrace_flow.conditions import Condition, ConditionPolicy, Count, Idle, Waited
from headrace_observe.arrivals import poisson
from headrace_observe.bench import LoadSpec, measure_loads
from headrace_observe.measurement import Plan, Point
from headrace_observe.memory import memories
from headrace_observe.service_times import read_times
from headrace_observe.simulate import simulation_of

REQUESTS = 20_000
PARTS = ("sleep", "jpeg")
SHARES = (0.1, 0.3, 0.6, 1.5)
"""The rates of open loops, as shares of the most requests per second that closed loops reach."""


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

    def make_condition(self, options: Options) -> Condition:
        """Return what makes a batch due."""
        return Count(6) | Waited(ms=options.patience_ms) | Idle()


def sleeping(slower: float) -> dict[str, dict[str, Any]]:
    """Return the configurations that sleep."""
    config = {"backend": f"Sleeper(slower={slower})", "max": 8, "instance_num": 2}
    patient = f"Patient(patience_ms={6 * slower})"
    return {
        "greedy": config,
        "greedy, 5 ms": {**config, "batching_timeout": 5 * slower},
        "a policy of one's own": {**config, "batch_policy": patient},
    }


def pictures(folder: Path) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    """Return the configuration that reads JPEG files, and the files."""
    import cv2
    from benchmarks.jpeg_sides import SIDE, WIDTHS, make_network
    from benchmarks.pictures import make_pictures

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


def closed_loops(*, quick: bool) -> list[LoadSpec]:
    # Quick runs, too, use loads under which batches of more than one request form.
    return [LoadSpec(clients=n) for n in ((20,) if quick else (1, 2, 4, 10, 20, 40))]


def open_loops(rates: tuple[float, ...], *, quick: bool) -> list[LoadSpec]:
    return [
        LoadSpec(about={"kind": "open", "rate": rate}, arrivals=lambda rate=rate: poisson(rate, 1))
        for rate in (rates[-1:] if quick else rates)
    ]


def real(
    config: dict[str, Any], data: list[Any], spec: LoadSpec, seconds: float, times: Path
) -> Point:
    points: list[Point] = []
    plan = Plan(0.25 * seconds, seconds=seconds)
    with headrace.pipe({**config, "global": {"probes": ["Remember"]}}) as pipe:
        measure_loads(pipe, [{"data": one} for one in data], [spec], plan, points.append)
        memories[pipe]().write(times)
    return points[0]


def simulated(config: dict[str, Any], spec: LoadSpec, seconds: float, times: Path) -> Point:
    run = simulation_of(headrace.PipelineConfig.load(config), read_times(times), 1)
    if spec.clients is not None:
        return run.closed_loop(spec.clients, REQUESTS, REQUESTS // 10)
    # The simulation gets the arrivals of the real run, and leaves the same arrivals out as warm-up.
    came = list(itertools.takewhile(lambda at: at < 1.25 * seconds, spec.arrivals()))
    return run.open_loop(came, spec.about, sum(at < 0.25 * seconds for at in came))


def rhythms(config: dict[str, Any], clients: int, times: Path, found: float) -> tuple[float, float]:
    """Return the lowest and highest throughput of a closed loop over several wake-up times of threads.

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


def once(
    config: dict[str, Any], data: list[Any], spec: LoadSpec, seconds: float, times: Path
) -> tuple[float, dict[str, float]]:
    """Run and simulate one load; give the real requests per second, and the ratios of simulation to run."""
    was = real(config, data, spec, seconds, times).to_dict()
    is_ = simulated(config, spec, seconds, times).to_dict()
    pairs = {
        "throughput": (is_["throughput_rps"], was["throughput_rps"]),
        "batch": (is_["batch_size"]["main"]["mean"], was["batch_size"]["main"]["mean"]),
        "p50": (is_["latency_ms"]["p50"], was["latency_ms"]["p50"]),
        "p99": (is_["latency_ms"]["p99"], was["latency_ms"]["p99"]),
    }
    # On a busy machine no request may end in a short window: the ratio is then NaN.
    found = {name: a / b if a and b else math.nan for name, (a, b) in pairs.items()}
    if spec.clients is not None and was["throughput_rps"]:
        foretold = rhythms(config, spec.clients, times, is_["throughput_rps"])
        low, high = (rate / was["throughput_rps"] for rate in foretold)
        found |= {"lowest": low, "highest": high}
    return was["throughput_rps"], found


def compare(
    name: str,
    config: dict[str, Any],
    data: list[Any],
    specs: list[LoadSpec],
    seconds: float,
    rounds: int,
) -> list[dict[str, Any]]:
    """Run and simulate one configuration under each load; print and give the medians of the ratios."""
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.jsonl"
        for spec in specs:
            runs = [once(config, data, spec, seconds, times) for _ in range(rounds)]
            rps = statistics.median(rate for rate, _ in runs)
            every = [found for _, found in runs]
            names = dict.fromkeys(key for found in every for key in found)
            ratio = {
                key: statistics.median(one.get(key, math.nan) for one in every) for key in names
            }
            figures = "".join(f"{ratio[key]:8.3f}" for key in ("throughput", "batch", "p50", "p99"))
            if rps:
                rates = [rate / rps for rate, _ in runs]
                figures += f"   {min(rates):.3f} to {max(rates):.3f}"
            if "lowest" in ratio:
                figures += f"   {ratio['lowest']:.3f} to {ratio['highest']:.3f}"
            load = {"kind": "closed", "clients": spec.clients} if spec.clients else spec.about
            label = f"{name}, {' '.join(str(value) for value in load.values())}"
            cells.append({"config": name, "load": load, "rps": rps, "ratio": ratio, "runs": every})
            print(f"{label:34}{rps:9.1f}{figures}", flush=True)
    return cells


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each real run")
    parser.add_argument("--rounds", type=int, default=3, help="of each load")
    parser.add_argument("--slower", type=float, default=1.0, help="of the part sleep")
    given = parser.parse_args()
    about = environment(["headrace", "headrace-flow", "headrace-observe"])
    print_environment(about)
    headrace.register("Sleeper", Sleeper)
    headrace.register("Patient", Patient)
    seconds, rounds = (0.2, 1) if given.quick else (given.seconds, given.rounds)
    cells: list[dict[str, Any]] = []
    print(
        f"{'load':34}{'req/s':>9}{'ratio':>8}{'batch':>8}{'p50':>8}{'p99':>8}   {'runs':16}by wake-up"
    )
    if "sleep" in given.part:
        rates = tuple(rate / given.slower for rate in (100.0, 600.0, 1500.0, 2500.0))
        specs = closed_loops(quick=given.quick) + open_loops(rates, quick=given.quick)
        for name, config in sleeping(given.slower).items():
            cells += compare(name, config, [1], specs, seconds, rounds)
    if "jpeg" in given.part:
        with tempfile.TemporaryDirectory() as name:
            configs, data = pictures(Path(name))
            for named, config in configs.items():
                found = compare(
                    named, config, data, closed_loops(quick=given.quick), seconds, rounds
                )
                most = max(cell["rps"] for cell in found)
                rates = tuple(round(share * most, 1) for share in SHARES)
                specs = open_loops(rates, quick=given.quick)
                cells += [*found, *compare(named, config, data, specs, seconds, rounds)]
    save(given.json, about, {"cells": cells})


if __name__ == "__main__":
    main()
