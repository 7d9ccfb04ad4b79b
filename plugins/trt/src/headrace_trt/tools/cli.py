"""``headrace trt``: build, look into, measure and change engines."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from headrace.errors import SetupError
from headrace_trt.timing import keep_apart
from headrace_trt.tools.cli_options import (
    Device,
    File,
    Json,
    kept_where,
    settings_from,
    with_build_options,
)
from headrace_trt.tools.cli_printing import phases, show, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_trt.cuda import Cuda
    from headrace_trt.engine import Engine

__all__ = ["app"]

_RECIPES = {
    "capability": "inspect capability",
    "compare": "run",
    "extract": "surgeon extract",
    "tactics": "debug build",
}
"""Commands that are gone, and the tool of Polygraphy that does the work of each."""


class _Commands(typer.core.TyperGroup):
    """The commands; those that are gone are refused with what to do instead."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the user named."""
        if tool := _RECIPES.get(args[0]):
            ctx.fail(
                f"The command {args[0]!r} is gone: take `polygraphy {tool}`."
                " docs/tensorrt/finding_faults.md shows how."
            )
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.info.help = "Build, inspect, measure and refit TensorRT engines."

Library = Annotated[str, typer.Option(help="auto, tensorrt, tensorrt_rtx or tensorrt_lean.")]
Trust = Annotated[bool, typer.Option(help="Allow plans that hold code for the host.")]
ShapesOption = Annotated[str | None, typer.Option(help="Shapes to run at, as x:1x3x224x224.")]
ProfileOption = Annotated[int, typer.Option(min=0, help="Index of the optimization profile.")]
Page = Annotated[Path | None, typer.Option(help="Write one self-contained HTML page.")]
ModelOrPlan = Annotated[
    Path, typer.Argument(exists=True, dir_okay=False, help="An ONNX file or a plan.")
]


@app.command("build")
@with_build_options
def build_command(
    model: Annotated[
        Path | None, typer.Argument(exists=True, dir_okay=False, help="The ONNX file.")
    ] = None,
    engine: Annotated[
        Path | None, typer.Option("--engine", "-o", help="Where the plan goes.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
    build: Any = None,
) -> None:
    """Build an engine, or find it in the cache; print what was built and how long it took."""
    from headrace_trt.obtaining import build_engine

    options, rows = settings_from(None if model is None else str(model), build)
    found = options.settings(**rows)
    with phases() as progress:
        kept = build_engine(
            found,
            engine=engine,
            cache_dir=options.cache_dir,
            cache_size_bytes=options.cache_size_bytes,
            device=_device_in_key(device),
            progress=progress,
        )
    report = {
        "engine": str(kept.path),
        "cache_hit": kept.hit,
        "bytes": len(kept.plan),
        **{
            key: kept.sidecar.get(key)
            for key in ("library", "seconds", "layers_by_type", "profiles", "warnings")
        },
    }
    if found.network is not None and engine is None:
        report["engine"] = None
    show(report, as_json=as_json)


@app.command("inspect")
def inspect_command(
    file: ModelOrPlan,
    library: Library = "auto",
    device: Device = None,
    trust_engine: Trust = False,
    html: Page = None,
    as_json: Json = False,
) -> None:
    """Show what is in an ONNX file (nodes and types) or a plan (profiles, layers, tactics)."""
    from headrace_trt.tools.inspecting import as_page, inspect_file, is_plan

    _keep_apart(html, file)
    if not is_plan(file):
        loading = {"library": library != "auto", "device": device, "trust-engine": trust_engine}
        _only_of_a_plan(file, [name for name, given in loading.items() if given])
    report = inspect_file(file, library=library, device=device, trust=trust_engine)
    if html is not None:
        html.write_text(as_page(report), encoding="utf-8")
    layers = report["layers"]
    show(report if as_json else {k: v for k, v in report.items() if k != "layers"}, as_json=as_json)
    if not as_json:
        table(layers, ("name", "kind", "precision", "tactic", "outputs"))


@app.command("bench")
@functools.partial(with_build_options, without=("network",))
def bench_command(  # noqa: PLR0913, PLR0917 - options of the command line
    file: ModelOrPlan,
    shapes: ShapesOption = None,
    profile: ProfileOption = 0,
    streams: Annotated[int, typer.Option(min=1, help="Contexts that run at a time.")] = 1,
    cuda_graph: Annotated[bool, typer.Option(help="Record runs as CUDA graphs.")] = False,
    copies: Annotated[bool, typer.Option(help="Copy inputs and outputs in each run.")] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="End after this if not stable.")] = 5.0,
    device: Device = None,
    trust_engine: Trust = False,
    as_json: Json = False,
    build: Any = None,
) -> None:
    """Measure an engine alone until it is stable; print what the clock covers."""
    from headrace_trt.tools.benching import bench_engine

    wanted = _shapes(shapes)
    with _engine(file, build, device=device, trust=trust_engine) as (engine, cuda):
        found = bench_engine(
            engine,
            cuda,
            shapes=wanted,
            profile=profile,
            streams=streams,
            cuda_graph=cuda_graph,
            copies=copies,
            most_s=seconds,
        )
    show(found.as_dict(), as_json=as_json)


