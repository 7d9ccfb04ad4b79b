"""``headrace simulate``: the pipeline of a configuration under loads, in virtual time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import headrace
import headrace_observe
from headrace_cli.for_plugins import (
    INTERRUPTED,
    OK,
    Config,
    Json,
    NoImport,
    Settings,
    WrongArgument,
    hinting_at_a_file,
    print_data,
    print_message,
    source_of,
)
from headrace_observe.bench.arrivals import read_samples
from headrace_observe.bench.plots import check_plot
from headrace_observe.bench.rows import HEADINGS, load_name, row
from headrace_observe.commands.arguments import (
    Arrivals,
    PlotOfLoads,
    Rates,
    loads_of,
    times_in,
    writable,
)
from headrace_observe.commands.printing import plot_loads, print_document, print_table
from headrace_observe.environment import environment
from headrace_observe.simulate.from_config import foretell, simulation_of
from headrace_observe.simulate.virtual_pipeline import SIMULATED_CLOCK

__all__ = ["simulate"]

_SHOWN = [
    k for k, heading in enumerate(HEADINGS) if heading not in ("CPU cores", "GPU %", "stable")
]


_WAKES_S = (20e-6, 100e-6)
"""How long a thread takes to wake up, on a quiet machine and on a busy one; the range of rates is tried with both."""

_FEW = 20_000
"""The number of requests with which the throughput is simulated for each of `_WAKES_S`."""

_SAME = 0.03
"""The range of rates is printed if it is wider than this share of the greatest rate."""


def simulate(  # noqa: PLR0913, PLR0917 - one per option
    config: Config,
    times: Annotated[
        str,
        typer.Option(
            "--times",
            metavar="FILE",
            help="What `bench --save-times FILE` or `observe why --save FILE` has written, or milliseconds "
            'per batch, by node and batch size: {"main": {"1": 2.0, "8": [4.1, 4.3]}}.',
        ),
    ],
    clients: Annotated[
        str | None,
        typer.Option("--clients", metavar="N,...", help="Closed loop: the number of clients."),
    ] = None,
    rate: Rates = None,
    arrivals: Arrivals = None,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="FILE",
            help='Sample requests, one JSON object per line, as {"length": 12}: what policies that pick '
            "compare. Each request is like one of them.",
        ),
    ] = None,
    requests: Annotated[
        int, typer.Option("--requests", min=1, help="How many are sent, with the warm-up.")
    ] = 100_000,
    warm_up: Annotated[
        int | None,
        typer.Option(
            "--warm-up",
            min=0,
            help="Answers before the figures begin.",
            show_default="a tenth of the requests",
        ),
    ] = None,
    plot_path: PlotOfLoads = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of arrivals and of times.")] = 0,
    json: Json = False,
    settings: Settings = None,
    no_import: NoImport = False,
) -> int:
    """Predict throughput, latencies, batch sizes and refusals of a configuration.

    The pipeline runs in virtual time, with its nodes, queues and policies. In place of each backend something waits
    for the time in --times, drawn from the spread of the batch's size. The times of a missing size are interpolated.
    It needs the extra `headrace-observe[simulate]`. So loads and numbers of instances can be tried
    that this machine does not have: `--set instance_num=8`. Clients and switches of threads take the times that were
    measured for them, and batches take longer beside others as far as that was measured. Figures leave out the warm-up
    and requests that end after the last one is sent.

    \b
    Examples:
      headrace simulate line.toml --times times.jsonl --clients 1,10,40
      headrace simulate line.toml --times times.jsonl --rate 200 --set instance_num=8 --seed 1
      headrace simulate line.toml --times times.jsonl --arrivals monday.txt --json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    loads = loads_of(clients, rate, arrivals, None, seed=seed, threads=False)
    writable(plot_path, "--plot", [config, times, arrivals or config])
    check_plot(plot_path)
    if warm_up is not None and warm_up >= requests:
        raise WrongArgument(f"--warm-up {warm_up}: it is not below --requests {requests}")
    known = times_in(times, arrivals)
    samples = [] if like is None else read_samples(like)
    with hinting_at_a_file(config):
        source = source_of(config, settings or ())
        loaded = headrace.PipelineConfig.load(source, allow_import=not no_import)
    points: list[dict[str, Any]] = []
    interrupted = False
    try:
        for load in loads:
            run = simulation_of(loaded, known, seed, like=samples)
            point = foretell(run, load, requests, warm_up)
            if load.clients is not None:
                few = min(requests, _FEW)
                rates = [
                    foretell(simulation_of(loaded, known, seed, wake_s, samples), load, few)
                    for wake_s in _WAKES_S
                ]
                rps = [run.throughput_rps for run in (point, *rates)]
                point.more["throughput_range_rps"] = [round(min(rps), 3), round(max(rps), 3)]
            points.append(point.to_dict())
    except KeyboardInterrupt:
        interrupted = True
    document = {
        "kind": "simulate",
        "headrace_observe": headrace_observe.__version__,
        "environment": environment(),
        "interrupted": interrupted,
        "configurations": [
            {"config": config, "points": points, "explain": headrace.explain(loaded)}
        ],
    }
    plot_loads(plot_path, [(config, point) for point in points], "headrace simulate")
    if json:
        print_document(document)
    else:
        _print(points)
    if interrupted:
        print_message("interrupted: these are the loads that were finished")
    return INTERRUPTED if interrupted else OK


def _print(points: list[dict[str, Any]]) -> None:
    headings = [*(HEADINGS[k] for k in _SHOWN), "utilisation"]
    rows = []
    for point in points:
        cells = row(point)
        busy = point["utilisation"]
        shares = [f"{n} {u:.0%}" if len(busy) > 1 else f"{u:.0%}" for n, u in busy.items()]
        rows.append([*(cells[k] for k in _SHOWN), ", ".join(shares)])
    print_table(headings, rows)
    print_data(f"The clock: {SIMULATED_CLOCK}.")
    for point in points:
        low, high = point.get("throughput_range_rps", (0.0, 0.0))
        if high - low > _SAME * high:
            print_data(
                f"{load_name(point['load'])}: {low:.1f} to {high:.1f} req/s, by how fast threads wake up. "
                "The loop has several rhythms, and a real run may change between them."
            )
    beyond = {
        name: sizes for point in points for name, sizes in point["extrapolated"].items() if sizes
    }
    for name, sizes in beyond.items():
        listed = ", ".join(map(str, sizes))
        print_data(f"Node {name}: the times of batches of {listed} are extrapolated.")
