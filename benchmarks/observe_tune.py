"""What the search of `headrace tune` finds, beside the best of an exhaustive grid, in a quarter of its runs.

The grids of two pipelines are run for real under a closed loop, every combination several times in turn:

- ``class``: JPEG to class on a light network.
- ``thumb``: JPEG to a small JPEG.

The search then runs on what was recorded, with three seeds, by each method, and may look at a quarter of the
combinations: once on the medians, so that noise is no part of it, and once on runs that are drawn from those
recorded, so that it is. Printed is what the combination it ends with has by the medians, over the best of the
grid; aimed at is 0.98, three times of three. ``--record`` keeps the runs, and ``--replay`` takes them in place
of this machine's, which may be busy.

- ``simulated``: grids that `headrace simulate` gives for batches of a fixed time and one per request, on
  machines of some cores which more instances share. They are the same on every machine, and nothing is measured.

    python -m benchmarks.observe_tune [--part class thumb simulated] [--seconds 1] [--rounds 3] [--json FILE]
        [--record FILE] [--replay FILE]
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save
from benchmarks.observe_simulate import pictures

import headrace
from headrace_observe.bench import LoadSpec, measure_loads
from headrace_observe.layered import layered
from headrace_observe.measurement import Plan, Point
from headrace_observe.search import search
from headrace_observe.service_times import ServiceTimes
from headrace_observe.simulate import simulation_of
from headrace_observe.space import as_layer, space_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_observe.space import Dimension

    Runs = dict[tuple[int, ...], list[float]]

PARTS = ("class", "thumb", "simulated")
METHODS = ("optuna", "climb")
RANGES = ["instance_num=1,2,3,4", "max=1,2,3,4,6,8,12,16", "batching_timeout=0,1,2"]
SMALL = ["instance_num=1,2", "max=1,4"]
CLIENTS = 10
SEEDS = (0, 1, 2)
WANTED = 0.98
MACHINES = [
    # fixed ms per batch, ms per request, cores, clients
    *((0.3, 0.5, 2, 4), (0.3, 0.5, 4, 40), (3.0, 0.2, 1, 10), (3.0, 1.0, 2, 10)),
    *((0.0, 3.0, 4, 10), (10.0, 0.5, 2, 40), (10.0, 3.0, 2, 10), (1.0, 1.0, 4, 4)),
]
THUMB = {"backend": "S[DecodeMat,ResizeMat(64,64),EncodeMat]"}


def space_for(config: dict[str, Any], *, quick: bool) -> list[Dimension]:
    nodes = headrace.explain(headrace.PipelineConfig.load(config))["nodes"]
    return space_of(nodes, SMALL if quick else RANGES)


def grid_of(space: list[Dimension]) -> list[tuple[int, ...]]:
    return list(itertools.product(*(one.values for one in space)))


def throughput(config: dict[str, Any], data: list[Any], seconds: float) -> float:
    points: list[Point] = []
    with headrace.pipe(config) as pipe:
        samples = [{"data": one} for one in data]
        plan = Plan(0.3 * seconds, seconds=seconds)
        measure_loads(pipe, samples, [LoadSpec(clients=CLIENTS)], plan, points.append)
    return points[0].throughput_rps


def measured(
    config: dict[str, Any], space: list[Dimension], data: list[Any], seconds: float, rounds: int
) -> Runs:
    """Run every combination several times, in turn."""
    runs: Runs = {values: [] for values in grid_of(space)}
    for _, values in itertools.product(range(rounds), runs):
        changed = layered(config, as_layer(space, values, one_node=True))
        runs[values].append(throughput(changed, data, seconds))
    return runs


def simulated(machine: tuple[float, float, int, int], space: list[Dimension]) -> Runs:
    """Simulate every combination: more instances than cores share these."""
    fixed_ms, each_ms, cores, clients = machine
    runs: Runs = {}
    for values in grid_of(space):
        config = {"backend": "S[Identity]", **as_layer(space, values, one_node=True)}
        shared, draw = max(1.0, values[0] / cores), random.Random(0)
        times = {
            size: [shared * (fixed_ms + each_ms * size) * draw.uniform(1, 1.2) for _ in range(40)]
            for size in range(1, 17)
        }
        loaded = headrace.PipelineConfig.load(config)
        run = simulation_of(loaded, {"main": ServiceTimes("main", times, "simulated")}, 1)
        runs[values] = [run.closed_loop(clients, 1500, 300).throughput_rps]
    return runs


def shares_of(space: list[Dimension], runs: Runs, trials: int) -> dict[str, list[float]]:
    """Let each method search with each seed; give what it ends with over the best."""
    surface = {values: statistics.median(each) for values, each in runs.items()}
    best = max(surface.values())
    figures: dict[str, Callable[[tuple[int, ...], random.Random], float]] = {
        "": lambda values, _: surface[values]
    }
    if any(len(each) > 1 for each in runs.values()):
        figures[", noise"] = lambda values, draw: draw.choice(runs[values])
    shares: dict[str, list[float]] = {}
    for (kind, figure), how, seed in itertools.product(figures.items(), METHODS, SEEDS):
        seen: dict[tuple[int, ...], float] = {}
        draw = random.Random(seed)

        def evaluate(values: tuple[int, ...]) -> float:
            seen[values] = figure(values, draw)  # noqa: B023 - called within this turn
            return seen[values]  # noqa: B023

        search(space, evaluate, trials, how=how, seed=seed)
        found = surface[max(seen, key=seen.__getitem__)] / best
        shares.setdefault(how + kind, []).append(found)
    return shares


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each combination")
    parser.add_argument("--record", type=Path, help="where the runs go, as JSON")
    parser.add_argument("--replay", type=Path, help="runs that were recorded")
    given = parser.parse_args()
    seconds, rounds = (0.1, 1) if given.quick else (given.seconds, given.rounds)
    about = environment(["headrace", "headrace-observe", "onnxruntime", "optuna"])
    print_environment(about)
    figures: dict[str, Any] = {}
    kept = json.loads(given.replay.read_text()) if given.replay else {}
    recorded: dict[str, Any] = {}

    def judge(name: str, space: list[Dimension], runs: Runs) -> None:
        trials = max(1, len(runs) // 4)
        shares = shares_of(space, runs, trials)
        print(f"{name}: {len(runs)} combinations, {trials} trials")
        for how, each in shares.items():
            shown = ", ".join(f"{share:.3f}" for share in each)
            reached = sum(share >= WANTED for share in each)
            print(f"  {how:15}{shown}   {reached} of {len(each)} at least {WANTED}")
        recorded[name] = [[list(values), each] for values, each in runs.items()]
        figures[name] = {"runs": recorded[name], "trials": trials, "shares": shares}

    with tempfile.TemporaryDirectory() as folder:
        found, data = pictures(Path(folder))
        (to_class,) = found.values()
        for part, config in (("class", to_class), ("thumb", THUMB)):
            if part not in given.part:
                continue
            space = space_for(config, quick=given.quick)
            if part in kept:
                runs = {tuple(values): each for values, each in kept[part]}
            else:
                runs = measured(config, space, data, seconds, rounds)
            judge(part, space, runs)
    if "simulated" in given.part:
        space = space_for({"backend": "S[Identity]"}, quick=given.quick)
        for machine in MACHINES[:1] if given.quick else MACHINES:
            fixed_ms, each_ms, cores, clients = machine
            name = (
                f"simulated {fixed_ms:g} ms + {each_ms:g} ms each, {cores} cores, {clients} clients"
            )
            judge(name, space, simulated(machine, space))
    if given.record:
        given.record.write_text(json.dumps(recorded), encoding="utf-8")
    save(given.json, about, figures)


if __name__ == "__main__":
    main()
