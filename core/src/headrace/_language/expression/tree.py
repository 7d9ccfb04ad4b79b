"""The tree that an expression is parsed into, and its leaves: frozen, compared by type and value.

Two trees are equal when they are written the same, so ``1``, ``1.0``, ``true`` and ``"1"`` differ.
The place where a tree was written (``span``, ``text``) does not count.

A *word* is a run of ASCII letters, digits and ``_ . - / : + @ % ~ *``. A word that is wholly
``[+-]?digits[.digits][e[+-]digits]`` is a number (an int without ``.`` and ``e``), ``true``,
``false`` and ``none`` are those values, every other word is text.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final

Span: TypeAlias = tuple[int, int]
Value: TypeAlias = "int | float | bool | str | tuple[Value, ...] | Call | None"


class _Node:
    """Base of `Call` and `Args`: two are equal when they are written the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        out: list[str] = []
        _write(self, out)
        return "".join(out)


@final
@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Args(_Node):
    """The content of one pair of parentheses.

    Attributes:
        positional: The values without a key, in order. A list is a tuple.
        named: The ``(key, value)`` pairs, in order.
        spans: Where each argument stands in the text, positional ones first, keys included.
            Empty for args that were not parsed.
        span: Where the args stand in the text, parentheses included, or None.
    """

    positional: tuple[Value, ...] = ()
    named: tuple[tuple[str, Value], ...] = ()
    spans: tuple[Span, ...] = field(default=(), kw_only=True)
    span: Span | None = field(default=None, kw_only=True)

    @property
    def values(self) -> tuple[Value, ...]:
        """All values, in order."""
        return (*self.positional, *(value for _, value in self.named))

    def span_of(self, which: int | str) -> Span | None:
        """Return the place of an argument by its key, or by its index, positional ones first."""
        if isinstance(which, str):
            which = len(self.positional) + [key for key, _ in self.named].index(which)
        return self.spans[which] if self.spans else None

    def __len__(self) -> int:
        return len(self.positional) + len(self.named)

    def __repr__(self) -> str:
        return f"<Args {self}>"


EMPTY = Args()
"""The arguments of a name without parentheses."""


@final
@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Call(_Node):
    """A name with its prefix, options and bracket: one element of an expression.

    Attributes:
        name: The name as written, a plugin's qualifier included.
        args: The options. Empty when absent.
        phases: The content of ``[ ]``, cut at ``;`` and then at ``,``. Empty without a bracket.
        prefix: The arguments in front of the name, or None.
        span: Where the element stands in ``text``, prefix included, or None.
        name_span: Where the name stands, or None.
        text: The whole text from which the element was parsed, or None.
        source: The `headrace._language.plan.element.Source` of that text, or None.
    """

    name: str
    # This is a factory: under `python -OO` dataclass makes a docstring with the repr() of plain
    # defaults, which needs functions that are defined further below.
    args: Args = field(default_factory=lambda: EMPTY)
    phases: tuple[tuple[Call, ...], ...] = ()
    prefix: Args | None = field(default=None, kw_only=True)
    span: Span | None = field(default=None, kw_only=True)
    name_span: Span | None = field(default=None, kw_only=True)
    text: str | None = field(default=None, kw_only=True)
    source: Any = field(default=None, kw_only=True)

    @property
    def plugin(self) -> str | None:
        """The qualifier in front of the name, ``cv`` in ``cv:ResizeMat``, or None."""
        match = _QUALIFIER.match(self.name)
        return None if match is None else match[0][:-1]

    @property
    def part(self) -> str:
        """The name without the qualifier of a plugin."""
        return _QUALIFIER.sub("", self.name) if ":" in self.name else self.name

    @property
    def children(self) -> tuple[Call, ...]:
        """The content of ``[ ]``, all phases one after the other."""
        return tuple(child for phase in self.phases for child in phase)

    def replace(self, **changes: Any) -> Call:
        """Return a copy with some attributes changed."""
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        return f"parse({str(self)!r})"


class Template(str):
    """A word or quoted text with placeholders, as it was written, quotes included.

    Only trees of `parse` have it. `read_expression` replaces it by its text or value.
    """

    __slots__ = ()


