"""What a notebook shows, as an installed distribution such as headrace-cli draws it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

__all__ = ["Statistics", "html_of"]

_GROUP = "headrace.notebook"
"""The entry points of functions that draw: each gets the object, and returns HTML."""


def html_of(about: object) -> str | None:
    """Return the HTML of a pipeline, a configuration or statistics; None for the plain text."""
    from importlib.metadata import entry_points

    for point in entry_points(group=_GROUP):
        with suppress(ImportError):
            return str(point.load()(about))
    return None


class Statistics(dict[str, Any]):
    """The dict that ``stats()`` returns, which a notebook shows as tables."""

    _repr_html_ = html_of
