"""Building a pipeline for a command, with bars for long work, and with warnings on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

import headrace
from headrace_cli.console import error_text, print_message
from headrace_cli.printing import quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace import Pipeline, PipelineConfig
    from headrace_cli.progress import ProgressFactory

CLOSE_S = 2.0
"""Seconds that ``close`` waits at the end of a command for backends that still run."""


@contextlib.contextmanager
def building(config: PipelineConfig) -> Iterator[Pipeline]:
    """Build a configuration and give the warm pipeline, which is closed at the end of the block."""
    with printing_warnings():
        with showing_progress() as bars:
            pipeline = headrace.pipe(config, progress=bars)
        try:
            yield pipeline
        finally:
            pipeline.close(timeout=CLOSE_S)


class _WarningPrinter(logging.Handler):
    """Writes a line to stderr for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, with the text of its error but no traceback."""
        error = record.exc_info[1] if record.exc_info else None
        about = "" if error is None else f": {quoted(error_text(error))}"
        print_message(f"warning: {quoted(record.getMessage())}{about}")


@contextlib.contextmanager
def printing_warnings() -> Iterator[None]:
    """Show log records of warnings on stderr, for example that a backend could not be closed."""
    printer = _WarningPrinter(logging.WARNING)
    # Commands say themselves which requests have failed.
    printer.addFilter(lambda record: record.name != "headrace.requests")
    logger = logging.getLogger("headrace")
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)


@contextlib.contextmanager
def showing_progress(is_shown: bool = True) -> Iterator[ProgressFactory]:
    """Return the ``progress`` for `headrace.pipe`: bars on stderr if that is a terminal, else silence."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda _total, _unit: contextlib.nullcontext(_nothing)
        return
    from rich.console import Console

    from headrace_cli.progress import setup_bars

    with setup_bars(Console(stderr=True)) as bar:
        yield bar


def _nothing(done: int) -> None:
    """Show nothing."""
