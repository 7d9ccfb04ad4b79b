"""What a notebook shows of pipelines, configurations and statistics: what headrace-cli draws, where it is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["Statistics", "html_of"]


def html_of(about: object) -> str | None:
    """Return the graph, or the tables, as a notebook shows them; None for the text of the object."""
    try:
        drawing = import_module("headrace_cli.notebook")
    except ImportError:
        return None
    shown: str = drawing.html_of(about)
    return shown


class Statistics(dict[str, Any]):
    """The dict that ``stats()`` returns, which a notebook shows as tables."""

    _repr_html_ = html_of
