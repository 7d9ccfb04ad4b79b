"""What reads expressions, and trees that are made by hand; no other module of tests looks into this part of core."""

from __future__ import annotations

from headrace._language.expression.parser import parse, read_expression
from headrace._language.expression.templates import substitute_text
from headrace._language.expression.tree import Args, Call, Template

__all__ = [
    "Args",
    "Call",
    "Template",
    "args",
    "call",
    "parse",
    "read_expression",
    "substitute_text",
]


def args(*positional, **named):
    return Args(positional, tuple(named.items()))


def call(name, *children, options=(), prefix=None, **named):
    phases = (children,) if children else ()
    return Call(name, Args(tuple(options), tuple(named.items())), phases, prefix=prefix)
