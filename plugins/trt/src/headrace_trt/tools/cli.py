"""``headrace trt``: build, measure and refit engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace_cli.for_plugins import (
    Json,
    WrongArgument,
    print_data,
    printing_warnings,
    showing_progress,
    source_of,
)
from headrace_trt.building.settings import PRECISIONS
from headrace_trt.tools.opening import opened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.info.help = "Build, measure and refit TensorRT engines."

_OF_A_NODE = ("min", "max", "device")
"""The keys of a node that a build or a load reads beside the options."""

_SET = "May be repeated. `headrace plugins info {}` lists them; VALUE is TOML, else text."


def _settings(word: str) -> Any:
    text = f"Set an option of {word}, or the `device`. {_SET.format(word)}"
    return typer.Option("--set", metavar="KEY=VALUE", help=text, show_default=False)


def _shapes_of(text: str) -> Any:
    return typer.Option(metavar="SHAPES", help=f"{text}; once per optimization profile.")


Many = list[str] | None
Building = Annotated[Many, _settings("Onnx2Tensorrt")]
Loading = Annotated[Many, _settings("LoadTensorrtEngine")]
ShapesOption = Annotated[
    str | None,
    typer.Option(metavar="SHAPES", help="Shapes to run at; default: the profile's best."),
]
ProfileOption = Annotated[int, typer.Option(min=0, help="Index of the optimization profile.")]
File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The file.")]
Plan = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The plan.")]


@app.command("build")
def build_command(
    model: Annotated[
        Path | None,
        typer.Argument(exists=True, dir_okay=False, help="The ONNX file."),
    ] = None,
    engine: Annotated[
        Path | None,
        typer.Option("--engine", "-o", help="Where the plan goes; default: the engine cache."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar="|".join(PRECISIONS), help="The type to compute in."),
    ] = None,
    min_shapes: Annotated[Many, _shapes_of("Smallest shapes, as x:1x3x224x224,m:1x10")] = None,
    opt_shapes: Annotated[Many, _shapes_of("Shapes to be fastest at")] = None,
    max_shapes: Annotated[Many, _shapes_of("Largest shapes")] = None,
    settings: Building = None,
    as_json: Json = False,
) -> None:
    """Build an engine, or find it in the cache; print what was built and how long it took.

    Without shapes there is one profile, whose rows go from `min` to `max` (``--set max=8``).
    """
    from headrace_trt.building.obtaining import build_engine

    values = {
        "model": model,
        "engine": engine,
        "precision": precision,
        "profiles": _profiles({"min": min_shapes, "opt": opt_shapes, "max": max_shapes}),
    }
    source, options = _checked("Onnx2Tensorrt", settings, values)
    if options.profiles and {"min", "max"} & {*source}:
        raise WrongArgument("the profiles say the rows of a batch: leave out min and max")
    settings_ = options.settings(min=source.get("min"), max=source.get("max"))
    with printing_warnings(), showing_progress() as progress:
        plan = build_engine(
            settings_,
            engine=options.engine,
            cache_dir=options.cache_dir,
            cache_size_bytes=options.cache_size_bytes,
            device=_device_in_key(source.get("device")),
            progress=progress,
        )
    kept_nowhere = settings_.network is not None and options.engine is None
    facts = ("library", "seconds", "layers_by_type", "profiles", "warnings")
    report = {
        "engine": None if kept_nowhere else str(plan.path),
        "cache_hit": plan.hit,
        "bytes": len(plan.plan),
        **{key: plan.sidecar.get(key) for key in facts},
    }
    _print_report(report, as_json)


@app.command("bench")
def bench_command(  # noqa: PLR0913, PLR0917 - options of the command line
    plan: Plan,
    shapes: ShapesOption = None,
    profile: ProfileOption = 0,
    streams: Annotated[int, typer.Option(min=1, help="Contexts that run at a time.")] = 1,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Record runs as CUDA graphs.")
    ] = False,
    copies: Annotated[
        bool, typer.Option("--copies", help="Copy inputs and outputs in each run.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="End after this if not stable.")] = 5.0,
    settings: Loading = None,
    as_json: Json = False,
) -> None:
    """Measure an engine alone until it is stable; print what the clock covers."""
    from headrace_trt.tools.benching import bench_engine

    run_shapes = _shapes(shapes)
    with opened(plan, **_loading(plan, settings)) as (engine, cuda):
        report = bench_engine(
            engine,
            cuda,
            shapes=run_shapes,
            profile=profile,
            streams=streams,
            cuda_graph=cuda_graph,
            copies=copies,
            most_s=seconds,
        )
    _print_report(report.as_dict(), as_json)


@app.command("refit")
def refit_command(
    plan: Plan,
    model: File,
    target: Annotated[Path, typer.Argument(help="Where the new plan goes.")],
    settings: Loading = None,
    as_json: Json = False,
) -> None:
    """Write a plan with the weights of another model of the same graph."""
    from headrace_trt.tools.refitting import refit_plan

    report = refit_plan(plan, model, target, **_loading(plan, settings))
    _print_report(report, as_json)


def _print_report(report: Mapping[str, Any], as_json: bool) -> None:
    """Print a report as one JSON object, or a line for each of its facts."""
    if as_json:
        print_data(json.dumps(report, indent=1, default=str))
        return
    width = max(map(len, report))
    for key, value in report.items():  # not as a table, which would cut or wrap long paths
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        print_data(f"{key:{width}}  {text}")


def _checked(
    word: str, settings: Sequence[str] | None, values: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return a configuration of a word, and its checked options.

    Raises:
        ConfigError: An option is unknown or its value is wrong.
        WrongArgument: A setting is said twice, or nothing reads it.
    """
    source: Any = source_of(word, settings or ())
    for key, value in values.items():
        if value is not None and key in source:
            raise WrongArgument(f"--set {key}: another argument says the {key} already")
        if value is not None:
            source[key] = str(value).replace("${", "$${") if isinstance(value, Path) else value
    if source["backend"] != word:
        raise WrongArgument(f"--set backend: it is {word} here")
    backend: Any = headrace.plugins.resolve(source)
    for key in {*source} - {"backend", *_OF_A_NODE, *type(backend.options).model_fields}:
        raise WrongArgument(f"--set {key}: it is no option of {word}, and nothing reads it here")
    return source, backend.options


