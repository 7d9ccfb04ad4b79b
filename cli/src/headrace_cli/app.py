"""The commands of ``headrace`` and their options."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

import headrace
from headrace.errors import MissingDependencyError
from headrace_cli.arguments import (
    CONTEXT_SETTINGS,
    EXITS,
    Config,
    Json,
    NoImport,
    Settings,
    names_beginning,
)
from headrace_cli.console import say
from headrace_cli.groups import new, plugins
from headrace_cli.plugin_commands import AllCommands
from headrace_cli.reporting import Command

__all__ = ["app"]

app = typer.Typer(
    cls=AllCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
)
app.add_typer(plugins, name="plugins")
app.add_typer(new, name="new")


def _version(wanted: bool) -> None:
    if wanted:
        say(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback(epilog=EXITS)
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(
            "--traceback",
            envvar="HEADRACE_TRACEBACK",
            help="Show Python's traceback with every error.",
        ),
    ] = False,
) -> None:
    """Run models in production: pipelines of backends, composed by configuration.

    Data goes to stdout, messages to stderr.

    \b
    Examples:
      headrace run line.toml photos/
      headrace check line.toml
      headrace explain "S[DecodeMat,ResizeMat(224,224)]"
      headrace plugins info ResizeMat
    """  # noqa: D301 - typer keeps the lines after a backspace character


@app.command(cls=Command, epilog=EXITS)
def run(  # noqa: PLR0913, PLR0917 - one per option
    context: typer.Context,
    config: Config,
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT",
            help="A file; a folder (all files in it and below, sorted by path, without hidden "
            "ones); a quoted pattern such as 'photos/**/*.jpg'; or - for standard input.",
            show_default=False,
        ),
    ],
    json: Json = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")
    ] = False,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False,
    settings: Settings = None,
    output: Annotated[
        Optional[str],  # noqa: UP045 - older typers read no other spelling
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write a file per result into this folder, under the name of its input: bytes with "
            "the suffix of their format, an array as .npy, anything else as .json. The lines on "
            "stdout then name these files.",
            show_default=False,
        ),
    ] = None,
    no_import: NoImport = False,
    timeout: Annotated[
        Optional[float],  # noqa: UP045 - older typers read no other spelling
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.0,
            help="Longest time of one request, waiting in the queue included.",
            show_default="none",
        ),
    ] = None,
) -> None:
    """Run inputs through a pipeline and print the results.

    Each INPUT file is one request with `data`, its bytes, and `path`. A line per success goes to
    stdout, in the order of the inputs: the path, a tab, the result. A result that is a dict gives
    its values, separated by tabs; arrays and bytes are described by type and shape; control
    characters are escaped. Errors and a summary go to stderr.

    With --json every input gives one line: {"path": ..., "result": ...} or {"path": ..., "error":
    {"code": ..., "type": ..., "message": ...}}; arrays become lists, bytes base64, NaN null. With
    --output "output", the path of the file, stands in the place of "result".

    \b
    Examples:
      headrace run line.toml photos/
      headrace run "S[DecodeMat,ResizeMat(64,64),EncodeMat]" photos/ --output small
      headrace run line.toml photos/ --set max=8 --set instance_num=2
      headrace run line.toml a.jpg 'scans/*.png' --json | jq .result
      curl -s https://example.org/a.jpg | headrace run line.toml -
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace_cli.run import run as run_inputs

    status = run_inputs(
        config,
        inputs,
        context.find_root().obj,
        settings=settings or (),
        output=output,
        json=json,
        quiet=quiet,
        progress=not no_progress,
        allow_import=not no_import,
        timeout=timeout,
        traceback=bool(context.find_root().params.get("traceback")),
    )
    raise typer.Exit(status)


@app.command(cls=Command, epilog=EXITS)
def check(
    config: Config,
    json: Json = False,
    settings: Settings = None,
    build: Annotated[
        bool, typer.Option("--build", help="Build it too, warm it up, and close it again.")
    ] = False,
    no_import: NoImport = False,
) -> None:
    """Check a configuration without building it.

    No model and no heavy library is loaded, unless --build asks for it. Shows all problems at once,
    with their places; warnings do not change the exit status. With --json: {"ok": ..., "problems":
    [...], "warnings": [...]}, and "nodes" when it is right; "built", as `describe()` gives it.

    \b
    Examples:
      headrace check line.toml
      headrace check line.toml --no-import --json
      headrace check line.toml --build --set model=new.onnx
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace_cli.check import check as check_file

    raise typer.Exit(
        check_file(
            config, json=json, allow_import=not no_import, settings=settings or (), build=build
        )
    )


@app.command(cls=Command, epilog=EXITS)
def explain(
    what: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|EXPRESSION",
            help="A TOML file, or a quoted expression.",
            show_default=False,
        ),
    ],
    json: Json = False,
    settings: Settings = None,
    no_import: NoImport = False,
    graph: Annotated[
        Optional[str],  # noqa: UP045 - older typers read no other spelling
        typer.Option(
            "--graph",
            metavar="svg|mermaid|dot",
            help="Print the graph of the nodes as a picture instead.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show what a configuration or expression asks for.

    A tree of the backends with their options and where each value comes from, batch ranges,
    threads, who runs each node, and the distributions needed. Nothing is built and no heavy
    library is loaded. With --json what `headrace.explain` gives; with --graph too: {"format": ...,
    "graph": ...}.

    \b
    Examples:
      headrace explain line.toml
      headrace explain "S[DecodeMat,ResizeMat(224,224)]"
      headrace explain page.toml --graph svg > page.svg
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace_cli.explain import explain as explain_what

    status = explain_what(
        what, json=json, allow_import=not no_import, graph=graph, settings=settings or ()
    )
    raise typer.Exit(status)


@app.command(cls=Command, epilog=EXITS)
def conformance(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="A backend (ResizeMat, cv:ResizeMat), or a plugin (cv) or distribution "
            "(headrace-cv) for all its backends.",
            show_default=False,
            autocompletion=names_beginning,
        ),
    ],
    certificate: Annotated[
        Optional[str],  # noqa: UP045 - older typers read no other spelling
        typer.Option(
            "--certificate",
            metavar="OUT.JSON",
            help="Write the certificates to this file, as JSON.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Judge backends by the rules of the backend contract, and print a certificate.

    Every backend is judged through the conformance class that its distribution offers in the
    entry-point group `headrace.conformance`; one without is reported as not certified, which is
    exit status 1, as is a rule that is broken. Rules that its author excepts are shown with the
    reason. With --json the certificates go to stdout.

    \b
    Examples:
      headrace conformance ResizeMat
      headrace conformance headrace-cv headrace-ort --certificate certificate.json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    try:
        from headrace_cli.conformance import conformance as judge
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "headrace_testing":
            raise
        what = "the conformance kit is not installed"
        raise MissingDependencyError(what, hint='`pip install "headrace[testing]"`') from error
    raise typer.Exit(judge(names, certificate=certificate, json=json))


@app.command(cls=Command)
def schema(
    json: Annotated[
        bool, typer.Option("--json", help="Print it in one line, for programs.")
    ] = False,
) -> None:
    """Print the JSON Schema of configurations, for editors.

    It knows the keys of nodes and the options of all installed backends.

    \b
    Example:
      headrace schema > headrace.schema.json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from json import dumps

    from headrace_cli.schema import json_schema

    say(dumps(json_schema(), indent=None if json else 2))
