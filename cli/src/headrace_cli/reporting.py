"""From errors to messages and exit statuses; errors of Headrace are shown without a traceback."""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup

from headrace_cli.console import (
    BROKEN_PIPE,
    FAILED,
    INTERRUPTED,
    WRONG,
    FileError,
    NoThreadError,
    UsageError,
    WrongArgument,
    discard_stdout,
    let_stdout_take_any_text,
    print_message,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any


def error_as_dict(error: Any) -> dict[str, Any]:
    """Return an error that ends a command as plain data, as ``--json`` prints it."""
    from headrace.errors import ConfigError, Problem

    if isinstance(error, ConfigError):
        problems = list(error.problems)
    else:
        text = getattr(error, "what", str(error))
        problems = [Problem(error.code, text, hint=getattr(error, "hint", None))]
    return {
        "ok": False,
        "error": {"code": error.code, "type": type(error).__name__, "message": str(error)},
        "problems": [problem.to_dict() for problem in problems],
    }


def _with_default(option: Any) -> Any:
    """Return a flag of typer a default: without one, some versions of typer import pydantic."""
    if option is not None and option.default is None and getattr(option, "is_flag", False):
        option.default = False
    return option


def is_usage_error(error: BaseException) -> bool:
    """Return whether an error is a usage error of click; a process may have several copies of click."""
    return callable(getattr(error, "show", None)) and hasattr(error, "exit_code")


def print_usage_error(error: Any, args: Sequence[str]) -> None:
    """Write a usage error to stdout as JSON, if the arguments ask for JSON; say of a misplaced option where it stands."""
    from headrace_cli.names import LEFT

    option, ctx = getattr(error, "option_name", None), getattr(error, "ctx", None)
    # Typer reads values by pydantic, which puts this in front of the sentence.
    error.message = str(getattr(error, "message", "")).replace("Value error, ", "")
    if ctx is not None and (unknown := re.match("No such command '([^']+)'", error.message)):
        typed = " ".join([*ctx.command_path.split()[1:], unknown[1]])
        if typed in LEFT:
            error.message = f"headrace {typed} is gone. {LEFT[typed]}"
    if option == "--traceback":
        error.message += "; it stands before the command: headrace --traceback COMMAND"
    elif option == "--json" and hasattr(getattr(ctx, "command", None), "commands"):  # a group
        error.message += f"; it stands after the command: {error.ctx.command_path} COMMAND --json"
        error.possibilities = None
    elif option == "--reload" and "--watch" in _options(ctx):
        error.message += "; --watch serves a changed file anew"
        error.possibilities = None
    elif option and "--set" in _options(ctx) and not _near(option, error.possibilities):
        key, error.possibilities = option.lstrip("-").replace("-", "_"), None
        error.message += f"; keys and options of the configuration are given so: --set {key}=VALUE"
    message = error.format_message() if "--json" in args else ""
    if message:  # empty where click shows help in place of an error
        _print_error(UsageError(message))


def _near(option: str, others: Sequence[str] | None) -> bool:
    return bool(difflib.get_close_matches(option, others or (), cutoff=0.8))


def _options(ctx: Any) -> set[str]:
    return {name for flag in ctx.command.params for name in flag.opts} if ctx else set()


def _print_error(error: Exception) -> None:
    from headrace_cli.printing import print_json

    print_json(error_as_dict(error))


class Command(TyperCommand):
    """One command; its help lists options under the ``rich_help_panel`` that each one has."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``."""
        return _with_default(super().get_help_option(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List the arguments, then the options by group: those of none come last."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        others: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            panel = getattr(parameter, "rich_help_panel", None)
            if parameter.param_type_name == "argument":
                sections["Arguments"].append(record)
            elif panel is None:
                others.append(record)
            else:
                sections.setdefault(panel, []).append(record)
        sections["Other options" if len(sections) > 1 else "Options"] = others
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class Group(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``."""
        return _with_default(super().get_help_option(ctx))


class Commands(Group):
    """The group of all commands: turns their errors into a message and an exit status.

    With ``--json`` among the arguments, the error that ends a command goes to stdout too, as JSON.
    """

    _given: Sequence[str] = ()

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, including those for completion."""
        return [_with_default(option) for option in super().get_params(ctx)]

    def make_context(self, info_name: Any, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Read the options before the command."""
        self._given = list(args)
        let_stdout_take_any_text()
        with _reported(False, self._given):
            return super().make_context(info_name, args, *rest, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the user named; a second Ctrl-C or SIGTERM always ends it."""
        from headrace_cli.interrupts import Interrupts

        interrupts = Interrupts()
        try:
            with _reported(bool(ctx.params.get("traceback")), self._given), interrupts as ctx.obj:
                status = super().invoke(ctx)
        except typer.Exit as ended:
            status = ended.exit_code
        if type(status) is int:
            raise typer.Exit(interrupts.status if status == INTERRUPTED else status)


@contextlib.contextmanager
def _reported(traceback: bool, args: Sequence[str]) -> Iterator[None]:
    from headrace.errors import HeadraceError

    try:
        try:
            yield
        except (HeadraceError, WrongArgument) as error:
            if "--json" in args:
                _print_error(error)
            if traceback:
                _show_traceback(error)
            print_message(f"error: {error}")
            raise typer.Exit(WRONG) from None
        except Exception as error:
            if is_usage_error(error):
                print_usage_error(error, args)
            raise
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        raise typer.Exit(BROKEN_PIPE) from None
    except (OSError, RuntimeError) as error:
        # The disk may be full: then the rest of stdout cannot be written at the end either.
        text = (
            _file_message(error, args)
            if isinstance(error, OSError)
            else _thread_message(error, args)
        )
        discard_stdout()
        if traceback:
            _show_traceback(error)
        print_message(f"error: {text}")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        print_message("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _file_message(error: OSError, args: Sequence[str]) -> str:
    """Return the message of a failed read or write; with ``--json`` also print that of a file as JSON."""
    about = "" if error.filename is None else f": {error.filename}"
    text = f"reading or writing failed: {error.strerror or error}{about}"
    if about and "--json" in args:  # without a file name the disk of stdout itself may be full
        with contextlib.suppress(OSError):  # stdout may be on the same disk
            _print_error(FileError(text))
            sys.stdout.flush()
    return text


def _thread_message(error: RuntimeError, args: Sequence[str]) -> str:
    """Return the message of a thread that could not be started, also as JSON; raise any other error again."""
    if str(error) != "can't start new thread":  # CPython has no type for it
        raise error
    text = f"{error}: the user or the container has no room for more (ulimit -u, the limit of pids)"
    if "--json" in args:
        _print_error(NoThreadError(text))
        sys.stdout.flush()
    return text


def _show_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
