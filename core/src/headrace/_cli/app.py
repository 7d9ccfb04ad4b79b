"""The commands of ``headrace`` and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

import headrace
from headrace._cli.plugin_commands import AllCommands
from headrace._cli.reporting import Command, Group, say

__all__ = ["app"]

_SETTINGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    cls=AllCommands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
)
plugins = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
    help="Show what is installed, what a backend takes, and what is wrong.",
)
app.add_typer(plugins, name="plugins")
new = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
    help="Start a distribution of your own from a template.",
)
app.add_typer(new, name="new")

_EXITS = (
    "Exit status: 0 success, 1 failed requests, broken plugins or rules, 2 wrong configuration or "
    "arguments, 130 Ctrl-C (a second one ends at once), 141 the reader of stdout went away."
)

Config = Annotated[str, typer.Argument(metavar="CONFIG", help="A TOML file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, for programs.")]
NoImport = Annotated[
    bool,
    typer.Option(
        "--no-import",
        help="Refuse to run the code that the configuration lists under `import`; "
        "HEADRACE_IMPORT=0 does so too.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        say(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback(epilog=_EXITS)
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


@app.command(cls=Command, epilog=_EXITS)
def run(
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
    {"code": ..., "type": ..., "message": ...}}; arrays become lists, bytes base64, NaN null.

    \b
    Examples:
      headrace run line.toml photos/
      headrace run line.toml a.jpg 'scans/*.png' --json | jq .result
      curl -s https://example.org/a.jpg | headrace run line.toml -
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace._cli.run import run as run_inputs

    status = run_inputs(
        config,
        inputs,
        json=json,
        quiet=quiet,
        progress=not no_progress,
        allow_import=not no_import,
        timeout=timeout,
        traceback=bool(context.find_root().params.get("traceback")),
    )
    raise typer.Exit(status)


@app.command(cls=Command, epilog=_EXITS)
def check(config: Config, json: Json = False, no_import: NoImport = False) -> None:
    """Check a configuration without building it.

    No model and no heavy library is loaded. Shows all problems at once, with their places; warnings do not change the exit status.
    With --json: {"ok": ..., "problems": [...], "warnings": [...]}, and "nodes" when it is right.

    \b
    Examples:
      headrace check line.toml
      headrace check line.toml --no-import --json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace._cli.check import check as check_file

    raise typer.Exit(check_file(config, json=json, allow_import=not no_import))


@app.command(cls=Command, epilog=_EXITS)
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
    from headrace._cli.explain import explain as explain_what

    status = explain_what(what, json=json, allow_import=not no_import, graph=graph)
    raise typer.Exit(status)


@app.command(cls=Command, epilog=_EXITS)
def conformance(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="A backend (ResizeMat, cv:ResizeMat), or a plugin (cv) or distribution "
            "(headrace-cv) for all its backends.",
            show_default=False,
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
    reason. pytest is not needed. With --json the certificates go to stdout.

    \b
    Examples:
      headrace conformance ResizeMat
      headrace conformance headrace-cv headrace-ort --certificate certificate.json
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace._cli.conformance import conformance as judge

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

    from headrace._config.schema import json_schema

    say(dumps(json_schema(), indent=None if json else 2))


@plugins.command("list", cls=Command)
def list_(json: Json = False) -> None:
    """List the installed plugins.

    Version, the range of headrace that each requires, its backends, its state with the reason.
    No backend is imported, only the light modules with hooks.
    """
    from headrace._cli.plugins import list_plugins

    raise typer.Exit(list_plugins(json=json))


@plugins.command(cls=Command)
def info(
    name: Annotated[
        str,
        typer.Argument(
            help="A backend (ResizeMat, cv:ResizeMat), a plugin (cv), a distribution (headrace-cv), or "
            "what hooks of a plugin offer; `headrace` is what comes with the core.",
            show_default=False,
        ),
    ],
    json: Json = False,
) -> None:
    """Show what a plugin brings, or what a backend does and takes.

    \b
    Examples:
      headrace plugins info headrace-cv
      headrace plugins info ResizeMat
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace._cli.plugin_info import info as show_info

    raise typer.Exit(show_info(name, json=json))


@plugins.command(cls=Command)
def doctor(json: Json = False) -> None:
    """Import every plugin and report what is wrong.

    Broken and incompatible plugins, missing libraries, names offered twice, names of core; what their hooks name is imported and checked. Each finding has a reason and a remedy. Exit status 1 when something is wrong.
    """
    from headrace._cli.plugins import doctor as examine

    raise typer.Exit(examine(json=json))


@new.command(cls=Command, epilog=_EXITS)
def backend(
    name: Annotated[
        str,
        typer.Argument(
            help="The backend, as in a configuration (GaussBlur), or in words (gauss-blur). The "
            "distribution is then headrace-gauss-blur, its package headrace_gauss_blur.",
            show_default=False,
        ),
    ],
    folder: Annotated[
        Path,
        typer.Option(
            "--dir",
            metavar="FOLDER",
            help="Where the folder of the distribution is made.",
            show_default=". (here)",
        ),
    ] = Path(),
    json: Json = False,
) -> None:
    """Make a distribution with one backend.

    Contract, options, functions, tests through the conformance kit, README, CHANGELOG, CI file and
    entry points, ready to install and to test. Needs no network. Nothing that exists is changed.

    Prints the path of the folder; with --json: {"backend", "distribution", "package", "path",
    "files"}.

    \b
    Examples:
      headrace new backend GaussBlur
      headrace new backend gauss-blur --dir projects
    """  # noqa: D301 - typer keeps the lines after a backspace character
    from headrace._cli.new import new_backend

    raise typer.Exit(new_backend(name, folder, json=json))
