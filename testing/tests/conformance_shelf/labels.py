"""Putting backends on the shelf, each with the rule that must reject it."""

from __future__ import annotations

from typing import Any

import headrace
from conformance_shelf.perfect import NumbersConformance
from headrace_testing import BackendConformance  # noqa: TC001

BROKEN: list[type[BackendConformance]] = []
"""Conformance classes, each with the rule it breaks as ``breaks``."""


def broken(rule: str, name: str, **attributes: Any) -> None:
    """Put a conformance class on the shelf that must be rejected by exactly this rule."""
    BROKEN.append(type(name, (NumbersConformance,), {"breaks": rule, **attributes}))


def breaks(rule: str, **attributes: Any):
    """Put a backend on the shelf that must be rejected by exactly this rule."""

    def decorate(cls: type) -> type:
        headrace.register(cls.__name__, cls, replace=True)
        broken(rule, cls.__name__, **{"expression": cls.__name__, **attributes})
        return cls

    return decorate


def documented(text: str):
    """Return a class another docstring."""

    def decorate(cls: type) -> type:
        cls.__doc__ = text
        return cls

    return decorate
