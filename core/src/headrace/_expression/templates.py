"""Texts that hold placeholders: how they are cut into pieces, written, and what they stand for.

``{node_name}``, ``${NAME}`` and ``${NAME:-default}`` are placeholders. Outside quotes ``$$``,
``{{`` and ``}}`` are the characters ``$``, ``{`` and ``}``, and a single one is an error. Inside
quotes ``$``, ``{`` and ``}`` are themselves; only the exact ``{node_name}`` and ``${`` count, and
``$${`` and ``{{node_name}}`` are the texts ``${`` and ``{node_name}``. What a JSON escape brings
in is never part of a placeholder. A default holds no placeholder; outside quotes it is made of
word characters. ``${NAME:-default}`` takes the default, as in a shell, when the variable is unset or
empty. Replacement happens once: what a placeholder brings in is never searched again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from headrace._expression.tree import WORD_CHARACTER, has_surrogate, shorten
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_ESCAPES = r'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))'
_NAME = r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
_BARE = re.compile(
    rf"(?P<plain>{WORD_CHARACTER}+)|(?P<twice>\$\$|\{{\{{|\}}\}})|(?P<node>\{{node_name\}})"
    rf"|{_NAME}(?::-(?P<default>{WORD_CHARACTER}*))?\}}"
)
_QUOTED = (
    r"(?P<plain>[^\\${{]+|{escapes}+)|(?P<dollar>\$\$\{{)|(?P<brace>\{{\{{node_name\}}\}})"
    r"|(?P<node>\{{node_name\}})|{name}(?::-(?P<default>{default}))?\}}"
    r"|(?P<lone>\$(?!\{{)|\{{)"
)
_DOUBLE = re.compile(
    _QUOTED.format(escapes=_ESCAPES, name=_NAME, default=rf"[^\\}}]*(?:{_ESCAPES}[^\\}}]*)*")
)
_ESCAPED = re.compile(rf"(?:[^\\]+|{_ESCAPES}+)*")
_SINGLE = re.compile(_QUOTED.format(escapes=r"\\", name=_NAME, default=r"[^}]*"))
_LITERALS = {"$$": "$", "{{": "{", "}}": "}", "$${": "${", "{{node_name}}": "{node_name}"}
"""What is written for a character, or a beginning, that would else be read as a placeholder."""
_INNER = re.compile(r"\$\{|\{node_name")


class Placeholder(NamedTuple):
    """One placeholder: ``name`` None is ``{node_name}``, else an environment variable."""

    name: str | None
    default: str | None


Piece = str | Placeholder


class TemplateError(ValueError):
    """A text is wrong at ``offset``: of which kind is in ``code``, what to do in ``hint``."""

    def __init__(
        self, offset: int, message: str, hint: str | None = None, *, code: str = "placeholder"
    ) -> None:
        self.offset = offset
        self.hint = hint
        self.code = code
        super().__init__(message)


def _wrong(text: str, at: int, *, quoted: bool) -> TemplateError:
    """Say what is wrong at ``at``, where no piece of a text begins."""
    character = text[at]
    if character == "\\":
        message = f"unknown escape {text[at : at + 2]!r}"
        hint = "Double quotes have JSON's escapes: \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX."
        return TemplateError(at, message, hint, code="syntax")
    literal = f"Write '{character}{character}{'{' if quoted else ''}' for the character itself."
    if text.startswith("${", at):
        where = "" if quoted else " (outside quotes a default has word characters only)"
        return TemplateError(at, f"expected ${{NAME}} or ${{NAME:-default}}{where}", literal)
    if character == "{":
        inside, closer, _ = text[at : at + 40].partition("}")
        unknown = f"unknown placeholder {inside + closer!r}"
        return TemplateError(at, f"{unknown}: only {{node_name}} and ${{NAME}} exist", literal)
    return TemplateError(at, f"{character!r} belongs to no placeholder", literal)


def split_bare(text: str) -> list[Piece]:
    """Cut a bare word or name into literal texts and placeholders.

    Raises:
        TemplateError: Something in it is no piece of a word.
    """
    return _split(text, _BARE)


def split_quoted(body: str, *, double: bool, literal: bool) -> list[Piece]:
    """Cut what stands between quotes into literal texts and placeholders, escapes decoded.

    With ``literal`` there are no placeholders.

    Raises:
        TemplateError: An escape or a placeholder is wrong.
    """
    if "$" not in body and "{" not in body and "\\" not in body:
        return [body]
    if literal:
        return [_without_placeholders(body, double=double)]
    return _split(body, _DOUBLE if double else _SINGLE)


def _split(text: str, piece: re.Pattern[str]) -> list[Piece]:
    double = piece is _DOUBLE
    pieces: list[Piece] = []
    run: list[str] = []
    at = 0
    while at < len(text):
        match = piece.match(text, at)
        if match is None:
            raise _wrong(text, at, quoted=piece is not _BARE)
        if match.lastgroup in ("node", "name", "default"):
            pieces += [_decoded("".join(run), at, double=double), _placeholder(match, double)]
            run.clear()
        else:
            run.append(match["plain"] or _LITERALS.get(match[0], match[0]))
        at = match.end()
    pieces.append(_decoded("".join(run), at, double=double))
    return [one for one in pieces if one] or [""]


def _without_placeholders(body: str, *, double: bool) -> str:
    match = _ESCAPED.match(body) if double else None
    if match is not None and match.end() < len(body):
        raise _wrong(body, match.end(), quoted=True)
    return _decoded(body, len(body), double=double)


def _placeholder(match: re.Match[str], double: bool) -> Placeholder:
    default: str | None = match["default"]
    if default is None:
        return Placeholder(match["name"], None)
    inner = _INNER.search(default)
    if inner is not None:
        at = match.start("default") + inner.start()
        raise TemplateError(at, "a default cannot hold a placeholder")
    return Placeholder(match["name"], _decoded(default, match.start(), double=double))


def _decoded(run: str, at: int, *, double: bool) -> str:
    """Decode JSON's escapes in a literal run that ends or begins at ``at``."""
    if not double or "\\" not in run:
        return run
    text: str = json.loads(f'"{run}"')
    if has_surrogate(text):
        lone = re.search(r"\\u[dD][89a-fA-F]", run)
        offset = max(0, at - len(run)) + (lone.start() if lone else 0)
        raise TemplateError(offset, "a lone surrogate cannot be encoded", code="syntax")
    return text


