"""From errors to messages and exit statuses; no traceback for errors that are ours."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

__all__ = [
    "BROKEN_PIPE",
    "FAILED",
    "INTERRUPTED",
    "OK",
    "WRONG",
    "Command",
    "Commands",
    "Group",
    "WrongArgument",
    "counted",
    "discard_stdout",
    "leave_now",
    "refusal",
    "say",
    "tell",
]

OK = 0
FAILED = 1
WRONG = 2
INTERRUPTED = 130
BROKEN_PIPE = 141
"""What a program gives whose reader went away: 128 + SIGPIPE."""


class WrongArgument(Exception):  # noqa: N818 - shown as one line
    """An argument that cannot be used, as one that names no input."""

    code = "argument"


def say(text: str) -> None:
    """Write one line of data to stdout."""
    sys.stdout.write(text + "\n")


def tell(text: str) -> None:
    """Write one line for people to stderr."""
    sys.stderr.write(text + "\n")


def counted(number: int, thing: str) -> str:
    """Give ``1 node`` or ``2 nodes``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def discard_stdout() -> None:
    """Let what is still to be written to stdout vanish, after its reader went away."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def leave_now(status: int) -> NoReturn:
    """End the process at once, while a thread may still be inside native code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def refusal(error: Any) -> dict[str, Any]:
    """Give an error that ends a command as plain data, what ``--json`` prints of it."""
    from headrace.errors import ConfigError, Problem

    if isinstance(error, ConfigError):
        problems = list(error.problems)
    else:
        what = getattr(error, "what", str(error))
        problems = [Problem(error.code, what, hint=getattr(error, "hint", None))]
    return {
        "ok": False,
        "error": {"code": error.code, "type": type(error).__name__, "message": str(error)},
        "problems": [problem.to_dict() for problem in problems],
    }


def _with_default(option: Any) -> Any:
    """Give ``--help`` a default, without which some versions of typer import pydantic for it."""
    if option is not None and option.default is None:
        option.default = False
    return option


class Command(TyperCommand):
    """One command; with ``--json`` an error that ends it goes to stdout too, as JSON."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        from headrace.errors import HeadraceError

        try:
            return super().invoke(ctx)
        except (HeadraceError, WrongArgument) as error:
            if ctx.params.get("json"):
                from headrace._cli.printing import as_json

                say(as_json(refusal(error)))
            raise

    def get_help_option(self, ctx: Any) -> Any:
        """Give the option ``--help``."""
        return _with_default(super().get_help_option(ctx))


class Group(TyperGroup):
    """A group of commands."""

    def get_help_option(self, ctx: Any) -> Any:
        """Give the option ``--help``."""
        return _with_default(super().get_help_option(ctx))


class Commands(Group):
    """The group of all commands: turns their errors into a message and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with _reported(bool(ctx.params.get("traceback"))):
            return super().invoke(ctx)


@contextlib.contextmanager
def _reported(traceback: bool) -> Iterator[None]:
    from headrace.errors import HeadraceError

    try:
        yield
        sys.stdout.flush()
    except (HeadraceError, WrongArgument) as error:
        if traceback:
            _show_traceback(error)
        tell(f"error: {error}")
        raise typer.Exit(WRONG) from None
    except BrokenPipeError:
        discard_stdout()
        raise typer.Exit(BROKEN_PIPE) from None
    except OSError as error:
        # A full disk, say; what is still to be written cannot be written at the end either.
        discard_stdout()
        if traceback:
            _show_traceback(error)
        about = "" if error.filename is None else f": {error.filename}"
        tell(f"error: reading or writing failed: {error.strerror or error}{about}")
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        tell("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def _show_traceback(error: BaseException) -> None:
    import traceback

    traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
