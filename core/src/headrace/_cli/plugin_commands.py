"""Commands that plugins bring: listed by name, imported when they are called."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import typer

from headrace._cli.reporting import FAILED, Command, Commands, is_usage_error, say_usage_error, tell

if TYPE_CHECKING:
    from headrace._registry.hooks import Offer

__all__ = ["AllCommands", "as_command"]

_HOOK = "headrace_commands"


class AllCommands(Commands):
    """The commands of core, which always win, and those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Give the names of commands; those of plugins too where a shell completes what is typed."""
        typed = [shown for shown, _ in self._of_plugins(ctx)] if ctx.resilient_parsing else []
        return [*super().list_commands(ctx), *typed]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Give a command by name; plugins are asked only for names that core does not have."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name.startswith("-"):
            return own
        from headrace._registry import registry

        offer = registry.offer(_HOOK, cmd_name, "command")
        return None if offer is None else _Lazy(cmd_name, offer)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that was asked for; an unknown one is refused with the nearest name."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            from headrace._registry import registry
            from headrace._registry.catalogue import KNOWN_COMMANDS

            brings = KNOWN_COMMANDS.get(name)
            if brings and brings not in {record.distribution for record in registry.plugins()}:
                ctx.fail(
                    f"The command {name!r} comes with {brings}, which is not installed. "
                    f"Install it: pip install {brings}"
                )
            known = [*self.list_commands(ctx), *(shown for shown, _ in self._of_plugins(ctx))]
            close = difflib.get_close_matches(name, known, n=1)
            meant = [f"Did you mean {close[0]!r}?"] if close else []
            ctx.fail(" ".join([f"No such command {name!r}.", *meant, *registry.unusable_hooks()]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands of core, then those of plugins, of which nothing heavy is imported."""
        super().format_commands(ctx, formatter)
        found = self._of_plugins(ctx)
        if found:
            with formatter.section("Commands of plugins"):
                formatter.write_dl(
                    [(name, f"Comes with {offer.record.distribution}.") for name, offer in found]
                )

    def _of_plugins(self, ctx: Any) -> list[tuple[str, Offer]]:
        """Give every command of plugins under the name that calls it."""
        from headrace._registry import registry
        from headrace._registry.hooks import offers

        found = list(offers(registry.plugins(), _HOOK))
        taken = super().list_commands(ctx)
        names = [*taken, *(offer.name for offer in found)]
        shown = [
            (o.name if names.count(o.name) == 1 else f"{o.record.plugin}:{o.name}", o)
            for o in found
        ]
        return sorted(shown, key=lambda item: item[0])


class _Lazy(Command):
    """Stands for a command of a plugin until it is called; its arguments are passed on as they are."""

    def __init__(self, name: str, offer: Offer) -> None:
        super().__init__(name, add_help_option=False)
        self._offer = offer

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Leave the arguments to the command itself."""
        ctx.args = given = list(args)
        return given

    def invoke(self, ctx: Any) -> None:
        """Import the command and run it."""
        from headrace._registry.loading import load

        offer = self._offer
        command = as_command(load(offer.path, offer.record.distribution), offer)
        raise typer.Exit(_run(command, list(ctx.args), ctx.command_path))


def as_command(found: Any, offer: Offer) -> Any:
    """Give what a plugin offers as a command.

    Raises:
        PluginError: It is no command, and none can be made of it.
    """
    from headrace.errors import PluginError

    if callable(getattr(found, "main", None)) and callable(getattr(found, "make_context", None)):
        return found  # of click, or of typer
    hint = "It is a typer.Typer, a click command, or a function that typer can read."
    if not callable(found):
        raise PluginError(
            f"no command can be made of {offer.path!r}: {type(found).__name__} cannot be called",
            distribution=offer.record.distribution,
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
            f"no command can be made of {offer.path!r}: {type(error).__name__}: {error}",
            distribution=offer.record.distribution,
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
