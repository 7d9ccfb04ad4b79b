"""What `headrace tune` finds, beside the best of an exhaustive grid, in a quarter of its runs.

Pipelines run for real under a closed loop, over a grid of values:

- ``sleep``: one node, `instance_num`, `max` and `batching_timeout`; batches sleep for times that are written
  below, so that the best of the grid is known by computation (`headrace simulate` with these times) and
  other work on the machine decides little.
- ``line``: two nodes that sleep, `instance_num` of both and `max` of the second.
- ``class``: JPEG to class on a light network, `instance_num`, `max` and `batching_timeout`. Worth something on a quiet
  machine alone.

First every combination runs once, and the best of them is the grid's choice. Then `tune` searches three
times, with three seeds, each with a quarter of as many runs of the same length. After one run each, the best
combination looks better than it is: its run was lucky. So at the end the choices are measured again, in turn and for
several rounds: the grid's choice, the three of `tune`, and for the sleeping pipelines the best by computation. Printed
is the throughput of each choice of `tune` over that of the grid's choice (the median of the ratios, round by round);
aimed at is 0.98, three times of three.

- ``simulated``: the search alone, on grids that `headrace simulate` gives for batches of a fixed
  time and one per request, on machines of some cores which more instances share. Nothing is measured there.

    python -m benchmarks.observe_tune [--part sleep line class simulated] [--seconds 1] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.load import arguments, environment, print_environment, save
from benchmarks.observe_simulate import pictures

import headrace
from headrace_observe.bench import LoadSpec, measure_loads
from headrace_observe.goals import read_goal
from headrace_observe.layered import layered
from headrace_observe.measurement import Plan, Point
from headrace_observe.search import search
from headrace_observe.service_times import ServiceTimes
from headrace_observe.simulate import simulation_of
from headrace_observe.space import as_layer, space_of
from headrace_observe.tuning import Trials

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_observe.space import Dimension

    Values = tuple[int, ...]
    Run = Callable[[Values], Point]

PARTS = ("sleep", "line", "class", "simulated")
RANGES = ["instance_num=1,2,3,4", "max=1,2,3,4,6,8,12,16", "batching_timeout=0,1,2"]
OF_TWO = ["decode.instance_num=1,2,3,4", "infer.instance_num=1,2,3", "infer.max=1,2,3,4,6,8,12,16"]
SMALL = {1: ["instance_num=1,2", "max=1,4"], 2: ["decode.instance_num=1,2", "infer.max=1,4"]}
CLIENTS = {"sleep": 24, "line": 24, "class": 10}
SLEEP = {"main": {"backend": "Shared"}}
LINE = {
    "decode": {"backend": "Shared", "ms": 4, "per_item": 0, "max": 1, "next": "infer"},
    "infer": {"backend": "Shared", "ms": 8, "per_item": 2, "beyond": 0},
}
SEEDS = (0, 1, 2)
WANTED = 0.98
MACHINES = [
    # Fixed ms per batch, ms per request, cores, clients.
    *((0.3, 0.5, 2, 4), (0.3, 0.5, 4, 40), (3.0, 0.2, 1, 10), (3.0, 1.0, 2, 10)),
    *((0.0, 3.0, 4, 10), (10.0, 0.5, 2, 40), (10.0, 3.0, 2, 10), (1.0, 1.0, 4, 4)),
]


def sleep_ms(
    size: int, instances: int, ms: float = 12.0, per_item: float = 1.0, beyond: float = 30.0
) -> float:
    """Return how long a batch sleeps.

    The formula imitates a device: it fills a batch up to a multiple of four, a batch above eight
    takes longer because it no longer fits a cache, and more than two instances share the device.
    """
    full = -(-size // 4) * 4
    return max(1.0, instances / 2) * (ms + per_item * full + (beyond if size > 8 else 0.0))


class Shared(headrace.Backend):
    """Sleep as long as `sleep_ms` says."""

    max = None

    class Options(headrace.Options):
        """The arguments of `sleep_ms` beside the size of the batch."""

        instances: int = 1
        ms: float = 12.0
        per_item: float = 1.0
        beyond: float = 30.0

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Keep the arguments of `sleep_ms`."""
        self.about = (options.instances, options.ms, options.per_item, options.beyond)

    def forward(self, batch: list[dict[str, Any]]) -> None:
        """Sleep, then give `data` back."""
        time.sleep(sleep_ms(len(batch), *self.about) / 1000)
        for request in batch:
            request["result"] = request["data"]


