"""Reflect: the expression that stands in a parameter."""

from __future__ import annotations

from headrace.words._wiring import Wiring

__all__ = ["Reflect"]


class Reflect(Wiring):
    """Build the expression that stands in a parameter: ``Reflect[key,Default]``.

    Without the parameter the default is built; without a default that is an error.

    Reads:
        What the expression reads.
    Writes:
        What the expression writes.
    Batch:
        The range of the expression.

    Raises:
        What the expression raises.
    Source:
        own
    """

    word = "reflect"
    takes = (1, 2)
    words = 1
