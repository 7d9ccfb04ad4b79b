"""Characters, words and quoted texts: what a leaf of an expression means and how it is written.

A *word* is a run of ASCII letters, digits and ``_ . - / : + @ % ~ *``. One that is wholly
``[+-]?digits[.digits][e[+-]digits]`` is a number (an int without ``.`` and ``e``), ``true``,
``false`` and ``none`` are those values, every other word is text.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata

MAX_DIGITS = 640
"""Most digits of a number: what every interpreter converts, whatever limit it was given."""

WORD_CHARACTER = r"[A-Za-z0-9_.\-/:+@%~*]"
_PLACEHOLDER = rf"\{{node_name\}}|\$\{{[A-Za-z_][A-Za-z0-9_]*(?::-{WORD_CHARACTER}*)?\}}"

WORD = re.compile(rf"{WORD_CHARACTER}+")
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.\-]*:)?[A-Za-z_][A-Za-z0-9_.\-/]*")
NAME = re.compile(
    rf"(?:(?:[A-Za-z0-9_]|{_PLACEHOLDER})(?:[A-Za-z0-9_.\-]|{_PLACEHOLDER})*:)?"
    rf"(?:[A-Za-z_]|{_PLACEHOLDER})(?:[A-Za-z0-9_.\-/]|{_PLACEHOLDER})*"
)
_NUMBER = re.compile(r"[+-]?([0-9]+)(\.[0-9]+)?(e[+-]?[0-9]+)?")
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "none": None}
_SHOWN = 40

_ODD = re.compile(r"[^\x20-\x7e]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_BLANK_LETTERS = re.compile(  # invisible although their category says letter, mark or symbol
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
_LOOKS_LIKE_PLACEHOLDER = re.compile(r"\$\{|\{node_name\}")


def shorten(text: str) -> str:
    """Cut a text that is shown inside the sentence of an error."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class NumberError(ValueError):
    """A word is a number by the rule, but not one that can be kept."""


def read_word(word: str) -> int | float | bool | str | None:
    """Give the value of a bare word.

    Raises:
        NumberError: The number has too many digits or is not finite.
    """
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    number = _NUMBER.fullmatch(word)
    if number is None:
        return word
    if len(word.lstrip("+-")) > MAX_DIGITS:
        raise NumberError(f"expected a number of at most {MAX_DIGITS} digits")
    if number[2] is None and number[3] is None:
        return int(word)
    value = float(word)
    if not math.isfinite(value):
        raise NumberError("expected a finite number, this one is too large")
    return value


def first_hidden(text: str, start: int = 0, end: int | None = None) -> int:
    """Give the offset of the first control or invisible character in a part of ``text``, or -1."""
    end = len(text) if end is None else end
    for match in _ODD.finditer(text, start, end):
        if _is_hidden(match[0]):
            return match.start()
    return -1


def _is_hidden(character: str) -> bool:
    if unicodedata.category(character) in _HIDDEN_CATEGORIES:
        return True
    return _BLANK_LETTERS.match(character) is not None


def describe(character: str) -> str:
    """Name a character for an error, so that an invisible one can be found."""
    if "!" <= character <= "~":
        return repr(character)
    name = unicodedata.name(character, "")
    return f"U+{ord(character):04X}{' ' if name else ''}{name}"


def has_surrogate(text: str) -> bool:
    """Tell whether ``text`` holds a lone surrogate, which no encoding can write."""
    return _SURROGATE.search(text) is not None


def escape(text: str) -> str:
    """Write ``text`` as it stands inside double quotes, none of it read as a placeholder."""
    body = json.dumps(text, ensure_ascii=False)[1:-1]
    body = _LOOKS_LIKE_PLACEHOLDER.sub(lambda m: "$${" if m[0] == "${" else "{{node_name}}", body)
    if body.isascii() and body.isprintable():
        return body
    return _ODD.sub(_escape_odd, body)


def _escape_odd(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable() and not _is_hidden(character):
        return character
    return f"\\u{ord(character):04x}" if character == "\x7f" else json.dumps(character)[1:-1]


def spell(value: float | bool | str | None) -> str:
    """Write a leaf so that it is read back as the same value of the same type."""
    if isinstance(value, str):
        plain = WORD.fullmatch(value) and value not in _CONSTANTS and not _NUMBER.fullmatch(value)
        return value if plain else f'"{escape(value)}"'
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