@app.command("profile")
@functools.partial(with_build_options, without=("network",))
def profile_command(  # noqa: PLR0913, PLR0917 - options of the command line
    file: ModelOrPlan,
    shapes: ShapesOption = None,
    profile: ProfileOption = 0,
    runs: Annotated[int, typer.Option(min=1, help="Runs that are measured.")] = 50,
    nvtx: Annotated[bool, typer.Option(help="Mark layers for Nsight Systems.")] = False,
    html: Page = None,
    device: Device = None,
    trust_engine: Trust = False,
    as_json: Json = False,
    build: Any = None,
) -> None:
    """Measure every layer, longest first; with --html beside the graph."""
    from headrace_trt.tools.inspecting import as_page, inspect_engine
    from headrace_trt.tools.profiling import profile_layers

    _keep_apart(html, file)
    wanted = _shapes(shapes)
    with _engine(file, build, device=device, trust=trust_engine) as (engine, cuda):
        report = profile_layers(engine, cuda, shapes=wanted, profile=profile, runs=runs, nvtx=nvtx)
        if html is not None:
            about = {"kind": "plan", "file": str(file), **inspect_engine(engine)}
            times = {layer["name"]: layer["ms"] for layer in report["layers"]}
            html.write_text(as_page(about, times), encoding="utf-8")
    show(report if as_json else {k: v for k, v in report.items() if k != "layers"}, as_json=as_json)
    if not as_json:
        table(report["layers"], ("name", "ms", "share"))


@app.command("refit")
def refit_command(
    plan: File,
    model: File,
    target: Annotated[Path, typer.Argument(help="Where the new plan goes.")],
    library: Library = "auto",
    device: Device = None,
    trust_engine: Trust = False,
    as_json: Json = False,
) -> None:
    """Write a plan with the weights of another model of the same graph."""
    from headrace_trt.tools.refitting import refit_plan

    report = refit_plan(plan, model, target, library=library, device=device, trust=trust_engine)
    show(report, as_json=as_json)


@contextlib.contextmanager
def _engine(
    file: Path, build: Mapping[str, Any], *, device: str | None, trust: bool
) -> Iterator[tuple[Engine, Cuda]]:
    """Return the engine of a plan, or of a model that is built first."""
    from headrace_trt.tools.inspecting import is_plan
    from headrace_trt.tools.opening import engine_of_settings, open_engine

    if is_plan(file):
        unread = sorted(name for name in build if name != "library")
        if unread:
            raise SetupError(
                f"{file} is a plan: --{unread[0].replace('_', '-')} belongs to a build",
                hint="Give the ONNX file, or leave the option out.",
            )
        library = str(build.get("library", "auto"))
        engine, cuda = open_engine(file, library=library, device=device, trust=trust)
    else:
        _only_of_a_plan(file, ["trust-engine"] if trust else [])
        options, rows = settings_from(str(file), build)
        with phases() as progress:
            engine, cuda = engine_of_settings(
                options.settings(**rows), device=device, progress=progress, **kept_where(options)
            )
    try:
        yield engine, cuda
    finally:
        engine.close()


def _only_of_a_plan(file: Path, given: list[str]) -> None:
    """Refuse options that say how a plan is loaded if the file is a model."""
    if given:
        raise SetupError(f"{file} is no plan: --{given[0]} says how a plan is loaded")


def _keep_apart(html: Path | None, file: Path) -> None:
    if html is not None:
        keep_apart(html, {"the file": file})


def _device_in_key(device: str | None) -> dict[str, Any] | None:
    """Describe the device that takes part in a build; None where there is none."""
    from headrace_trt.cuda import device_of, load_cuda

    cuda = load_cuda()
    if device is None and not cuda.device_count():
        return None
    ordinal = device_of(device, cuda)
    cuda.set_device(ordinal)
    return cuda.describe(ordinal)


def _shapes(text: str | None) -> dict[str, tuple[int, ...]] | None:
    from headrace_trt.profiles import parse_shapes

    return None if text is None else parse_shapes(text)
