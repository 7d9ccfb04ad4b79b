"""Placeholders: a text is cut into literal pieces and placeholders, which get their values.

``{node_name}``, ``${NAME}`` and ``${NAME:-default}`` are placeholders. ``$${`` is the text ``${``,
and every other ``$`` is itself. Outside quotes ``{{`` and ``}}`` are the characters ``{`` and
``}``, and a single one is an error. Inside quotes both are ordinary characters. Only the exact
``{node_name}`` begins a placeholder there, and ``{{node_name}}`` is its text. A character that is
written as a JSON escape is never part of a placeholder. A default holds no placeholder. Outside
quotes it is made of word characters. As in a shell, ``${NAME:-default}`` takes the default when the
variable is unset or empty. Replacement happens once: the value of a placeholder is never searched
for placeholders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headrace._language.expression.tree import WORD_CHARACTER, Span, has_surrogate, shorten
from headrace.errors import ConfigError, Problem

_ESCAPES = r'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))'
_NAME = r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
BARE = re.compile(
    rf"(?P<plain>{WORD_CHARACTER}+)|(?P<twice>\$\$\{{|\{{\{{|\}}\}})|(?P<lone>\$(?!\{{))"
    rf"|(?P<node>\{{node_name\}})|{_NAME}(?::-(?P<default>{WORD_CHARACTER}*))?\}}"
)
_QUOTED = (
    r"(?P<plain>[^\\${{]+|{escapes}+)|(?P<dollar>\$\$\{{)|(?P<brace>\{{\{{node_name\}}\}})"
    r"|(?P<node>\{{node_name\}})|{name}(?::-(?P<default>{default}))?\}}"
    r"|(?P<lone>\$(?!\{{)|\{{)"
)
_DOUBLE = re.compile(
    _QUOTED.format(escapes=_ESCAPES, name=_NAME, default=rf"[^\\}}]*(?:{_ESCAPES}[^\\}}]*)*")
)
_ESCAPED = re.compile(rf"(?P<plain>[^\\]+|{_ESCAPES}+)")
_SINGLE = re.compile(_QUOTED.format(escapes=r"\\", name=_NAME, default=r"[^}]*"))
_LITERALS = {"{{": "{", "}}": "}", "$${": "${", "{{node_name}}": "{node_name}"}
"""How characters and texts are written that would otherwise be read as part of a placeholder."""
_INNER = re.compile(r"\$\{|\{node_name")


class Placeholder(NamedTuple):
    """One placeholder: an environment variable called ``name``; None stands for ``{node_name}``."""

    name: str | None
    default: str | None


Piece = str | Placeholder


def error_at(
    text: str,
    message: str,
    at: int,
    end: int | None = None,
    *,
    hint: str | None = None,
    code: str = "syntax",
) -> ConfigError:
    """Make the error for a place in an expression: one character, unless ``end`` is given."""
    span = (at, min(at + 1, len(text)) if end is None else end)
    return ConfigError(Problem(code, message, span=span, text=text, hint=hint))


def _piece_error(text: str, at: int, *, quoted: bool) -> ConfigError:
    """Make the error for the offset ``at``, where no piece of a word or quoted text begins."""
    character, message = text[at], f"{text[at]!r} belongs to no placeholder"
    if character == "\\":
        hint = "Double quotes have JSON's escapes: \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX."
        return error_at(text, f"unknown escape {text[at : at + 2]!r}", at, hint=hint)
    if text.startswith("${", at):
        where = "" if quoted else " (outside quotes a default has word characters only)"
        message = f"expected ${{NAME}} or ${{NAME:-default}}{where}"
    elif character == "{":
        inside, closer, _ = text[at : at + 40].partition("}")
        message = f"unknown placeholder {inside + closer!r}: only {{node_name}} and ${{NAME}} exist"
    itself = "$${" if character == "$" else 2 * character
    hint = f"Write '{itself}' for the text '{itself[1:]}'."
    return error_at(text, message, at, hint=hint, code="placeholder")


def split_quoted(text: str, start: int, end: int, *, double: bool, literal: bool) -> list[Piece]:
    """Cut the text between quotes into literal texts, with their escapes decoded, and placeholders.

    With ``literal`` there are no placeholders.

    Raises:
        ConfigError: An escape or a placeholder is wrong.
    """
    if literal:
        return split(text, start, end, _ESCAPED) if double else [text[start:end]]
    return split(text, start, end, _DOUBLE if double else _SINGLE)


def split(text: str, at: int, end: int, piece: re.Pattern[str] = BARE) -> list[Piece]:
    """Cut a part of ``text``, by default a bare word or name, into literal texts and placeholders.

    Raises:
        ConfigError: A part of it is neither.
    """
    double = piece in (_DOUBLE, _ESCAPED)
    pieces: list[Piece] = []
    run: list[str] = []
    begun = at
    while at < end:
        match = piece.match(text, at, end)
        if match is None:
            raise _piece_error(text, at, quoted=piece is not BARE)
        at = match.end()
        if match.lastgroup in ("node", "name", "default"):
            pieces.append(_decode(text, begun, "".join(run), double=double))
            pieces.append(_placeholder(text, match, double=double))
            run.clear()
            begun = at
        else:
            run.append(match["plain"] or _LITERALS.get(match[0], match[0]))
    pieces.append(_decode(text, begun, "".join(run), double=double))
    return [part for part in pieces if part] or [""]


def _placeholder(text: str, match: re.Match[str], *, double: bool) -> Placeholder:
    default: str | None = match["default"]
    if default is None:
        return Placeholder(match["name"], None)
    at = match.start("default")
    inner = _INNER.search(default)
    if inner is not None:
        message = "a default cannot hold a placeholder"
        raise error_at(text, message, at + inner.start(), code="placeholder")
    return Placeholder(match["name"], _decode(text, at, default, double=double))


def _decode(text: str, at: int, run: str, *, double: bool) -> str:
    """Decode JSON's escapes in a literal run that begins at ``at``."""
    if not double or "\\" not in run:
        return run
    decoded: str = json.loads(f'"{run}"')
    if has_surrogate(decoded):
        lone = re.search(r"\\u[dD][89a-fA-F]", text[at:])
        at += lone.start() if lone else 0
        raise error_at(text, "a lone surrogate cannot be encoded", at)
    return decoded


