"""The base of the words that wire others together."""

from __future__ import annotations

from typing import ClassVar, Literal

from headrace._backend import Backend

__all__ = ["Wiring"]


class Wiring(Backend):
    """Base of the words that wire others together.

    Attributes:
        word: How the planner treats it.
        words: How many of its children are words, not backends.
    """

    word: ClassVar[
        Literal[
            "ioc",
            "di",
            "with",
            "instance",
            "param",
            "reflect",
            "register",
            "instances",
            "list",
            "repost",
        ]
    ]
    words: ClassVar[int] = 0
