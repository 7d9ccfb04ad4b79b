"""Prints the output of ``headrace trt``: JSON, tables, and the phases of a build."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["phases", "show", "table"]


@contextlib.contextmanager
def phases() -> Iterator[Any]:
    """Show a bar with its time for every phase of a build, on stderr if that is a terminal.

    Warnings that are logged meanwhile (a cache entry that cannot be used, weights beyond the range of a type) are
    printed as lines on stderr.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with (
        _warnings_on(console),
        Progress(
            *columns,
            console=console,
            transient=True,
            redirect_stdout=False,
            disable=not console.is_terminal,
        ) as bars,
    ):

        @contextlib.contextmanager
        def phase(total: int | None, unit: str) -> Iterator[Any]:
            task = bars.add_task(unit, total=total)
            try:
                yield lambda done: bars.advance(task, done)
            finally:
                bars.remove_task(task)

        yield phase


class _Printer(logging.Handler):
    """Prints a line for each record."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        text = f"warning: {record.getMessage()}"
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def _warnings_on(console: Console) -> Iterator[None]:
    logger, printer = logging.getLogger("headrace.trt"), _Printer(console)
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)


def show(report: Mapping[str, Any], *, as_json: bool) -> None:
    """Print facts: one JSON object, or a line each."""
    if as_json:
        sys.stdout.write(json.dumps(report, indent=1, default=str) + "\n")
        return
    width = max(map(len, report))
    for key, value in report.items():  # not as a table, which would cut or wrap long paths
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        sys.stdout.write(f"{key:{width}}  {text}\n")


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print rows as a table, if there are any."""
    if not rows:
        return
    table = Table(*columns)
    for row in rows:
        cells = [row.get(column, "") for column in columns]
        table.add_row(*(_cell(cell) for cell in cells))
    console().print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def console() -> Console:
    return Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
