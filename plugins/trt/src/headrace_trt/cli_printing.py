"""What ``headrace trt`` prints: JSON, tables, and the phases of a build."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["phases", "show", "table"]


@contextlib.contextmanager
def phases() -> Iterator[Any]:
    """Show a bar with its time for every phase of a build, on stderr where that is a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bars:

        @contextlib.contextmanager
        def phase(total: int | None, unit: str) -> Iterator[Any]:
            task = bars.add_task(unit, total=total)
            try:
                yield lambda done: bars.advance(task, done)
            finally:
                bars.remove_task(task)

        yield phase


def show(told: Mapping[str, Any], *, as_json: bool) -> None:
    """Print facts: one JSON object, or a line each."""
    if as_json:
        sys.stdout.write(json.dumps(told, indent=1, default=str) + "\n")
        return
    width = max(map(len, told))
    for key, value in told.items():  # no table: a path that is cut off or broken cannot be used
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
