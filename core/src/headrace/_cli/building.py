"""Building a pipeline for a command: bars for long work, and warnings that are seen."""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import TYPE_CHECKING

import headrace
from headrace._cli.reporting import tell
from headrace._portable import told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace import Pipeline, PipelineConfig

__all__ = ["CLOSE_S", "building", "showing_setup", "telling_warnings"]

CLOSE_S = 2.0
"""How long the end waits for backends that still run on requests nobody waits for any more."""


@contextlib.contextmanager
def building(config: PipelineConfig) -> Iterator[Pipeline]:
    """Build a configuration and give the warm pipeline, which is closed at the end."""
    with telling_warnings():
        with showing_setup():
            pipeline = headrace.pipe(config)
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
def showing_setup() -> Iterator[None]:
    """Show what backends say of long work while they are built, if somebody sees it."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    from headrace._cli.progress import setup_bars
    from headrace._context import showing_progress

    with setup_bars(Console(stderr=True)) as bar, showing_progress(bar):
        yield
