"""Values as they are written, in expressions and under keys, and as options read them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from headrace._expression import Call, substitute_text
from headrace._options import TextWithBase
from headrace._problem import nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

__all__ = ["nearest_choice", "plain_value", "replaced"]


def plain_value(value: Any) -> Any:
    """Give a value of an expression as options read it: an expression is its text."""
    if isinstance(value, Call):
        return str(value)
    if isinstance(value, tuple):
        return [plain_value(part) for part in value]
    return value


def replaced(value: Any) -> Any:
    """Replace ``${NAME}`` in all texts of a value of the configuration; everything else stays.

    Raises:
        ConfigError: Placeholders that are wrong or have no value.
    """
    if isinstance(value, str):
        text = substitute_text(value, os.environ)
        return TextWithBase(text, value.base) if isinstance(value, TextWithBase) else text
    if isinstance(value, list):
        return [replaced(part) for part in value]
    if isinstance(value, dict):
        return {key: replaced(part) for key, part in value.items()}
    return value


def nearest_choice(detail: ErrorDetails) -> str | None:
    """Give the choice most like a text that is none of those an option has, or None."""
    got, expected = detail["input"], detail.get("ctx", {}).get("expected")
    if detail["type"] not in ("literal_error", "enum") or not isinstance(got, str):
        return None
    return nearest(got, re.findall(r"'([^']*)'", str(expected)))