def _loading(plan: Path, settings: Sequence[str] | None) -> dict[str, Any]:
    """Return how a plan is loaded, as `opened` takes it."""
    source, _ = _checked("LoadTensorrtEngine", settings, {"model": plan})
    return {key: value for key, value in source.items() if key not in ("backend", "model")}


def _profiles(shapes: Mapping[str, list[str] | None]) -> list[dict[str, str]] | None:
    ranges = {key: value for key, value in shapes.items() if value}
    if not ranges:
        return None
    count = len(ranges.get("max", ()))
    if any(len(value) != count for value in ranges.values()):
        raise WrongArgument(
            "--max-shapes must be given once per profile, --min-shapes and --opt-shapes as often or"
            " not at all"
        )
    return [{key: value[i] for key, value in ranges.items()} for i in range(count)]


def _device_in_key(device: str | None) -> dict[str, Any] | None:
    """Describe the device that takes part in a build; None where there is none."""
    from headrace_trt.libraries.cuda import device_of, load_cuda

    cuda = load_cuda()
    if device is None and not cuda.device_count():
        return None
    ordinal = device_of(device, cuda)
    cuda.set_device(ordinal)
    return cuda.describe(ordinal)


def _shapes(text: str | None) -> dict[str, tuple[int, ...]] | None:
    from headrace_trt.building.profiles import parse_shapes

    return None if text is None else parse_shapes(text)
