"""``headrace trt tactics``: files that fix the choice of tactics."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.errors import SetupError
from headrace_trt.tools.cli_options import (
    Device,
    File,
    Json,
    kept_where,
    settings_from,
    with_build_options,
)
from headrace_trt.tools.cli_printing import phases, show

__all__ = ["tactics"]

tactics = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)


@tactics.command("show")
def tactics_show(file: File, as_json: Json = False) -> None:
    """Show which tactics a file chooses and excludes."""
    from headrace_trt.tools.tactics import show_tactics

    show(show_tactics(file), as_json=as_json)


@tactics.command("fix")
@functools.partial(
    with_build_options, without=("network", "tactics", "cache_dir", "cache_size_bytes")
)
def tactics_fix(
    model: File,
    file: Annotated[Path, typer.Argument(help="The file of tactics.")],
    as_json: Json = False,
    build: Any = None,
) -> None:
    """Build a model and record the choice of tactics, or replay a recorded one."""
    from headrace_trt.building import build_plan

    options, rows = settings_from(str(model), {**build, "tactics": str(file)})
    with phases() as progress:
        built = build_plan(options.settings(**rows), progress=progress)
    show({"tactics": str(file), **built.describe()}, as_json=as_json)


@tactics.command("exclude")
def tactics_exclude(
    file: Annotated[Path, typer.Argument(help="The file of tactics.")],
    choices: Annotated[list[str], typer.Argument(help="Layers, or implementation:tactic.")],
    as_json: Json = False,
) -> None:
    """Exclude choices that builds with this file must not make."""
    from headrace_trt.tools.tactics import exclude_tactics

    show(exclude_tactics(file, choices), as_json=as_json)


@tactics.command("bisect")
@functools.partial(with_build_options, without=("network", "tactics"))
def tactics_bisect(
    model: File,
    good: Annotated[Path, typer.Argument(exists=True, help="Tactics with right answers.")],
    bad: Annotated[Path, typer.Argument(exists=True, help="Tactics with wrong answers.")],
    limit: Annotated[
        float, typer.Option(min=0, help="Largest difference over the largest value.")
    ] = 1e-3,
    device: Device = None,
    as_json: Json = False,
    build: Any = None,
) -> None:
    """Find the layers whose tactic gives wrong numbers, by building with mixtures of two files."""
    import tempfile

    from headrace_trt.tactics import TacticFile, read_tactics
    from headrace_trt.tools.comparing import compare, run_built
    from headrace_trt.tools.tactics import bisect_tactics

    options, rows = settings_from(str(model), build)
    files = [read_tactics(path) for path in (good, bad)]
    if files[0] is None or files[1] is None:
        raise SetupError("both files of tactics must be there")
    with tempfile.TemporaryDirectory(prefix="headrace-trt-") as folder:
        path = Path(folder, "mixed.json")

        def is_wrong(mixed: TacticFile) -> bool:
            mixed.write(path)
            settings = options.settings(**rows).with_(tactics=path)
            run = functools.partial(run_built, device=device, **kept_where(options))
            # Looking inside would need another build, of a network with other layers than those of the files.
            return not compare(settings, run=run, limit=limit, look_inside=False)["same"]

        layers = bisect_tactics(files[0], files[1], is_wrong)
    chosen = {layer: files[1].chosen[layer] for layer in layers}
    show({"wrong": chosen}, as_json=as_json)