# What placeholders stand for.


class MissingError(ValueError):
    """A placeholder has no value; what to do is in ``hint``."""

    def __init__(self, message: str, hint: str) -> None:
        self.hint = hint
        super().__init__(message)


class Values(NamedTuple):
    """What placeholders stand for.

    Attributes:
        node_name: What ``{node_name}`` stands for; None refuses it.
        environ: The environment, ``os.environ`` or the like.
    """

    node_name: str | None
    environ: Mapping[str, str]

    def of(self, placeholder: Placeholder) -> str:
        """Give the text of one placeholder.

        Raises:
            MissingError: It has none.
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
            what = f"the environment variable {shorten(name)!r} is no text"
            raise MissingError(what, "Use UTF-8 in it.")
        return value

    def join(self, pieces: Sequence[Piece]) -> str:
        """Put pieces together, each placeholder replaced; it raises as `of` does."""
        return "".join(p if isinstance(p, str) else self.of(p) for p in pieces)


_VARIABLE = _NAME + r"(?::-(?P<default>[^{}]*))?\}"
_WHOLE = re.compile(rf"\s*{_VARIABLE}\s*")
_IN_TEXT = re.compile(rf"\$\$|{_VARIABLE}|\$\{{")


def whole_placeholder(text: str) -> Placeholder | None:
    """Give the environment variable that all of a text is, None if it is not just one."""
    match = _WHOLE.fullmatch(text)
    return None if match is None else Placeholder(match["name"], match["default"])


def substitute_text(text: str, environ: Mapping[str, str]) -> str:
    """Put values in the place of the placeholders of a plain text of a configuration.

    ``$$`` is ``$``, a ``$`` before anything but ``{`` is itself, and braces are ordinary characters.

    Raises:
        ConfigError: Placeholders that are wrong or have no value; all of them.
    """
    values = Values(None, environ)
    problems: list[Problem] = []

    def value(match: re.Match[str]) -> str:
        found = match[0]
        if found == "$$":
            return "$"
        if found == "${":
            message, hint = "expected ${NAME}, got '${'", "Write '$$' for '$'."
        else:
            try:
                return values.of(Placeholder(match["name"], match["default"]))
            except MissingError as error:
                message, hint = str(error), error.hint
        problems.append(Problem("placeholder", message, span=match.span(), text=text, hint=hint))
        return found

    result = _IN_TEXT.sub(value, text)
    if problems:
        raise ConfigError(problems)
    return result
