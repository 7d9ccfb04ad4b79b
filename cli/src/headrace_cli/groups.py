"""The groups of commands, ``headrace plugins`` and ``headrace new``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace_cli.arguments import CONTEXT_SETTINGS, EXITS, Json, names_beginning
from headrace_cli.reporting import Command, Group

__all__ = ["new", "plugins"]

plugins = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
    help="Show what is installed, what a backend takes, and what is wrong.",
)
new = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
    help="Start a distribution of your own from a template.",
)


@plugins.command("list", cls=Command)
def list_(json: Json = False) -> None:
    """List the installed plugins.

    Version, the range of headrace that each requires, its backends, its state with the reason.
    No backend is imported, only the light modules with hooks.
    """
    from headrace_cli.plugins import list_plugins

    raise typer.Exit(list_plugins(json=json))


@plugins.command(cls=Command)
def info(
    name: Annotated[
        str,
        typer.Argument(
            help="A backend (ResizeMat, cv:ResizeMat), a plugin (cv), a distribution (headrace-cv), or "
            "what hooks of a plugin offer; `headrace` is what comes with the core.",
            show_default=False,
            autocompletion=names_beginning,
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
    from headrace_cli.plugin_info import info as show_info

    raise typer.Exit(show_info(name, json=json))


@plugins.command(cls=Command)
def doctor(json: Json = False) -> None:
    """Import every plugin and report what is wrong.

    Broken and incompatible plugins, missing libraries, names offered twice, names of core; what their hooks name is imported and checked. Each finding has a reason and a remedy. Exit status 1 when something is wrong.
    """
    from headrace_cli.plugins import doctor as examine

    raise typer.Exit(examine(json=json))


@new.command(cls=Command, epilog=EXITS)
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
    from headrace_cli.new import new_backend

    raise typer.Exit(new_backend(name, folder, json=json))
