"""The codes of errors, with a bound on how many there are: what is exported holds nothing of the requests."""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["OTHER", "bounded"]

OTHER = "other"
"""Stands for every code that no class of errors has."""

_codes = {"ok", "cancelled", "interrupt"}


def bounded(code: str) -> str:
    """Give a code that a class of errors has; `OTHER` for one that a single error made up."""
    if code in _codes:
        return code
    classes: list[type[HeadraceError]] = [HeadraceError]
    while classes:
        one = classes.pop()
        classes += one.__subclasses__()
        own = vars(one).get("code")
        if isinstance(own, str):
            _codes.add(own)
    return code if code in _codes else OTHER