def space_for(config: dict[str, Any], *, quick: bool) -> list[Dimension]:
    nodes = headrace.explain(headrace.PipelineConfig.load(config))["nodes"]
    ranges = OF_TWO if len(nodes) == 2 else RANGES
    return space_of(nodes, SMALL[len(nodes)] if quick else ranges, threads=1)


def grid_of(space: list[Dimension]) -> list[Values]:
    return list(itertools.product(*(one.values for one in space)))


def changed(config: dict[str, Any], space: list[Dimension], values: Values) -> dict[str, Any]:
    made = layered(config, as_layer(space, values, one_node="backend" in config))
    for node in made.values():  # Shared must know how many instances share the device
        if isinstance(node, dict) and node["backend"] == "Shared":
            node["instances"] = node.get("instance_num", 1)
    return made


def runs_of(
    config: dict[str, Any], space: list[Dimension], data: list[Any], clients: int, seconds: float
) -> Run:
    """Give a function that measures one combination of values."""

    def run(values: Values) -> Point:
        points: list[Point] = []
        with headrace.pipe(changed(config, space, values)) as pipe:
            samples = [{"data": one} for one in data]
            plan = Plan(0.3 * seconds, seconds=seconds)
            measure_loads(pipe, samples, [LoadSpec(clients=clients)], plan, points.append)
        return points[0]

    return run


def computed(config: dict[str, Any], space: list[Dimension], clients: int) -> dict[Values, float]:
    """Give the throughput of every combination by the known times of its batches."""
    found = {}
    for values in grid_of(space):
        made = changed(config, space, values)
        times = {}
        for name, node in made.items():
            keys = ("instances", "ms", "per_item", "beyond")
            about = {key: node[key] for key in keys if key in node}
            known = {size: [sleep_ms(size, **about)] for size in range(1, 17)}
            times[name] = ServiceTimes(name, known, "computed")
        run = simulation_of(headrace.PipelineConfig.load(made), times, 1, 1e-4)
        found[values] = run.closed_loop(clients, 3000, 500).throughput_rps
    return found