# The values of placeholders.


class MissingError(ValueError):
    """A placeholder has no value; ``hint`` says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        self.hint = hint
        super().__init__(message)

    def problem(self, span: Span, text: str) -> Problem:
        """Make the problem of this error at a place of a text."""
        return Problem("placeholder", str(self), span=span, text=text, hint=self.hint)


class Values(NamedTuple):
    """The values of placeholders.

    Attributes:
        node_name: What ``{node_name}`` stands for. None refuses it.
        environ: The environment, ``os.environ`` or the like.
    """

    node_name: str | None
    environ: Mapping[str, str]

    def of(self, placeholder: Placeholder) -> str:
        """Give the value of one placeholder.

        Raises:
            MissingError: The placeholder has no value.
        """
        name, default = placeholder
        if name is None:
            if self.node_name is None:
                hint = "Write the name, or move the text into a node."
                raise MissingError("{node_name} has no value here, outside of a node", hint)
            return self.node_name
        value = self.environ.get(name)
        if default is not None and not value:
            return default
        if value is None:
            hint = "Set it, or give a default: ${NAME:-default}."
            raise MissingError(f"the environment variable {shorten(name)!r} is not set", hint)
        if has_surrogate(value):
            message = f"the environment variable {shorten(name)!r} is no text"
            raise MissingError(message, "Use UTF-8 in it.")
        return value

    def join(self, pieces: Sequence[Piece]) -> str:
        """Join pieces to a text, each placeholder replaced; it raises as `of` does."""
        return "".join(p if isinstance(p, str) else self.of(p) for p in pieces)


_VARIABLE = _NAME + r"(?::-(?P<default>[^{}]*))?\}"
_WHOLE = re.compile(rf"\s*{_VARIABLE}\s*")
_IN_TEXT = re.compile(rf"\$\$\{{|{_VARIABLE}|\$\{{")


def placeholder_of(text: str) -> Placeholder | None:
    """Return the placeholder of an environment variable when it is the whole text, else None."""
    match = _WHOLE.fullmatch(text)
    return None if match is None else Placeholder(match["name"], match["default"])


def substitute_text(text: str, environ: Mapping[str, str]) -> str:
    """Replace the placeholders of a plain text of a configuration, which is no expression.

    ``$${`` is ``${``, every other ``$`` is itself, and braces are ordinary characters.

    Raises:
        ConfigError: Placeholders are wrong or have no value. It names all of them.
    """
    values = Values(None, environ)
    problems: list[Problem] = []

    def value(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        message = "expected ${NAME} or ${NAME:-default}, and no placeholder in a default"
        missing = MissingError(message, "Write '$${' for the text '${'.")
        try:
            if match[0] != "${":
                return values.of(Placeholder(match["name"], match["default"]))
        except MissingError as error:
            missing = error
        problems.append(missing.problem(match.span(), text))
        return match[0]

    result = _IN_TEXT.sub(value, text)
    if problems:
        raise ConfigError(problems)
    return result
