"""Codes and texts of errors; exported codes are bounded in number and hold no data of requests."""

from __future__ import annotations

from headrace.errors import HeadraceError

__all__ = ["OTHER", "bounded", "text_of"]

OTHER = "other"
"""The code for every code that no class of errors has."""

_codes = {"ok", "cancelled", "interrupt"}


def text_of(error: BaseException) -> str:
    """Return the text of an error, or the name of its type if it has none."""
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - the `__str__` is a user's
        return type(error).__name__


def bounded(code: str) -> str:
    """Return a code that a class of errors has; `OTHER` for one that a single error made up."""
    if code in _codes:
        return code
    classes: list[type[HeadraceError]] = [HeadraceError]
    while classes:
        cls = classes.pop()
        classes += cls.__subclasses__()
        own = vars(cls).get("code")
        if isinstance(own, str):
            _codes.add(own)
    return code if code in _codes else OTHER
