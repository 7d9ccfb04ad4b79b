"""The arguments that several commands share, and the last lines of their help."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace_cli.reporting import Group

CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}

EXITS = (
    "Exit status: 0 success, 1 failed requests, broken plugins or rules, 2 wrong configuration or "
    "arguments, 130 Ctrl-C (a second one ends at once), 141 the reader of stdout went away, 143 SIGTERM."
)

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A TOML file, or a quoted expression.", show_default=False
    ),
]
"""The type of a parameter that takes a configuration: give it to `source_of`."""
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, for programs.")]
"""The type of a parameter for ``--json``."""
NoImport = Annotated[
    bool,
    typer.Option(
        "--no-import",
        help="Refuse to run the code that the configuration lists under `import`; "
        "HEADRACE_IMPORT=0 does so too.",
    ),
]
"""The type of a parameter for ``--no-import``: pass ``allow_import=not no_import`` on."""
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value of CONFIG: KEY of its only node, or NODE.KEY, or global.KEY; VALUE is "
        "TOML, else text. Relative paths in it start here. May be repeated.",
        show_default=False,
    ),
]
"""The type of a parameter for ``--set``, which may be repeated: give it to `source_of`."""


def group(summary: str, cls: type[Group] = Group) -> typer.Typer:
    """Make a group of commands, ``headrace GROUP COMMAND``."""
    typer_group = typer.Typer(
        cls=cls,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        context_settings=CONTEXT_SETTINGS,
        help=summary,
    )
    # Without a callback typer makes a group of one command that command.
    typer_group.callback()(lambda: None)
    return typer_group


def names_beginning(incomplete: str) -> list[str]:
    """Return the names of backends and plugins that begin with a text, for completion in a shell."""
    from headrace_cli.names import all_names

    return sorted(name for name in set(all_names()) if name.startswith(incomplete))
