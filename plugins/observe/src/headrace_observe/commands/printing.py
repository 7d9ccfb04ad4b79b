"""What the commands that measure print: tables, plots, JSON, and what is missing."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import MissingDependencyError
from headrace_cli.for_plugins import counted, print_json, print_message
from headrace_observe.bench.gpus import gpus
from headrace_observe.bench.plots import load_panels, plot

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "plot_loads",
    "print_document",
    "print_failures",
    "print_missing_gpus",
    "print_missing_psutil",
    "print_table",
]


def plot_loads(path: str | None, rows: Sequence[tuple[str, dict[str, Any]]], title: str) -> None:
    """Draw points over their loads if ``--plot`` was given; print a message if there is nothing to draw."""
    if path is None:
        return
    panels = load_panels(rows)
    if panels:
        plot(path, panels, title, [point["clock"] for _, point in rows])
    else:
        print_message(f"--plot {path}: nothing is drawn, because no request succeeded")


def print_document(document: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Write plain data to stdout as JSON."""
    print_json(document, indent=2)


def print_missing_gpus() -> None:
    """Write to stderr which library is missing to measure the use and memory of a GPU, if there is one."""
    try:
        gpus()
    except MissingDependencyError as error:
        print_message(str(error))


def print_missing_psutil(
    explained: Iterable[Mapping[str, Any]], points: Iterable[Mapping[str, Any]]
) -> None:
    """Write to stderr that the processor time of `Process` is in no figure, where that is so for want of psutil.

    Args:
        explained: What `headrace.explain` gives for each configuration that was measured.
        points: Measured points, as JSON.
    """
    nodes = (node for plan in explained for node in plan["nodes"].values())
    alone = any(point.get("cpu", {}).get("source") == "this process" for point in points)
    if alone and any(node.get("processes") for node in nodes):
        print_message(
            "CPU cores are those of this process alone, without those of Process: psutil counts these, "
            'pip install "headrace-observe[gpu]"'
        )


def print_failures(failed: Mapping[str, int], errors: Mapping[str, str]) -> None:
    """Write to stderr how many requests failed with each code, and the text of one of these errors."""
    for code, number in failed.items():
        kind = f"{counted(number, 'request')} failed with the code {code}"
        print_message(f"{kind}{', one of them' if number > 1 else ''}: {errors[code]}")


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], keys: Sequence[int] = (0,)
) -> None:
    """Write a table to stdout: no figure is cut off, however narrow the terminal is.

    Where the terminal is narrower than the table, some columns come after the others, in tables of their own. If
    stdout is no terminal, there is one table as wide as its text.

    Args:
        headings: The heading of each column.
        rows: The cells of each row.
        keys: The columns that say what a row is about. They are repeated in each table.
    """
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table

    widths = [max(map(cell_len, cells)) for cells in zip(headings, *rows, strict=True)]
    room = Console(file=sys.stdout).width if sys.stdout.isatty() else math.inf
    # A line that the console thinks too long would be cut off.
    console = Console(
        file=sys.stdout, width=_table_width(widths) + 1, markup=False, emoji=False, highlight=False
    )
    for columns in split_columns(widths, keys, room):
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for number in columns:
            justify: Literal["left", "right"] = "right" if number else "left"
            table.add_column(headings[number], justify=justify, no_wrap=True)
        for cells in rows:
            table.add_row(*(cells[number] for number in columns))
        console.print(table)


def _table_width(widths: Sequence[int], gap: int = 3) -> int:
    """Return the width of a table whose columns are so wide: ``gap`` spaces between them, one at both ends."""
    return sum(widths) + gap * (len(widths) - 1) + 2


def split_columns(
    widths: Sequence[int], keys: Sequence[int], room: float, *, gap: int = 3
) -> list[list[int]]:
    """Divide the columns of a table into tables that are at most ``room`` wide, where single columns are."""
    if _table_width(widths, gap) <= room:
        return [[*range(len(widths))]]
    if _table_width([widths[number] for number in keys], gap) > room / 2:
        keys = keys[:1]
    tables: list[list[int]] = []
    for number in range(len(widths)):
        if number in keys:
            continue
        if not tables or _table_width([widths[k] for k in (*tables[-1], number)], gap) > room:
            tables.append([*keys])
        tables[-1].append(number)
    return tables
