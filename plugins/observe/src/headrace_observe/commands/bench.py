"""``headrace bench``: throughput and latency of configurations under loads, in turn."""

from __future__ import annotations

import contextlib
import itertools
import json as _json
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
import headrace_observe
from headrace.hookspecs import attached
from headrace_cli.for_plugins import (
    CLOSE_S,
    FAILED,
    INTERRUPTED,
    OK,
    Config,
    Json,
    NoImport,
    Settings,
    WrongArgument,
    hinting_at_a_file,
    ports_of,
    print_data,
    print_message,
    printing_warnings,
    showing_progress,
    source_of,
)
from headrace_observe.bench.benchmark import measure_loads
from headrace_observe.bench.measurement import Plan, Point
from headrace_observe.bench.plots import check_plot
from headrace_observe.bench.rows import HEADINGS, load_name, row
from headrace_observe.bench.samples import random_rows
from headrace_observe.commands.arguments import (
    Arrivals,
    Inputs,
    PlotOfLoads,
    RandomArrays,
    Rates,
    check_outputs,
    loads_of,
    percent,
    samples_of,
    seconds_option,
)
from headrace_observe.commands.printing import (
    plot_loads,
    print_document,
    print_failures,
    print_missing_gpus,
    print_missing_psutil,
    print_table,
)
from headrace_observe.environment import environment
from headrace_observe.explain.cures import replay_of
from headrace_observe.memory import Memory
from headrace_observe.probes.remember import Remember

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace_observe.bench.benchmark import LoadSpec

__all__ = ["bench"]


def bench(  # noqa: PLR0913, PLR0917 - one per option
    config: Config,
    inputs: Inputs = None,
    data: RandomArrays = None,
    clients: Annotated[
        str | None,
        typer.Option(
            "--clients",
            metavar="N,...",
            help="Closed loop: the number of threads; each sends its next request when it has its answer.",
            show_default="1,10,40, without another load",
        ),
    ] = None,
    rate: Rates = None,
    arrivals: Arrivals = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against",
            metavar="CONFIG",
            help="Another configuration, measured in turn with the first; may be repeated.",
        ),
    ] = None,
    warm_up: Annotated[
        float, seconds_option("--warm-up", "Seconds of load before measuring.", 0.0)
    ] = 1.0,
    stable: Annotated[
        str,
        typer.Option(
            "--stable", metavar="N%", help="How far three windows of a second may differ to end."
        ),
    ] = "5%",
    seconds: Annotated[
        float | None,
        seconds_option("--seconds", "Measure this many seconds, stable or not.", 0.001),
    ] = None,
    plot_path: PlotOfLoads = None,
    save_times: Annotated[
        str | None,
        typer.Option(
            "--save-times",
            metavar="FILE",
            help="Write the last 20,000 runs of each load, for `headrace simulate` and `headrace tune`. "
            "The probe Remember notes them during the measurement.",
        ),
    ] = None,
    json: Json = False,
    settings: Settings = None,
    no_import: NoImport = False,
) -> int:
    """Measure throughput and latency of a pipeline under load.

    Each load runs until three windows in a row agree in throughput and median latency (an open loop:
    in median latency), and the figures are those of these windows, with --seconds, of that time.
    Percentiles are exact, of all requests that ended in it. A closed loop's clock runs from the call
    to the answer. An open loop's runs from the time at which a request was meant to arrive: so it includes waits
    while the pipeline stalls, which a closed loop's leaves out.

    TOML files between CONFIG and the first INPUT (or with --data) are further configurations, measured in
    turn with the first, as those of --against are.

    Without INPUT and --data random rows are sent, if the first model of CONFIG describes its inputs.

    CPU cores are those of the whole process, the sending clients included, and, with psutil, of its children. Ctrl-C prints what was
    measured until then, and ends with 130.

    \b
    Examples:
      headrace bench line.toml photos/ --clients 1,10,40
      headrace bench Identity --data uint8:16 --seconds 2 --json
      headrace bench line.toml photos/ --rate 50,100,200 --plot load.html
      headrace bench line.toml other.toml photos/
      headrace bench line.toml photos/ --save-times times.jsonl
    """  # noqa: D301 - typer keeps the lines after a backspace character
    loads = loads_of(clients, rate, arrivals, "1,10,40")
    plan = Plan(warm_up, tolerance=percent(stable, "--stable"), seconds=seconds)
    check_outputs(
        {"--plot": plot_path, "--save-times": save_times},
        [config, *(inputs or ()), *(against or ()), arrivals or config],
    )
    check_plot(plot_path)
    more, files = _configurations(inputs or (), data or ())
    if save_times is not None and (against or more):
        raise WrongArgument("--save-times takes one configuration, and there are several")
    if files or data:
        samples_of(files, data or ())  # what cannot be read is told before anything is built
    names = [config, *more, *(against or ())]
    sources: list[Any] = [source_of(name, settings or ()) for name in names]
    points: list[tuple[int, Point]] = []
    with printing_warnings(), contextlib.ExitStack() as opened:
        pipelines = []
        for name, source in zip(names, sources, strict=True):
            with showing_progress() as bars, hinting_at_a_file(name):
                pipe = headrace.pipe(source, allow_import=not no_import, progress=bars)
            opened.callback(pipe.close, drain=False, timeout=CLOSE_S)
            pipelines.append(pipe)
        samples = _samples(files, data or (), pipelines[0])
        explained = [headrace.explain(pipe.config) for pipe in pipelines]
        memories: list[Memory] | None = None if save_times is None else []
        whole = _in_turn(pipelines, samples, loads, plan, points, memories)
        advised = [_advised(pipe) for pipe in pipelines]
        if memories and save_times is not None:
            _save(memories, pipelines[0].config, save_times)
    document = _document(names, points, interrupted=not whole)
    for entry, found, advice in zip(document["configurations"], explained, advised, strict=True):
        entry["explain"], entry["advice"] = found, advice
    plot_loads(plot_path, _rows(document), "headrace bench")
    if json:
        print_document(document)
    else:
        _print(document)
    everything = Point.of_all([point for _, point in points]) if points else None
    if everything is not None:
        print_failures(everything.failed, everything.window.errors)
    if not whole:
        return INTERRUPTED
    if not all(point.window.answered for _, point in points):
        print_message("under some loads no request ended in time: measure longer, with --seconds")
    return FAILED if everything is not None and everything.failed else OK


