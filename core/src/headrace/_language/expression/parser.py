"""The one parser of the composition expression.

::

    expression := [ "(" args ")" ] name [ "(" [ args ] ")" ] [ "[" phase { ";" phase } "]" ]
    phase      := expression { "," expression }
    args       := arg { "," arg }                  positional first; a key once
    arg        := value | key "=" value            key: letter or _, then letters digits _
    value      := quoted | list | word "(" ... or word "[" ...  -> expression | word
    list       := "[" [ value { "," value } ] "]"
    name       := [ plugin ":" ] part
    part       := (letter | _ | placeholder) then letters digits _ . - / placeholder
    plugin     := (letter | digit | _ | placeholder) then letters digits _ . - placeholder
    word       := name characters and : + @ % ~ *
    quoted     := '"' JSON's escapes '"' | "'" no escapes "'"

White space (space, tab, newline, carriage return) is free outside quotes. Each rule is a method
that calls the rules in it: a text is nested at most `MAX_DEPTH` levels deep. Time and memory are
linear in the text.

`read_expression` replaces a placeholder where it is read, so that its value can neither end a name
or text nor begin another:

- In a name the value becomes part of the name, which must still be a name.
- In quotes the value becomes part of the text.
- A bare word with ``${...}`` in it is read as a word again: with ``M`` being 8, ``max=${M}`` and
  ``max=1${M}`` are numbers and ``x${M}`` is a text. If the word is one ``${NAME}``, the value may
  also be a list, an expression or quoted text. Any other value is a text as it stands.
- An expression that is one ``${NAME}`` is replaced and then parsed.
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from headrace._language.expression.nesting import MAX_DEPTH, TOO_DEEP, with_room
from headrace._language.expression.templates import (
    MissingError,
    Piece,
    Placeholder,
    Values,
    error_at,
    placeholder_of,
    split,
    split_quoted,
)
from headrace._language.expression.tree import (
    EMPTY,
    KEY,
    NAME,
    PLAIN_NAME,
    WORD,
    WORD_CHARACTER,
    Args,
    Call,
    NumberError,
    Span,
    Template,
    Value,
    describe,
    escape_of,
    first_hidden,
    has_surrogate,
    is_hidden,
    read_word,
    shorten,
    spell,
)
from headrace.errors import ConfigError, Problem

_BLANKS = (" ", "\t", "\n", "\r")
_WIDE_WORD = re.compile(rf"{WORD_CHARACTER[:-1]}${{}}]+")
_INSIDE = {'"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL), "'": re.compile(r"[^']*")}
_NO_VALUES = Values(None, {})
_PATH = re.compile(
    r"\s*(?:\w+\s*=\s*)?"
    r"""(?P<path>(?![\s'"])(?:[^][(),]|\([^()]*\)|\[[^][]*\])*"""
    r"[/\\](?:[^][(),]|\([^()]*\)|\[[^][]*\])*)"
)
"""A value that looks like a path, also where its characters are allowed in quotes alone."""


@dataclass(slots=True)
class _Open:
    """A ``(`` or ``[`` that is not closed yet.

    Attributes:
        at: The offset of the bracket.
        closer: The character that closes it.
        wants: What may follow a value in it, for errors.
        key: The key whose value is being read, None for a value without a key.
    """

    at: int
    closer: str
    wants: str
    key: str | None = None


class _Parser:
    """Reads a text: the tokens one after the other, and by them the rules of the grammar.

    Attributes:
        text: The whole text.
        refuse: Makes the error for a place in it, which the caller raises; see `error_at`.
        at: The offset of the next token.
        end: The offset after the last token.
        literal: Whether there are no placeholders, and ``$``, ``{`` and ``}`` are as any other.
        values: The values of placeholders. None keeps placeholders as they are written.
        problems: The problems of placeholders.
        source: The ``source`` of every `Call`.
        open: The brackets that are not closed yet, the innermost last.
    """

    def __init__(
        self, text: str, *, literal: bool = False, values: Values | None = None, source: Any = None
    ) -> None:
        self.text, self.refuse = text, partial(error_at, text)
        self.at = 0
        self.end = 0
        self.literal = literal
        self.values = values
        self.source = source
        self.problems: list[Problem] = []
        self.open: list[_Open] = []

    # Tokens.

    def peek(self) -> str:
        """Skip blanks and give the character that follows, ``""`` at the end of the text."""
        while (character := self.text[self.at : self.at + 1]) in _BLANKS:
            self.at += 1
        return character

    def take(self) -> None:
        """Step over the one character that `peek` gave."""
        self.at += 1
        self.end = self.at

    def enter(self, closer: str, wants: str) -> _Open:
        """Step over an opening bracket."""
        bracket = _Open(self.at, closer, wants)
        self.open.append(bracket)
        self.take()
        return bracket

    def separator(self, marks: str) -> str:
        """Read and give one of ``marks``; give ``""`` at the end of the innermost bracket."""
        mark, bracket = self.peek(), self.open[-1]
        if mark == bracket.closer:
            self.open.pop()
            self.take()
            return ""
        if not mark or mark not in marks:
            raise self.unexpected_error(bracket.wants)
        self.take()
        return mark

    def word(self) -> str:
        """Read a word as written, placeholders included; ``""`` if no word begins here."""
        start = self.at
        match = _WIDE_WORD.match(self.text, start)
        if match is not None:
            self.at = self.end = match.end()
        return self.text[start : self.at]

    def pieces_of(self, word: str, start: int) -> list[Piece]:
        """Cut a word that was read at ``start`` into literal texts and placeholders."""
        if self.literal or WORD.fullmatch(word):
            return [word]
        return split(self.text, start, start + len(word))

    def read_quoted(self) -> str:
        """Read a quoted text, and replace its placeholders or keep them."""
        start, mark = self.at, self.text[self.at]
        match = _INSIDE[mark].match(self.text, start + 1)
        close = match.end() if match else start + 1
        if self.text[close : close + 1] != mark:
            message = f"expected a closing {mark}, but the text ended; the quotes open here"
            raise self.refuse(message, start)
        if (hidden := first_hidden(self.text, start + 1, close)) is not None:
            character = hidden[0]
            hint = f"Write it as {escape_of(character)} between double quotes."
            if has_surrogate(character):
                hint = "A lone surrogate cannot be encoded; remove it."
            message = f"expected visible characters between quotes, got {describe(character)}"
            raise self.refuse(message, hidden.start(), hint=hint)
        self.at = self.end = close + 1
        pieces = split_quoted(self.text, start + 1, close, double=mark == '"', literal=self.literal)
        if self.values is None and any(isinstance(piece, Placeholder) for piece in pieces):
            return Template(self.text[start : self.end])
        return self.join(pieces, start)

    def name_of(self, word: str, start: int) -> str:
        """Return the name that a word is, with its placeholders replaced or kept."""
        if PLAIN_NAME.fullmatch(word):
            return word
        pieces = self.pieces_of(word, start)
        if self.literal or not NAME.fullmatch(word):
            hint = self._path_hint() or (
                "Options stand in ( ), backends in [ ]. A name is a letter or '_', then letters, "
                "digits and '_', '.', '-', '/'; a plugin and ':' may stand in front."
            )
            message = f"expected a name, got {shorten(word)!r}"
            raise self.refuse(message, start, start + len(word), hint=hint)
        if self.values is None:
            return word
        name = self.join(pieces, start, word)
        if PLAIN_NAME.fullmatch(name) or name == word:
            return name
        hint = "A placeholder in an expression is part of a name."
        self.note(f"expected a name, got {shorten(name)!r} from {shorten(word)!r}", start, hint)
        return word

    def join(self, pieces: list[Piece], start: int, otherwise: str = "") -> str:
        """Join pieces to a text.

        Where a placeholder has no value, it notes that and gives ``otherwise``.
        """
        try:
            return (self.values or _NO_VALUES).join(pieces)
        except MissingError as error:
            self.note(str(error), start, error.hint)
            return otherwise

    def note(self, message: str, start: int, hint: str) -> None:
        """Add a problem of a placeholder in the token that was just read."""
        span = (start, self.end)
        self.problems.append(Problem("placeholder", message, span=span, text=self.text, hint=hint))

    def finish(self) -> None:
        """Refuse any text that follows the finished expression."""
        if character := self.peek():
            hint = "Several elements stand in a container: S[A,B] runs A, then B."
            if character in ")]":
                hint = "Nothing is open that it could close."
            raise self.unexpected_error("the end of the text", hint)

    # Making errors, which the caller raises.

    def unexpected_error(self, expected: str, hint: str | None = None) -> ConfigError:
        """Make the error for a token that stands where ``expected`` has to stand."""
        character, bracket = self.peek(), self.open[-1] if self.open else None
        if not character:
            return self._end_error(expected, bracket)
        last = self.text[self.end - 1]
        if bracket is not None and character == bracket.closer and last in ",;":
            return self.refuse(f"trailing {last!r}: expected {expected} after it", self.end - 1)
        got = describe(character)
        if bracket is not None and character in ")]" and character != bracket.closer:
            got += f"; open is the {self.text[bracket.at]!r} at {bracket.at}"
        elif is_hidden(character):
            hint = "Remove it; control and invisible characters are allowed nowhere."
        elif not character.isascii():
            hint = "Put the text in quotes: outside them only ASCII is allowed."
        else:
            hint = hint or self._path_hint()
        return self.refuse(f"expected {expected}, got {got}", self.at, hint=hint)

    def _path_hint(self) -> str | None:
        """Say how to write the value that is being read, if it looks like a path without quotes."""
        begin = 1 + max(self.text.rfind(mark, 0, self.end) for mark in "(,[")
        match = _PATH.match(self.text, begin)
        if match is None or not self.open or ";" in self.open[-1].wants:
            return None
        path = match["path"].strip()
        written = spell(path) if "'" in path else f"'{path}'"
        return f"A path with such characters stands in quotes: {shorten(written)}"

    def _end_error(self, expected: str, bracket: _Open | None) -> ConfigError:
        """Make the error for a text that ends too early."""
        length = len(self.text)
        if bracket is not None:
            ended = f"expected {expected}, but the text ended after {length} characters"
            return self.refuse(f"{self.text[bracket.at]!r} is never closed: {ended}", bracket.at)
        if not self.end:
            return self.refuse("empty expression: expected a name", 0, length)
        return self.refuse(f"expected {expected}, but the text ended", length)

    # Rules.

    def element(self) -> Call:
        """Read an element."""
        prefix, args = None, EMPTY
        phases: tuple[tuple[Call, ...], ...] = ()
        character, start = self.peek(), self.at
        if len(self.open) > MAX_DEPTH:
            raise self.refuse(TOO_DEEP, self.at, code="nesting")
        if character == "(":
            prefix = self.arguments(may_be_empty=False)
            self.peek()
        name_start, word = self.at, self.word()
        if not word:
            raise self.unexpected_error("a name")
        name, name_span = self.name_of(word, name_start), (name_start, self.end)
        if (character := self.peek()) == "(":
            args = self.arguments()
            character = self.peek()
        if character == "[":
            phases = self.phases()
            character = self.peek()
        if character in ("(", "["):
            raise self.refuse("a name has one '( )', and after it one '[ ]': A(c)[B]", self.at)
        span = (start, self.end)
        where = {"span": span, "name_span": name_span, "text": self.text, "source": self.source}
        return Call(name, args, phases, prefix=prefix, **where)

    def phases(self) -> tuple[tuple[Call, ...], ...]:
        """Read the bracket of a name."""
        bracket = self.enter("]", "',', ';' or ']'")
        if self.peek() == "]":
            message = "empty brackets: expected a name between '[' and ']'"
            raise self.refuse(message, bracket.at, self.at + 1, hint="Leave the brackets out.")
        phases: list[list[Call]] = [[]]
        mark = ","
        while mark:
            phases[-1].append(self.element())
            mark = self.separator(",;")
            if mark == ";":
                phases.append([])
        return tuple(map(tuple, phases))

    def arguments(self, *, may_be_empty: bool = True) -> Args:
        """Read the content of parentheses: values first, then keys with values."""
        bracket = self.enter(")", "',' or ')'")
        if self.peek() == ")" and not may_be_empty:
            hint = "Remove the '()' in front of the name."
            raise self.refuse("empty prefix: expected a value", bracket.at, self.at + 1, hint=hint)
        positional: list[Value] = []
        named: dict[str, Value] = {}
        spans: list[Span] = []
        mark = self.separator(",") if self.peek() == ")" else ","
        while mark:
            self.peek()
            start, word = self.at, self.word()
            if word and self.peek() == "=":
                if not KEY.fullmatch(word):
                    message = f"expected a key (letters, digits and '_'), got {shorten(word)!r}"
                    span = (start, start + len(word))
                    raise self.refuse(message, *span, hint=self._path_hint())
                self.take()
                bracket.key = word
            else:  # the word is no key: it is the value, or begins the value
                self.at = start
            value = self.value()
            span = (start, self.end)
            if bracket.key is None:
                if named:
                    last = shorten(next(reversed(named)))
                    message = f"positional value after {last!r}: expected key=value"
                    raise self.refuse(message, *span, hint="Values without a key come first.")
                positional.append(value)
            elif bracket.key in named:
                raise self.refuse(f"key {shorten(bracket.key)!r} stands twice", *span)
            else:
                named[bracket.key] = value
            spans.append(span)
            bracket.key = None
            mark = self.separator(",")
        span = (bracket.at, self.end)
        return Args(tuple(positional), tuple(named.items()), spans=tuple(spans), span=span)

    def value(self) -> Value:
        """Read an argument or an element of a list."""
        character, start = self.peek(), self.at
        if character in ("'", '"'):
            return self.read_quoted()
        if character == "[":
            return self.list_of_values()
        word = self.word()
        if not word:
            key = self.open[-1].key if self.open else None
            raise self.unexpected_error(
                "a value" if key is None else f"a value for {shorten(key)!r}"
            )
        if self.peek() in ("(", "["):  # the word is the name of an expression
            self.at = start
            return self.element()
        return self._word_value(word, start)

    def list_of_values(self) -> tuple[Value, ...]:
        """Read a list."""
        if len(self.open) > MAX_DEPTH:
            raise self.refuse(TOO_DEEP, self.at, code="nesting")
        self.enter("]", "',' or ']'")
        values: list[Value] = []
        mark = self.separator(",") if self.peek() == "]" else ","
        while mark:
            values.append(self.value())
            mark = self.separator(",")
        return tuple(values)

    def _word_value(self, word: str, start: int) -> Value:
        pieces = self.pieces_of(word, start)
        templated = any(isinstance(piece, Placeholder) for piece in pieces)
        if templated and self.values is None:
            return Template(word)
        text = self.join(pieces, start)
        if Placeholder(None, None) in pieces:
            return text  # with {node_name} a word is a text, even if it reads as a number
        try:
            value = read_word(text)
        except NumberError as error:
            hint = "Quotes make it a text."
            if not templated:
                raise self.refuse(str(error), start, start + len(word), hint=hint) from None
            self.note(f"{error}, got it from {shorten(word)}", start, hint)
            return text
        if not templated or len(pieces) > 1 or not isinstance(value, str):
            return value
        parser = _Parser(text, literal=True)
        try:
            brought_in = parser.value()
            parser.finish()
        except ConfigError as error:
            if error.problems[0].code == "nesting":
                raise
            return text
        return brought_in


def parse(text: str) -> Call:
    """Parse a composition expression. Placeholders are kept as written.

    Args:
        text: The expression.

    Returns:
        The tree. ``parse(str(tree)) == tree``.

    Raises:
        ConfigError: The text is no expression. The problem has its place.
        TypeError: ``text`` is no str.
    """
    return with_room(lambda: _parse(text))


def read_expression(
    text: str, *, node_name: str | None, environ: Mapping[str, str], source: Any = None
) -> Call:
    """Parse an expression of a configuration and replace its placeholders.

    If the whole text is one ``${NAME:-default}``, the default may be any expression without a
    placeholder: the placeholder is replaced first, and the value is parsed.

    Args:
        text: The expression.
        node_name: What ``{node_name}`` stands for. None refuses it.
        environ: The environment, ``os.environ`` or the like.
        source: The ``source`` of every `Call` of the tree.

    Raises:
        ConfigError: The text is no expression, or placeholders have no value, or a value that does
            not fit, each a problem with code ``placeholder``.
        TypeError: ``text`` is no str.
    """
    values = Values(node_name, environ)
    whole = placeholder_of(text)
    if whole is None:
        return _parse(text, values=values, source=source)
    try:
        return _parse(values.of(whole), literal=True, source=source)
    except MissingError as error:
        raise ConfigError(error.problem((0, len(text)), text)) from None
    except ConfigError as error:
        where = f"in the value of {shorten(text.strip())}: "
        problems = [replace(problem, message=where + problem.message) for problem in error.problems]
        raise ConfigError(problems) from None


def _parse(text: str, **how: Any) -> Call:
    if not isinstance(text, str):
        raise TypeError(f"an expression is a str, not {type(text).__name__}")
    parser = _Parser(str.__str__(text), **how)
    tree = parser.element()
    parser.finish()
    if parser.problems:
        raise ConfigError(parser.problems)
    return tree


# A tree is pickled as its text. The spans of the tree that is made again point into that text.
copyreg.pickle(Call, lambda call: (parse, (str(call),)))
