"""The composition expression: text to tree, tree to text, and its placeholders."""

from __future__ import annotations

from headrace._expression.parser import parse, parse_literal
from headrace._expression.placeholders import read_expression, substitute, substitute_text
from headrace._expression.templates import Template
from headrace._expression.tree import EMPTY, Args, Call, Span, Value

__all__ = [
    "EMPTY",
    "Args",
    "Call",
    "Span",
    "Template",
    "Value",
    "parse",
    "parse_literal",
    "read_expression",
    "substitute",
    "substitute_text",
]