def judged(
    name: str, config: dict[str, Any], data: list[Any], given: Any, seconds: float, rounds: int
) -> dict[str, Any]:
    """Run the grid, let `tune` search three times, and measure what was chosen again, in turn."""
    space, clients = space_for(config, quick=given.quick), CLIENTS[name]
    run = runs_of(config, space, data, clients, seconds)
    grid = {values: run(values).throughput_rps for values in grid_of(space)}
    trials = max(1, len(grid) // 4)
    choices: dict[str, Values] = {"grid": max(grid, key=grid.__getitem__)}
    known = {} if name == "class" else computed(config, space, clients)
    if known:
        choices["computed"] = max(known, key=known.__getitem__)
    for seed in SEEDS:
        tried = Trials(space, read_goal("max throughput"), run)
        tried.search(trials, seed=seed)
        best = tried.best
        choices[f"tune {seed}"] = best.values if best else choices["grid"]
    # Each combination is measured once per round: equal choices get the same figures.
    finals: dict[Values, list[float]] = {values: [] for values in choices.values()}
    for _, values in itertools.product(range(rounds), finals):
        finals[values].append(run(values).throughput_rps)
    keys = ", ".join(one.name for one in space)
    spread = f"{min(grid.values()):.0f} to {max(grid.values()):.0f} requests per second"
    print(f"{name}: {len(grid)} combinations of {keys}, {spread}; {trials} runs of tune")
    shares: dict[str, float] = {}
    for who, values in choices.items():
        pairs = zip(finals[values], finals[choices["grid"]], strict=True)
        shares[who] = statistics.median(a / b for a, b in pairs)
        rps = statistics.median(finals[values])
        by_times = f"  {known[values] / max(known.values()):.3f} by computation" if known else ""
        print(f"  {who:10}{values!s:14}{rps:8.1f}/s  {shares[who]:.3f} of the grid's{by_times}")
    of_tune = [who for who in choices if who.startswith("tune")]
    reached = sum(shares[who] >= WANTED for who in of_tune)
    print(f"  {reached} of {len(of_tune)} at least {WANTED} of the grid's choice, measured again")
    if known:
        reached = sum(known[choices[who]] >= WANTED * max(known.values()) for who in of_tune)
        print(f"  {reached} of {len(of_tune)} at least {WANTED} of the best, by computation")
    return {
        "grid": [[list(values), rps] for values, rps in grid.items()],
        "trials": trials,
        "choices": {who: list(values) for who, values in choices.items()},
        "shares": shares,
        "computed_shares": {
            who: known[values] / max(known.values()) for who, values in choices.items() if known
        },
    }


def simulated(machine: tuple[float, float, int, int], *, quick: bool) -> dict[str, Any]:
    """Search a grid that is simulated: more instances than cores share these."""
    fixed_ms, each_ms, cores, clients = machine
    space = space_for({"backend": "S[Identity]"}, quick=quick)
    surface: dict[Values, float] = {}
    for values in grid_of(space):
        config = {"backend": "S[Identity]", **as_layer(space, values, one_node=True)}
        shared, draw = max(1.0, values[0] / cores), random.Random(0)
        times = {
            size: [shared * (fixed_ms + each_ms * size) * draw.uniform(1, 1.2) for _ in range(40)]
            for size in range(1, 17)
        }
        loaded = headrace.PipelineConfig.load(config)
        run = simulation_of(loaded, {"main": ServiceTimes("main", times, "simulated")}, 1)
        surface[values] = run.closed_loop(clients, 1500, 300).throughput_rps
    trials, best = max(1, len(surface) // 4), max(surface.values())
    print(f"{fixed_ms:g} ms + {each_ms:g} ms each, {cores} cores, {clients} clients: {trials} runs")
    shares: list[float] = []
    for seed in SEEDS:
        seen: dict[Values, float] = {}

        def evaluate(values: Values) -> float:
            return seen.setdefault(values, surface[values])  # noqa: B023 - called within this turn

        search(space, evaluate, trials, seed=seed)
        shares.append(max(seen.values()) / best)
    reached = sum(share >= WANTED for share in shares)
    shown = ", ".join(f"{share:.3f}" for share in shares)
    print(f"  {shown}   {reached} of {len(shares)} at least {WANTED}")
    return {"trials": trials, "shares": shares}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=1.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=5, help="of what was chosen, at the end")
    given = parser.parse_args()
    seconds, rounds = (0.1, 1) if given.quick else (given.seconds, given.rounds)
    about = environment(["headrace", "headrace-observe", "onnxruntime"])
    print_environment(about)
    headrace.register("Shared", Shared)
    figures: dict[str, Any] = {}
    for name, config in (("sleep", SLEEP), ("line", LINE)):
        if name in given.part:
            figures[name] = judged(name, config, [1], given, seconds, rounds)
    if "class" in given.part:
        with tempfile.TemporaryDirectory() as folder:
            found, data = pictures(Path(folder))
            (to_class,) = found.values()
            figures["class"] = judged("class", to_class, data, given, seconds, rounds)
    if "simulated" in given.part:
        machines = MACHINES[:1] if given.quick else MACHINES
        made = [simulated(machine, quick=given.quick) for machine in machines]
        figures["simulated"] = made
    save(given.json, about, figures)


if __name__ == "__main__":
    main()
