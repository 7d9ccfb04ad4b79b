"""Commands that plugins bring: listed by name, imported when they are called."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import typer

import headrace
from headrace.errors import PluginError
from headrace_cli.console import FAILED, tell
from headrace_cli.reporting import Command, Commands, is_usage_error, say_usage_error

if TYPE_CHECKING:
    from headrace.plugins import Plugin

__all__ = ["OWN_COMMANDS", "AllCommands", "as_command"]

OWN_COMMANDS = ("check", "conformance", "explain", "new", "plugins", "run", "schema")
"""The commands of ``headrace`` itself, which no plugin can replace."""

_KNOWN = {
    **dict.fromkeys(
        ("bench", "gpus", "report", "simulate", "top", "trace", "tune"), "headrace-observe"
    ),
    "serve": "headrace-serve",
    "trt": "headrace-trt",
}
"""Commands of well-known distributions, installed or not."""


class AllCommands(Commands):
    """The own commands, which always win, and those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Give the names of commands; those of plugins too where a shell completes what is typed."""
        typed = [shown for shown, _ in self._of_plugins(ctx)] if ctx.resilient_parsing else []
        return [*super().list_commands(ctx), *typed]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give a command by name; plugins are asked only for names that core does not have."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name.startswith("-"):
            return own
        return _found(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that was asked for; an unknown one is refused with the nearest name."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            plugins = headrace.plugins.installed()
            brings = _KNOWN.get(name)
            if brings and brings not in {plugin.distribution for plugin in plugins}:
                ctx.fail(
                    f"The command {name!r} comes with {brings}, which is not installed. "
                    f"Install it: pip install {brings}"
                )
            known = [*self.list_commands(ctx), *(shown for shown, _ in self._of_plugins(ctx))]
            close = difflib.get_close_matches(name, known, n=1)
            meant = [f"Did you mean {close[0]!r}?"] if close else []
            unusable = [
                f"{plugin.distribution} cannot be used: {plugin.reason}."
                for plugin in plugins
                if not plugin.usable
            ]
            ctx.fail(" ".join([f"No such command {name!r}.", *meant, *unusable]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands of core, then those of plugins, of which nothing heavy is imported."""
        super().format_commands(ctx, formatter)
        found = self._of_plugins(ctx)
        if found:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(
                    [(name, f"Comes with {plugin.distribution}.") for name, plugin in found]
                )

    def _of_plugins(self, ctx: Any) -> list[tuple[str, Plugin]]:
        """Give every command of plugins under the name that calls it, with who brings it."""
        found = _commands()
        names = [*super().list_commands(ctx), *(name for name, _ in found)]
        shown = [
            (name if names.count(name) == 1 else f"{plugin.plugin}:{name}", plugin)
            for name, plugin in found
        ]
        return sorted(shown, key=lambda item: item[0])


def _commands() -> list[tuple[str, Plugin]]:
    """Give the name of every command of plugins, with who brings it."""
    return [(name, one) for one in headrace.plugins.installed() for name in one.hooks["commands"]]


def _found(name: str) -> _Lazy | None:
    """Find the command of a plugin by its name, perhaps ``plugin:name``.

    Raises:
        PluginError: Two plugins offer it.
    """
    qualifier, _, part = name.rpartition(":")
    found = [p for n, p in _commands() if n == part and qualifier in ("", p.plugin)]
    if len(found) > 1:
        raise PluginError(
            f"the command {part!r} is offered by {' and '.join(p.distribution for p in found)}",
            hint=f"Write {' or '.join(f'{p.plugin}:{part}' for p in found)}, or disable one of them "
            "with HEADRACE_PLUGINS.",
        )
    return _Lazy(name, found[0], found[0].hooks["commands"][part]) if found else None


class _Lazy(Command):
    """Stands for a command of a plugin until it is called; its arguments are passed on as they are."""

    def __init__(self, name: str, plugin: Plugin, path: str) -> None:
        super().__init__(name, add_help_option=False)
        self._plugin = plugin
        self._path = path

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave the arguments to the command itself."""
        ctx.args = given = list(args)
        return given

    def invoke(self, ctx: Any) -> None:
        """Import the command and run it."""
        command = as_command(self._path, self._plugin)
        raise typer.Exit(_run(command, list(ctx.args), ctx.command_path))


def as_command(path: str, plugin: Plugin) -> Any:
    """Import what a plugin offers as a command.

    Raises:
        PluginError: It cannot be imported, is no command, and none can be made of it.
    """
    found = plugin.load(path)
    if callable(getattr(found, "main", None)) and callable(getattr(found, "make_context", None)):
        return found  # of click, or of typer
    hint = "It is a typer.Typer, a click command, or a function that typer can read."
    if not callable(found):
        raise PluginError(
            f"no command can be made of {path!r}: {type(found).__name__} cannot be called",
            distribution=plugin.distribution,
            hint=hint,
        )
    try:
        app = found
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            app.command()(found)
        return typer.main.get_command(app)
    except Exception as error:
        raise PluginError(
            f"no command can be made of {path!r}: {type(error).__name__}: {error}",
            distribution=plugin.distribution,
            hint=hint,
        ) from error


def _run(command: Any, args: list[str], path: str) -> int:
    """Run a command of any click there is; give the exit status."""
    try:
        result = command.main(args=args, prog_name=path, standalone_mode=False)
    except Exception as error:
        # Typer may bring a click of its own, so that their classes are not those of the plugin.
        if is_usage_error(error):
            shown: Any = error
            say_usage_error(shown, args)
            shown.show()
            return int(shown.exit_code)
        if type(error).__name__ != "Abort":
            raise
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        tell("aborted")
        return FAILED
    return result if type(result) is int else 0
