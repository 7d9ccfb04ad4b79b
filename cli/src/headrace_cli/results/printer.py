"""The output of ``headrace run`` for each input: a line on stdout, the path of a file, or an error."""

from __future__ import annotations

import errno
import sys
from typing import TYPE_CHECKING, Any

from headrace.errors import RequestError, code_of
from headrace_cli.console import WrongArgument, error_text, is_utf8, print_data, print_message
from headrace_cli.printing import as_json, as_line, escaped, quoted
from headrace_cli.results.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_cli.inputs import Input
    from headrace_cli.results.files import Output
    from headrace_cli.results.out_file import OutFile


class ResultPrinter:
    """Prints the results and errors of inputs, in the order of the calls.

    Args:
        json: Whether every input gives a line of JSON.
        traceback: Whether errors are shown with Python's traceback.
        output: Writes results to files, None for stdout.
        out: Takes the line of each input in place of stdout. None: stdout.

    Attributes:
        print_error: Writes one line of an error for people.
    """

    def __init__(
        self, *, json: bool, traceback: bool, output: Output | None, out: OutFile | None = None
    ) -> None:
        self.print_error: Callable[[str], None] = print_message
        self._json = json
        self._traceback = traceback
        self._output = output
        self._out = out
        self._ascii_only = not is_utf8(sys.stdout)
        self._screen = Screen() if sys.stdout.isatty() and not json else None

    def result(self, item: Input, result: Any) -> None:
        """Print the result of an input, or write it to a file and print its path.

        Raises:
            OSError: The result cannot be written.
            RequestError: The result cannot be converted to text, or to the content of a file, or the name
                of that is too long.
        """
        row = {"path": item.path, "result": result}
        try:
            if self._output is not None:
                row = {"path": item.path, "output": str(self._output.write(item, result))}
            if self._out is not None:
                self._out.result(item.path, row.get("output", result))
                return
            if self._json:
                line = as_json(row, ascii_only=self._ascii_only)
            elif self._screen is not None:
                self._screen.print_row(item.path, row.get("output", result))
                return
            else:
                line = as_line(item.path, row.get("output", result))
        except WrongArgument:
            raise
        except Exception as error:
            # A full disk ends the run. A name that the suffix makes too long is the matter of one input.
            if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
                raise
            raise RequestError(f"its result cannot be written: {error_text(error)}") from error
        print_data(line)

    def error(self, item: Input, error: BaseException) -> None:
        """Print the error of an input."""
        kind = {"code": code_of(error), "type": type(error).__name__, "message": str(error)}
        if self._out is not None:
            self._out.error(item.path, kind)
        elif self._json:
            print_data(as_json({"path": item.path, "error": kind}, ascii_only=self._ascii_only))
        else:
            self.print_error(
                f"{escaped(item.path)}: error: {kind['code']}: {quoted(kind['message'])}"
            )
        if self._traceback:
            import traceback

            lines = traceback.format_exception(type(error), error, error.__traceback__)
            self.print_error("".join(lines).rstrip())