def _configurations(
    inputs: Sequence[str], data: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """Split the arguments after CONFIG into further configurations and INPUTs.

    The TOML files at their beginning are configurations. If all are TOML files and there is no --data, all are INPUTs.
    """
    more = list(itertools.takewhile(lambda text: text.endswith(".toml"), inputs))
    if len(more) == len(inputs) and not data:
        return (), inputs
    return more, inputs[len(more) :]


def _samples(
    files: Sequence[str], data: Sequence[str], pipeline: headrace.Pipeline
) -> list[dict[str, Any]]:
    """Return the requests for a pipeline; without files and random arrays rows for the inputs that it describes."""
    ports = ports_of(pipeline)
    if files or data:
        return samples_of(files, data, ports)
    rows = random_rows(ports or {})
    shown = ", ".join(f"{key} {array.dtype}:{array.shape}" for key, array in rows[0].items())
    print_message(f"no INPUT, so random rows are sent: {shown}")
    return rows


def _in_turn(
    pipelines: Sequence[headrace.Pipeline],
    samples: Sequence[dict[str, Any]],
    loads: Sequence[LoadSpec],
    plan: Plan,
    points: list[tuple[int, Point]],
    memories: list[Memory] | None,
) -> bool:
    """Measure all configurations under one load before the next load; return whether all were completed.

    What has run under each load is added to ``kept``.
    """
    try:
        for load in loads:
            for place, pipeline in enumerate(pipelines):

                def done(point: Point, place: int = place) -> None:
                    points.append((place, point))

                with _keeping(pipeline, memories):
                    if not measure_loads(pipeline, samples, [load], plan, done):
                        return False
    except KeyboardInterrupt:
        return False
    return True


@contextlib.contextmanager
def _keeping(pipeline: headrace.Pipeline, memories: list[Memory] | None) -> Iterator[None]:
    """Add what runs in a block to a list; None: nothing is remembered."""
    if memories is None:
        yield
        return
    remember = Remember()
    try:
        with attached(pipeline, remember):
            yield
    finally:
        memories.append(remember.memory(20_000))


def _advised(pipeline: headrace.Pipeline) -> dict[str, str]:
    """Return the advice of ``stats()`` by node, of the nodes that have any."""
    nodes = pipeline.stats()["nodes"].items()
    return {name: node["advice"] for name, node in nodes if node["advice"] is not None}


def _save(memories: Sequence[Memory], config: headrace.PipelineConfig, path: str) -> None:
    memory = Memory(
        [visit for each in memories for visit in each.visits],
        [change for each in memories for change in each.changes],
        memories[0].nodes,
    )
    memory.replay = replay_of(config, memory)
    memory.write(path)


def _document(
    names: Sequence[str], points: Sequence[tuple[int, Point]], *, interrupted: bool
) -> dict[str, Any]:
    configurations: list[dict[str, Any]] = [{"config": name, "points": []} for name in names]
    for place, point in points:
        configurations[place]["points"].append(point.to_dict())
    first = {_json.dumps(point["load"]): point for point in configurations[0]["points"]}
    for config in configurations[1:]:
        for point in config["points"]:
            base = first[_json.dumps(point["load"])]
            point["ratio"] = {
                "throughput": _ratio(point["throughput_rps"], base["throughput_rps"]),
                "p99": _ratio(point["latency_ms"]["p99"], base["latency_ms"]["p99"]),
            }
    return {
        "kind": "bench",
        "headrace_observe": headrace_observe.__version__,
        "environment": environment(),
        "interrupted": interrupted,
        "configurations": configurations,
    }


def _ratio(value: float | None, base: float | None) -> float | None:
    return round(value / base, 4) if value is not None and base else None


def _rows(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(row["config"], point) for row in document["configurations"] for point in row["points"]]


def _print(document: dict[str, Any]) -> None:
    rows = _rows(document)
    several = len(document["configurations"]) > 1
    headings = [*HEADINGS, "req/s ratio", "p99 ratio", "config"] if several else [*HEADINGS]
    cells = []
    for name, point in rows:
        ratio = point.get("ratio", {})
        values = (ratio.get(figure) for figure in ("throughput", "p99"))
        more = [*("-" if value is None else str(value) for value in values), name]
        cells.append([*row(point), *(more if several else ())])
    print_table(headings, cells, keys=(0, len(headings) - 1) if several else (0,))
    for clock in dict.fromkeys(point["clock"] for _, point in rows):
        kinds = dict.fromkeys(load_name(p["load"]) for _, p in rows if p["clock"] == clock)
        print_data(f"The clock of {', '.join(kinds)}: {clock}.")
    for config in document["configurations"]:
        for advice in config["advice"].values():
            print_message(f"{config['config']}: {advice}" if several else advice)
    print_missing_gpus()
    explained = (config["explain"] for config in document["configurations"])
    print_missing_psutil(explained, (point for _, point in rows))
    if document["interrupted"]:
        print_message("interrupted: these are the figures until then")
