"""How values and names become the text of an error: short, safe, and with the nearest name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_MOST_SHOWN = 200

_LONG_WORD, _LONG_TEXT = 400, 4000
"""The longest word and the longest text that a message shows, in characters."""


_QUERY = re.compile(r"""(://[^\s'"?#]{0,2000}\?)([^\s'"#)]+)""")


def hide_queries(text: str) -> str:
    """Return a text of the same length in which the queries of addresses are stars."""
    return _QUERY.sub(lambda match: match[1] + "*" * len(match[2]), text)


def shorten(text: str) -> str:
    """Cut words, and then a text, that are too long to read, in their middle."""
    if len(text) > _LONG_WORD:
        text = re.sub(rf"\S{{{_LONG_WORD},}}", lambda m: f"{m[0][:60]}…{m[0][-20:]}", text)
    if len(text) > _LONG_TEXT:
        text = f"{text[: _LONG_TEXT - 400]} … {text[-300:]}"
    return text


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like ``name``, or None when none is like it."""
    by_lower: dict[str, str] = {}
    for word in known:
        by_lower.setdefault(word.lower(), word)
    if not by_lower or len(name) > 200:
        return None  # comparing takes the square of the length
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def starting(name: str, known: Iterable[str]) -> str | None:
    """Return the shortest known name that begins as ``name`` does, or None.

    Case does not matter. A ``name`` of less than three letters begins none.
    """
    begin = name.lower()
    longer = [word for word in known if word.lower().startswith(begin)]
    return min(longer, key=len, default=None) if len(begin) > 2 else None


def error_text(error: BaseException | None) -> str:
    """Return type and text of an error, even when its ``__str__`` raises."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception as broken:  # the __str__ is a user's
        return f"{type(error).__name__} (its __str__ raised {type(broken).__name__})"


def repr_of(value: object) -> str:
    """Return the repr of any value, cut to 200 characters, even when its ``__repr__`` raises."""
    try:
        text = repr(value)
    except Exception:  # a user's __repr__, or an int of too many digits
        if isinstance(value, int):
            return f"an int of {value.bit_length()} bits"
        text = object.__repr__(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
