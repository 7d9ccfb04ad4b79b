"""The command ``headrace``: its own commands by name, then those of plugins."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

import headrace
from headrace.errors import nearest
from headrace_cli.arguments import CONTEXT_SETTINGS, EXITS
from headrace_cli.console import print_data
from headrace_cli.installed.plugin_commands import (
    BELOW,
    KNOWN_COMMANDS,
    command_named,
    commands_of_plugins,
    for_completion,
    made_command,
)
from headrace_cli.installed.summaries import summary
from headrace_cli.names import COMMANDS, COMMANDS_ELSEWHERE, GROUPS, how_to_install
from headrace_cli.reporting import Commands

if TYPE_CHECKING:
    from headrace.plugins import Plugin


class AllCommands(Commands):
    """The commands of this package, which always win, and those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands; for completion in a shell also those of plugins."""
        typed = [shown for shown, _ in _of_plugins()] if ctx.resilient_parsing else []
        return [*COMMANDS, *typed]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name; plugins are asked only for names that this package does not have."""
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"headrace_cli.commands.{cmd_name}")
            return made_command(getattr(module, cmd_name), epilog=EXITS)
        return None if cmd_name.startswith("-") else command_named(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the user named; refuse an unknown name, with the nearest known one."""
        name = args[0]
        if ctx.resilient_parsing and name not in COMMANDS:
            return name, for_completion(name), args[1:]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            if name in BELOW:
                ctx.fail(f"{name!r} is below a group: write headrace {BELOW[name]}.")
            plugins = headrace.plugins.installed()
            if brings := KNOWN_COMMANDS.get(name):
                comes = f"The command {name!r} comes with {brings}, which"
                there = {plugin.distribution: plugin for plugin in plugins}.get(brings)
                if there is None:
                    ctx.fail(f"{comes} is not installed. {how_to_install(brings)}")
                elif there.state != "ok":
                    ctx.fail(f"{comes} cannot be used: {there.reason}.")
            known = {name: name for name in (*KNOWN_COMMANDS, *dict(_of_plugins()))} | BELOW
            known |= {"version": "--version", "help": "--help"} | COMMANDS_ELSEWHERE
            for own in COMMANDS:
                inside = getattr(self.get_command(ctx, own), "commands", ())
                known |= {own: own, **{each: f"{own} {each}" for each in inside}}
            close = nearest(name, known)
            meant = [f"Did you mean {known[close]!r}?"] if close else []
            unusable = [
                f"{plugin.distribution} cannot be used: {plugin.reason}."
                for plugin in plugins
                if plugin.state != "ok"
            ]
            ctx.fail(" ".join([f"No such command {name!r}.", *meant, *unusable]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by group, those of plugins without importing them."""
        left = COMMANDS | {
            name: summary(plugin.offers["commands"][name.rpartition(":")[2]], plugin)
            for name, plugin in _of_plugins()
        }
        groups = {
            title: [(name, left.pop(name)) for name in names if name in left]
            for title, names in GROUPS.items()
        }
        groups["Other plugins"] = list(left.items())
        for title, rows in groups.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _of_plugins() -> list[tuple[str, Plugin]]:
    """Return every command of plugins by the name that calls it, with its plugin."""
    pairs = commands_of_plugins()
    names = [*COMMANDS, *(name for name, _ in pairs)]
    shown = [
        (name if names.count(name) == 1 else f"{plugin.plugin}:{name}", plugin)
        for name, plugin in pairs
    ]
    return sorted(shown, key=lambda item: item[0])


app = typer.Typer(
    cls=AllCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=CONTEXT_SETTINGS,
)


def _version(is_set: bool) -> None:
    if is_set:
        print_data(f"headrace {headrace.__version__}")
        raise typer.Exit


@app.callback(epilog=EXITS)
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_version, is_eager=True, help="Print the version."
        ),
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
