"""The composition expression: text to tree, tree to text, and its placeholders."""

from __future__ import annotations

from headrace._expression.parser import parse, read_expression
from headrace._expression.templates import Template, substitute_text
from headrace._expression.tree import EMPTY, Args, Call, Span, Value

__all__ = [
    "EMPTY",
    "Args",
    "Call",
    "Span",
    "Template",
    "Value",
    "parse",
    "read_expression",
    "substitute_text",
]
