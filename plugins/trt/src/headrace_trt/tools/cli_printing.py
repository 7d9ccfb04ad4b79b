"""Prints the output of ``headrace trt``: JSON, facts, and tables of layers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace_cli.for_plugins import print_data

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["show"]


def show(
    report: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]] = (),
    columns: Sequence[str] = (),
    as_json: bool = False,
) -> None:
    """Print a report as one JSON object, or its facts as a line each and its layers as a table.

    Args:
        report: The report.
        rows: Its ``layers``.
        columns: Their keys that are shown.
        as_json: Whether all is printed as JSON.
    """
    if as_json:
        print_data(json.dumps(report, indent=1, default=str))
        return
    facts = {key: value for key, value in report.items() if key != "layers"}
    width = max(map(len, facts))
    for key, value in facts.items():  # not as a table, which would cut or wrap long paths
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        print_data(f"{key:{width}}  {text}")
    if rows:
        from rich.console import Console
        from rich.table import Table

        table = Table(*columns)
        for row in rows:
            table.add_row(*(_cell(row.get(column, "")) for column in columns))
        Console(markup=False, emoji=False, highlight=False, soft_wrap=True).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
