"""How commands write to stdout and stderr, and the exit statuses with which they end."""

from __future__ import annotations

import codecs
import contextlib
import io
import math
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any, NoReturn, TextIO

OK = 0
"""The exit status of a command that succeeded."""
FAILED = 1
"""The exit status if requests failed, or plugins or rules are broken."""
WRONG = 2
"""The exit status of a wrong configuration or argument, which errors of Headrace end with."""
INTERRUPTED = 130
"""The exit status after Ctrl-C."""
BROKEN_PIPE = 141
"""The exit status of a program whose reader has closed the pipe: 128 + SIGPIPE."""


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
"""The escape of each control character but the tab and the end of a line."""

_PIECE = 400
"""This many characters take at most 4096 bytes, which a pipe accepts whole or not at all."""


class WrongArgument(Exception):  # noqa: N818 - shown as one line
    """An argument cannot be used, for example one that names no input."""

    code = "argument"


class UsageError(Exception):
    """An argument is unknown to the command, or missing."""

    code = "usage"


class FileError(Exception):
    """A file could not be read or written."""

    code = "file"


class NoThreadError(Exception):
    """The system has started no further thread."""

    code = "threads"


def _bytes_of_name_or_escape(error: UnicodeError) -> tuple[str | bytes, int]:
    """Encode a character that the encoding of stdout lacks."""
    if isinstance(error, UnicodeEncodeError):
        error.end = error.start + 1  # the next one may be of the other kind
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


def let_stdout_take_any_text() -> None:
    """Make stdout escape characters that its encoding lacks, and write bytes of file names that are no text as they are."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        codecs.register_error("headrace_cli", _bytes_of_name_or_escape)
        reconfigure(errors="headrace_cli")


def encodable(text: str) -> str:
    """Write bytes of file names that are no text as escapes, which JSON and people can read."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def is_utf8(stream: Any) -> bool:
    """Return whether a stream of text is written in UTF-8, the encoding of JSON."""
    return (getattr(stream, "encoding", None) or "").lower() in {"utf-8", "utf8"}


def print_data(text: str) -> None:
    """Write one line of data to stdout."""
    text += "\n"
    # Without a buffer (`python -u`) Python loses the rest of a write that a pipe has accepted only in part, which
    # happens if Ctrl-Z stops the command meanwhile.
    whole = not isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase)
    size = len(text) if whole else _PIECE
    for start in range(0, len(text), size):
        sys.stdout.write(text[start : start + size])


def print_drawing(drawing: Any, *, width: int, **settings: Any) -> None:
    """Draw with rich on stdout: in the width of the terminal, or in ``width`` columns where there is none."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else width, highlight=False, **settings)
    # Rich writes into a string first: when the reader has closed the pipe, rich would end the process
    # itself, with another exit status.
    with console.capture() as drawn:
        console.print(drawing, crop=False)
    sys.stdout.write(encodable(drawn.get()))


def columns() -> float:
    """Return the columns of the terminal that stdout is, without end where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf


def wrapped(text: str, indent: str, start: str | None = None) -> str:
    """Return a text in lines that are no wider than the terminal, with no word broken.

    Args:
        text: The text.
        indent: The beginning of each line but the first.
        start: The beginning of the first line. None: ``indent``.
    """
    first = indent if start is None else start
    if columns() == math.inf:
        return first + text
    room: Any = max(20, columns())
    how: Any = {"break_long_words": False, "break_on_hyphens": False}
    filled = textwrap.fill(text, room, initial_indent=first, subsequent_indent=indent, **how)
    return filled or first.rstrip()


def harmless(text: str) -> str:
    """Write control characters as escapes, except tabs and ends of lines: a terminal would obey them."""
    return text.translate(_CONTROLS)


def print_message(text: str) -> None:
    """Write one line for people to stderr. What a file or an error brings in cannot steer the terminal.

    Where stderr cannot be written (a log on a full disk), the work and its exit status matter more than the line.
    """
    try:
        sys.stderr.write(harmless(text) + "\n")
    except OSError:
        _discard(sys.stderr)


def error_text(error: BaseException) -> str:
    """Return type and text of an error."""
    return f"{type(error).__name__}: {error}"


def counted(number: int, thing: str) -> str:
    """Return ``1 node`` or ``2 nodes``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def discard_stdout() -> None:
    """Discard the unwritten output of stdout, whose reader has closed the pipe."""
    _discard(sys.stdout)


def _discard(stream: TextIO) -> None:
    """Let what a stream has not written, and what comes, go nowhere: the interpreter flushes it at exit."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def exit_now(status: int) -> NoReturn:
    """End the process at once, while a thread may still be inside native code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
