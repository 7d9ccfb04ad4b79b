"""What pydantic says is wrong in a table, in the words of TOML and of JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["choices_of", "text_of"]

_TABLES: Final = ("dict_type", "model_type", "model_attributes_type")
_LISTS: Final = ("list_type", "tuple_type", "set_type", "sequence_str")
_WORDS: Final = {
    "missing": "it is missing",
    **dict.fromkeys(_TABLES, "Input should be a table"),
    **dict.fromkeys(_LISTS, "Input should be a list"),
    "string_type": "Input should be a text",
    "bool_type": "Input should be true or false",
}
"""What is said in place of pydantic's words, which are those of Python, by the type of a mistake."""


def text_of(mistake: Mapping[str, Any]) -> str:
    """Return what is wrong with a value.

    Args:
        mistake: One of the ``errors()`` of a pydantic.ValidationError.
    """
    text: str = _WORDS.get(mistake["type"], mistake["msg"])
    return text.removeprefix("Value error, ").replace("an instance of Sequence", "a list")


def choices_of(mistake: Mapping[str, Any]) -> list[str]:
    """Return the texts of which a value should have been one. None, if the mistake is another one."""
    is_choice = mistake["type"] == "literal_error"
    return re.findall(r"'([^']*)'", mistake["msg"]) if is_choice else []
