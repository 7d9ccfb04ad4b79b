"""Commands that plugins bring: listed by name, imported when they are called."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

import headrace
from headrace.errors import PluginError
from headrace_cli.arguments import CONTEXT_SETTINGS
from headrace_cli.console import FAILED, print_message
from headrace_cli.parameters import readable
from headrace_cli.reporting import Command, is_usage_error, print_usage_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.plugins import Plugin

KNOWN_COMMANDS = {
    **dict.fromkeys(
        ("bench", "certify", "observe", "simulate", "trace", "tune"), "headrace-observe"
    ),
    "models": "headrace-models",
    "serve": "headrace-serve",
    "trt": "headrace-trt",
    "ui": "headrace-serve",
    "video": "headrace-vision",
}
"""The commands of well-known distributions, whether these are installed or not."""

BELOW = {name: f"observe {name}" for name in ("gpus", "inspect", "why")}
"""Commands that stand below a group, by a name that is looked for."""


def commands_of_plugins() -> list[tuple[str, Plugin]]:
    """Return the name of every command of plugins, with its plugin."""
    return [(name, p) for p in headrace.plugins.installed() for name in p.offers["commands"]]


def command_named(name: str) -> _Lazy | None:
    """Find the command of a plugin by its name, perhaps ``plugin:name``.

    Raises:
        PluginError: Two plugins offer the command.
    """
    qualifier, _, part = name.rpartition(":")
    plugins = [p for n, p in commands_of_plugins() if n == part and qualifier in ("", p.plugin)]
    if len(plugins) > 1:
        raise PluginError(
            f"the command {part!r} is offered by {' and '.join(p.distribution for p in plugins)}",
            hint=f"Write {' or '.join(f'{p.plugin}:{part}' for p in plugins)}, or disable one of them "
            "with HEADRACE_PLUGINS.",
        )
    return _Lazy(name, plugins[0], plugins[0].offers["commands"][part]) if plugins else None


def for_completion(name: str) -> Any:
    """Find the command of a plugin whose options a shell completes; None if it cannot be had, or is another click's."""
    with contextlib.suppress(Exception):  # a traceback would get into the line that the user writes
        plugin = command_named(name)
        command = plugin and plugin.itself()
        if isinstance(command, (TyperCommand, TyperGroup)):
            return command
    return None


class _Lazy(Command):
    """A placeholder for a plugin's command until it is called; it passes the arguments on unread."""

    def __init__(self, name: str, plugin: Plugin, path: str) -> None:
        super().__init__(name, add_help_option=False)
        self._plugin = plugin
        self._path = path

    def itself(self) -> Any:
        """Import the command."""
        return as_command(self._path, self._plugin)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave the arguments to the command itself."""
        ctx.args = words = list(args)
        return words

    def invoke(self, ctx: Any) -> int:
        """Import the command and run it; give the exit status."""
        return _run(self.itself(), list(ctx.args), ctx.command_path)


def as_command(path: str, plugin: Plugin) -> Any:
    """Import the object that a plugin offers as a command, and make a command of it if it is none.

    Raises:
        PluginError: The object cannot be imported, or no command can be made of it.
    """
    value = plugin.load(path)
    if callable(getattr(value, "main", None)) and callable(getattr(value, "make_context", None)):
        return value  # a command of click or of typer
    hint = "It is a typer.Typer, a click command, or a function that typer can read."
    if not callable(value):
        raise PluginError(
            f"no command can be made of {path!r}: {type(value).__name__} cannot be called",
            distribution=plugin.distribution,
            hint=hint,
        )
    try:
        return made_command(value)
    except Exception as error:
        raise PluginError(
            f"no command can be made of {path!r}: {type(error).__name__}: {error}",
            distribution=plugin.distribution,
            hint=hint,
        ) from error


def made_command(value: Any, **settings: Any) -> Any:
    """Make a command of a function or of a ``typer.Typer``, as typer reads them."""
    app = value
    if not isinstance(value, typer.Typer):
        app = typer.Typer(
            add_completion=False, rich_markup_mode=None, context_settings=CONTEXT_SETTINGS
        )
        app.command(cls=Command, **settings)(value)
    return readable(typer.main.get_command(app))


class _Interrupted(Exception):  # noqa: N818 - carries KeyboardInterrupt through click
    """Ctrl-C while a command ran."""


@contextlib.contextmanager
def _interrupts_kept(command: Any) -> Iterator[None]:
    """Let KeyboardInterrupt pass through ``main`` of a command, which typer makes an exit status without a message."""
    invoke = command.invoke

    def invoked(ctx: Any) -> Any:
        try:
            return invoke(ctx)
        except KeyboardInterrupt as error:
            raise _Interrupted from error

    command.invoke = invoked
    try:
        yield
    finally:
        del command.invoke


def _run(command: Any, args: list[str], path: str) -> int:
    """Run a command of any copy of click; return the exit status."""
    streams = sys.stdout, sys.stderr
    try:
        with _interrupts_kept(command):
            result = command.main(args=args, prog_name=path, standalone_mode=False)
    except _Interrupted:
        raise KeyboardInterrupt from None
    except SystemExit as end:
        # Click ends with status 1 where the reader of stdout went away, and hides that from the streams.
        if isinstance(end.__context__, BrokenPipeError):
            sys.stdout, sys.stderr = streams
            raise end.__context__ from None
        raise
    except Exception as error:
        # Typer may contain a copy of click, whose error classes are not those of the plugin's click.
        if is_usage_error(error):
            shown: Any = error
            print_usage_error(shown, args)
            shown.show()
            return int(shown.exit_code)
        if type(error).__name__ != "Abort":
            raise
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        print_message("aborted")
        return FAILED
    return result if type(result) is int else 0