# The canonical text of a tree: without blanks, with quotes only where they are needed.


# Few frames per level: a tree may be written wherever on the stack a user or the planner stands.


def _write(node: Any, out: list[str]) -> None:
    """Add the text of an element, or of args, piece by piece."""
    if isinstance(node, Args):
        mark = "("
        for key, value in (*[(None, plain) for plain in node.positional], *node.named):
            out.append(mark if key is None else f"{mark}{key}=")
            _write_value(value, out)
            mark = ","
        out.append(")" if len(node) else "()")
        return
    if node.prefix is not None:
        _write(node.prefix, out)
    out.append(node.name)
    if len(node.args):
        _write(node.args, out)
    mark = "["
    for phase in node.phases:
        for child in phase:
            out.append(mark)
            _write(child, out)
            mark = ","
        mark = ";"
    out.append("]" if node.phases else "")


def _write_value(value: Value, out: list[str]) -> None:
    if isinstance(value, Call):
        _write(value, out)
        out.append("" if len(value.args) or value.phases else "()")  # else it reads as a word
    elif isinstance(value, tuple):
        mark = "["
        for part in value:
            out.append(mark)
            _write_value(part, out)
            mark = ","
        out.append("]" if value else "[]")
    else:
        out.append(value if isinstance(value, Template) else spell(value))


# The leaves: the meaning of words and quoted texts, and how values are written.

MAX_DIGITS = 640
"""How many digits a number may have: the lowest limit that Python's own conversion can have."""

WORD_CHARACTER = r"[A-Za-z0-9_.\-/:+@%~*]"
_PLACEHOLDER = rf"\{{node_name\}}|\$\{{[A-Za-z_][A-Za-z0-9_]*(?::-{WORD_CHARACTER}*)?\}}"

WORD = re.compile(rf"{WORD_CHARACTER}+")
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.\-]*:)?[A-Za-z_][A-Za-z0-9_.\-/]*")
NAME = re.compile(
    rf"(?:(?:[A-Za-z0-9_]|{_PLACEHOLDER})(?:[A-Za-z0-9_.\-]|{_PLACEHOLDER})*:)?"
    rf"(?:[A-Za-z_]|{_PLACEHOLDER})(?:[A-Za-z0-9_.\-/]|{_PLACEHOLDER})*"
)
_QUALIFIER = re.compile(r"^(?:[^:{]|\{[^}]*\})*:")
"""The plugin in front of a name; a placeholder in it may contain a ``:`` of its own."""
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
    """Shorten a text that is shown inside the sentence of an error."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class NumberError(ValueError):
    """A word is a number by the rule, but has too many digits or is not finite."""


def read_word(word: str) -> int | float | bool | str | None:
    """Return the value of a bare word.

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


def first_hidden(text: str, start: int, end: int) -> re.Match[str] | None:
    """Return the first control or invisible character in a part of ``text``."""
    odd = _ODD.finditer(text, start, end)
    return next((match for match in odd if is_hidden(match[0])), None)


def is_hidden(character: str) -> bool:
    """Tell whether a character is a control character, or cannot be seen."""
    controls = unicodedata.category(character) in _HIDDEN_CATEGORIES
    return controls or _BLANK_LETTERS.match(character) is not None


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
    """Write ``text`` as it stands inside double quotes, where no part of it is a placeholder."""
    body = json.dumps(text, ensure_ascii=False)[1:-1]
    body = _LOOKS_LIKE_PLACEHOLDER.sub(lambda m: "$${" if m[0] == "${" else "{{node_name}}", body)
    return _ODD.sub(lambda m: escape_of(m[0]) if is_hidden(m[0]) else m[0], body)


def escape_of(character: str) -> str:
    """Give the JSON escape of one character."""
    short = json.dumps(character)[1:-1]
    return short if short.startswith("\\") else f"\\u{ord(character):04x}"


def spell(value: float | bool | str | None) -> str:
    """Write a leaf so that parsing it gives the same value of the same type."""
    if isinstance(value, str):
        plain = WORD.fullmatch(value) and value not in _CONSTANTS and not _NUMBER.fullmatch(value)
        return value if plain else f'"{escape(value)}"'
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)
