"""``headrace tune``: searches the values of keys with which a configuration reaches a goal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
import headrace_observe
from headrace.errors import ConfigError, HeadraceError
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
    is_file,
    print_data,
    print_message,
    printing_warnings,
    source_of,
)
from headrace_formats import write_toml
from headrace_observe.bench.benchmark import LoadSpec, measure_loads
from headrace_observe.bench.measurement import Plan, Point
from headrace_observe.bench.plots import check_plot, frontier_panel, plot
from headrace_observe.bench.rows import HEADINGS, load_name, result, row
from headrace_observe.commands.arguments import (
    Inputs,
    RandomArrays,
    check_outputs,
    loads_of,
    samples_of,
    seconds_option,
    times_in,
)
from headrace_observe.commands.layered import layered
from headrace_observe.commands.printing import print_document, print_missing_psutil, print_table
from headrace_observe.environment import environment
from headrace_observe.explain.cures import MOST
from headrace_observe.files import write_text
from headrace_observe.memory import is_dump
from headrace_observe.simulate.from_config import foretell, simulation_of
from headrace_observe.tune.goals import read_goal
from headrace_observe.tune.space import as_layer, space_of, within
from headrace_observe.tune.trials import Trial, Trials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_observe.tune.space import Dimension, Value

__all__ = ["tune"]

_SHOWN = [HEADINGS.index(name) for name in ("req/s", "p50 ms", "p99 ms", "failed", "mean batch")]


def tune(  # noqa: PLR0913, PLR0917 - one per option
    config: Config,
    goal: Annotated[
        str,
        typer.Option(
            "--goal",
            metavar="GOAL",
            help="'max FIGURE' or 'min FIGURE', then limits between ';': FIGURE is throughput, mean, "
            "p50, p90, p99, max, failed or cpu, as in 'max throughput; p99 < 50ms; failed < 1%'.",
        ),
    ],
    inputs: Inputs = None,
    data: RandomArrays = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="NODE.KEY=LOW..HIGH",
            help="The keys to search: instance_num, max or batching_timeout of a node, or "
            "global.threads; also NODE.KEY=A,B,C, and NODE.instance_num=auto,A,B. May be repeated.",
            show_default="instance_num auto and up to the CPUs, max up to 64, batching_timeout up to 8",
        ),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            "--clients", metavar="N", help="Closed loop of so many clients.", show_default="40"
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="N", help="Open loop: arrivals per second (Poisson)."),
    ] = None,
    trials: Annotated[
        int,
        typer.Option(
            "--trials",
            min=1,
            help="How many runs; from 8 on a quarter of them measures the best again.",
        ),
    ] = 24,
    warm_up: Annotated[
        float | None, seconds_option("--warm-up", "Seconds before each.", 0.0, "0.5")
    ] = None,
    seconds: Annotated[
        float | None, seconds_option("--seconds", "Seconds of each.", 0.001, "2")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The TOML file for the best.")
    ] = "tuned.toml",
    plot_path: Annotated[
        str | None,
        typer.Option(
            "--plot", metavar="FILE", help="Draw the frontier: .png, .svg, .pdf or .html."
        ),
    ] = None,
    json: Json = False,
    settings: Settings = None,
    no_import: NoImport = False,
) -> int:
    """Search instance_num, max, batching_timeout and threads for a goal.

    Each combination is built and measured under the same load, CONFIG's own values first, with instance_num = "auto" where CONFIG
    writes no number. One that cannot be built,
    or fails, is a result like others. The best ones are measured again, in turn, and their figures are those of all
    their runs. No other combination beats those on the frontier in both throughput and p99. The best is written as a
    small TOML file that extends CONFIG. If none keeps the limits, the message says how close the best came, nothing
    is written, and the exit status is 1. Ctrl-C writes the best until then, if it keeps the limits, and ends with
    130.

    Where INPUT is a file of `observe why --save` or `bench --save-times`, nothing is measured: each combination is simulated with
    the requests and the times in it, the last 20,000 requests unless --clients or --rate say otherwise.

    \b
    Examples:
      headrace tune line.toml photos/ --goal "max throughput; p99 < 50ms"
      headrace tune line.toml times.jsonl --goal "min p99"
      headrace tune page.toml pages/ --goal "min p99" --range read.max=1..64 --rate 20
      headrace run tuned.toml photos/
    """  # noqa: D301 - typer keeps the lines after a backspace character
    target = read_goal(goal)
    dump = _dump_of(inputs or (), data or (), warm_up, seconds)
    loads = loads_of(clients, rate, dump if clients is None and rate is None else None, "40")
    _check(loads, [config, *(inputs or ())], output, plot_path)
    once = _runner(dump, inputs or (), data or (), loads[0], warm_up, seconds, no_import=no_import)
    source = source_of(config, settings or ())
    with hinting_at_a_file(config):
        loaded = headrace.PipelineConfig.load(source, allow_import=not no_import)
    written = _extending(output, config, {} if isinstance(source, str) else source)
    if written.keys() != {"extends"}:
        _check_meaning(output, written, loaded, no_import=no_import)
    explained = headrace.explain(loaded)
    one_node = "backend" in loaded.to_dict()
    with printing_warnings():
        space = space_of(explained["nodes"], ranges or (), explained["threads"])
        space = _that_can_differ(space, loaded, dump)

    def changed(values: tuple[Value, ...]) -> dict[str, Any]:
        return layered(source, as_layer(space, values, one_node=one_node))

    def run(values: tuple[Value, ...]) -> Point:
        print_message(f"trying {tried.named(Trial(values))}")
        return once(changed(values))

    tried, interrupted = Trials(space, target, run), False
    with printing_warnings():
        try:
            tried.search(trials)
        except KeyboardInterrupt:
            interrupted = True
    best = tried.best
    reached = best is not None and tried.reached(best)
    if best is not None and reached:
        _write(output, _extending(output, config, changed(best.values)), best, goal)
    document = {**tried.to_dict(interrupted=interrupted), "config": config, "explain": explained}
    if plot_path is not None:
        plot(plot_path, [frontier_panel(document)], f"headrace tune: {goal}", _clocks(document))
    _print(tried, document, json=json)
    if interrupted:
        print_message("interrupted: this is what was measured until then")
    if best is None or not reached:
        print_message(tried.how_close())
    elif not json:
        print_data(f"The best is in {output}: {tried.named(best)}.")
    return INTERRUPTED if interrupted else OK if reached else FAILED


def _check(
    loads: Sequence[LoadSpec], read: Sequence[str], output: str, plot_path: str | None
) -> None:
    """Refuse wrong options before anything is measured."""
    if len(loads) != 1:
        raise WrongArgument("give one load: one number of --clients, or one --rate")
    check_outputs({"--output": output, "--plot": plot_path}, read)
    check_plot(plot_path)


def _dump_of(
    inputs: Sequence[str], data: Sequence[str], warm_up: float | None, seconds: float | None
) -> str | None:
    """Return the input that is no request and has what was remembered; None for none."""
    if data or not inputs or not is_dump(inputs[0]):
        return None
    if len(inputs) > 1 or warm_up is not None or seconds is not None:
        why = "it takes no other INPUT, no --seconds and no --warm-up"
        raise WrongArgument(f"{inputs[0]} is simulated: {why}")
    return inputs[0]


def _that_can_differ(
    space: list[Dimension], config: headrace.PipelineConfig, dump: str | None
) -> list[Dimension]:
    """Build the configuration once, and leave out what its backends do not take; where it cannot be built, trials tell.

    What is simulated is not built.
    """
    if dump is not None and any(choice.node is None for choice in space):
        raise WrongArgument("--range: global.threads is not simulated")
    if dump is not None or all(choice.key != "max" for choice in space):
        return space
    try:
        pipeline = headrace.pipe(config)
    except HeadraceError:
        return space
    try:
        space, lines = within(space, pipeline.describe()["nodes"])
    finally:
        pipeline.close(drain=False, timeout=CLOSE_S)
    for line in lines:
        print_message(line)
    return space


def _runner(
    dump: str | None,
    inputs: Sequence[str],
    data: Sequence[str],
    load: LoadSpec,
    warm_up: float | None,
    seconds: float | None,
    *,
    no_import: bool,
) -> Callable[[Mapping[str, Any]], Point]:
    """Return what measures a configuration; with a dump, what simulates it."""
    if dump is None:
        plan = Plan(
            0.5 if warm_up is None else warm_up, seconds=2.0 if seconds is None else seconds
        )
        samples = samples_of(inputs, data)
        return lambda source: _measured(source, samples, load, plan, no_import=no_import)
    times = times_in(dump, load.about.get("file"))

    def foretold(source: Mapping[str, Any]) -> Point:
        config = headrace.PipelineConfig.load(source, allow_import=not no_import)
        return foretell(simulation_of(config, times), load, MOST)

    return foretold


def _measured(
    source: Mapping[str, Any],
    samples: list[dict[str, Any]],
    load: LoadSpec,
    plan: Plan,
    *,
    no_import: bool,
) -> Point:
    points: list[Point] = []
    pipeline = headrace.pipe(source, allow_import=not no_import)
    try:
        if not measure_loads(pipeline, samples, [load], plan, points.append):
            raise KeyboardInterrupt
    finally:
        pipeline.close(drain=False, timeout=CLOSE_S)
    return points[0]


def _extending(output: str, config: str, table: Any) -> dict[str, Any]:
    """Return the table to write: for a file, one that extends it by the path from the folder of the output.

    Raises:
        WrongArgument: The path holds bytes that are no text, so that TOML has no way to write it.
    """
    if not is_file(config):
        return dict(table)
    folder = Path(output).absolute().parent
    path = os.path.relpath(Path(config).absolute(), folder).replace(os.sep, "/")
    if any("\ud800" <= letter <= "\udfff" for letter in path):
        raise WrongArgument(f"{path!r} is no text, so no TOML file can extend it: rename it")
    return {**table, "extends": path.replace("${", "$${")}


def _check_meaning(
    output: str, table: dict[str, Any], loaded: headrace.PipelineConfig, *, no_import: bool
) -> None:
    """Refuse an output folder from which relative paths in ``--set``, or in an expression, name other files.

    Raises:
        WrongArgument: Read from its folder, the table is another configuration, or none.
    """
    folder = Path(output).absolute().parent
    try:
        there = headrace.PipelineConfig.load(table, base=folder, allow_import=not no_import)
        same = headrace.explain(there)["nodes"] == headrace.explain(loaded)["nodes"]
    except ConfigError:
        same = False
    if not same:
        raise WrongArgument(
            f"--output {output}: the paths in --set and in an expression would start in its folder there; "
            "write them from / on, or the output into this folder"
        )


def _write(output: str, table: dict[str, Any], best: Trial, goal: str) -> None:
    """Write the values of the best trial as a TOML file."""
    figures = best.figures or {}
    comment = (
        f"Written by headrace tune for: {goal}\n"
        f"{figures['throughput']:.1f} requests per second, p99 {figures['p99']} ms, "
        f"under the load {load_name((best.point or {})['load'])}; the clock:\n"
        f"{(best.point or {})['clock']}"
    )
    write_text(output, write_toml(table, comment))


def _print(tried: Trials, document: dict[str, Any], *, json: bool) -> None:
    if json:
        more = {"headrace_observe": headrace_observe.__version__, "environment": environment()}
        print_document({**document, **more})
        return
    names = [choice.name for choice in tried.space]
    rows = []
    for trial in document["trials"]:
        values = [str(value) for value in trial["values"].values()]
        cells = ["-"] * len(HEADINGS) if trial["point"] is None else row(trial["point"])
        line = result(trial).partition("\n")[0][:60]
        rows.append([*values, *(cells[k] for k in _SHOWN), line])
    print_table([*names, *(HEADINGS[k] for k in _SHOWN), "result"], rows, keys=range(len(names)))
    points = [trial["point"] for trial in document["trials"] if trial["point"]]
    for clock, load in {point["clock"]: load_name(point["load"]) for point in points}.items():
        print_data(f"The clock of {load}: {clock}.")
    print_missing_psutil([document["explain"]], points)


def _clocks(document: dict[str, Any]) -> list[str]:
    clocks = (trial["point"]["clock"] for trial in document["trials"] if trial["point"])
    return [*dict.fromkeys(clocks)]
