"""Building a pipeline for a command: bars for long work, and warnings that are seen."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

import headrace
from headrace_cli.console import tell, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace import Pipeline, PipelineConfig
    from headrace_cli.progress import ProgressFactory

__all__ = ["CLOSE_S", "building", "showing_setup", "telling_warnings"]

CLOSE_S = 2.0
"""How long the end waits for backends that still run on requests nobody waits for any more."""


@contextlib.contextmanager
def building(config: PipelineConfig) -> Iterator[Pipeline]:
    """Build a configuration and give the warm pipeline, which is closed at the end."""
    with telling_warnings():
        with showing_setup() as bars:
            pipeline = headrace.pipe(config, progress=bars)
        try:
            yield pipeline
        finally:
            pipeline.close(timeout=CLOSE_S)


class _Teller(logging.Handler):
    """Writes a line to stderr for each record."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; of an error its text."""
        error = record.exc_info[1] if record.exc_info else None
        about = "" if error is None else f": {told(error)}"
        tell(f"warning: {record.getMessage()}{about}")


@contextlib.contextmanager
def telling_warnings() -> Iterator[None]:
    """Show people what is logged as a warning, as that a backend could not be closed."""
    teller = _Teller(logging.WARNING)
    logger = logging.getLogger("headrace")
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)


@contextlib.contextmanager
def showing_setup(wanted: bool = True) -> Iterator[ProgressFactory]:
    """Show what backends say of long work while they are built, if it is wanted and somebody sees it."""
    if not wanted or not sys.stderr.isatty():
        yield lambda _total, _unit: contextlib.nullcontext(_nothing)
        return
    from rich.console import Console

    from headrace_cli.progress import setup_bars

    with setup_bars(Console(stderr=True)) as bar:
        yield bar


def _nothing(done: int) -> None:
    """Show nothing."""
