"""Results as the cells of a table: ``--out x.csv``, ``--columns``."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from headrace_cli.printing import escaped, opened

NO_CELL = "its result has no cell in a CSV: {}. --columns gives each of its values a column, --out FILE.jsonl takes any result"


class NoCellError(ValueError):
    """A result cannot be one cell, or none of the columns that the file has."""


def cell(value: Any) -> str:
    """Return a text, a number, a truth value or None as the text of a cell.

    Raises:
        NoCellError: The value is none of these.
    """
    plain = (
        value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    )
    if plain is None:
        return ""
    if isinstance(plain, str):
        return escaped(plain)
    if isinstance(plain, (bool, int, float)):
        return str(plain)
    kind = type(value).__name__
    shape = getattr(value, "shape", None)
    raise NoCellError(NO_CELL.format(f"{kind} {list(shape)}" if shape is not None else kind))


def cells_by_column(value: Any, name: str = "result") -> dict[str, str]:
    """Return the cell of each value in a result: ``a``, ``b`` for a dict, ``result_0``, ``result_1`` for a list or array.

    Raises:
        NoCellError: A value in it is neither, nor has a cell.
    """
    value = opened(value)
    if getattr(value, "shape", None) and callable(getattr(value, "tolist", None)):
        value = value.tolist()
    if isinstance(value, Mapping):
        parts = {
            str(key) if name == "result" else f"{name}_{key}": inner for key, inner in value.items()
        }
    elif isinstance(value, (list, tuple)):
        parts = {f"{name}_{k}": inner for k, inner in enumerate(value)}
    else:
        return {name: cell(value)}
    cells: dict[str, str] = {}
    for key, inner in parts.items():
        cells.update(cells_by_column(inner, key))
    return cells


def row(cells: Any) -> str:
    """Return a line of a CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()
