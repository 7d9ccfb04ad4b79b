"""What a notebook shows of pipelines, configurations and statistics: headrace-cli draws it, else it is their text."""

from __future__ import annotations

import importlib
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Statistics", "graph_html"]

_DRAWING = "headrace_cli.notebook"


class Statistics(dict[str, Any]):
    """The dict that ``stats()`` returns, which a notebook shows as tables."""

    def _repr_html_(self) -> str:
        return _html(self, lambda drawing: drawing.tables_html(self))


def graph_html(about: object, explained: Callable[[], Any]) -> str:
    """Return the drawn graph of a pipeline below its text; the text alone where nothing can draw it.

    Args:
        about: The object that is shown.
        explained: Returns what `headrace.explain` says of it.
    """
    return _html(about, lambda drawing: drawing.graph_html(about, explained()))


def _html(about: object, draw: Callable[[Any], str]) -> str:
    try:
        drawing = importlib.import_module(_DRAWING)
    except ImportError:
        return f"<p><code>{escape(repr(about))}</code></p>"
    return draw(drawing)
