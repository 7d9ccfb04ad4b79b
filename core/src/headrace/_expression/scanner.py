"""Reading one token of an expression at a time, and making the errors of tokens that do not fit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace._expression.templates import (
    MissingError,
    Piece,
    Placeholder,
    Values,
    refused,
    split,
    split_quoted,
)
from headrace._expression.tree import (
    NAME,
    PLAIN_NAME,
    WORD_CHARACTER,
    Template,
    describe,
    escape_of,
    first_hidden,
    has_surrogate,
    is_hidden,
    shorten,
)
from headrace.errors import ConfigError, Problem

_BLANKS = (" ", "\t", "\n", "\r")
_WIDE_WORD = re.compile(rf"{WORD_CHARACTER[:-1]}${{}}]+")
_INSIDE = {'"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL), "'": re.compile(r"[^']*")}
_NO_VALUES = Values(None, {})


@dataclass(slots=True)
class Open:
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


class Scanner:
    """Reads the tokens of a text one after the other.

    Attributes:
        text: The whole text.
        at: The offset of the next token.
        end: The offset after the last token.
        literal: Whether there are no placeholders: ``$``, ``{`` and ``}`` are ordinary characters then.
        values: The values of placeholders; None keeps placeholders as they are written.
        problems: The problems of placeholders.
        open: The brackets that are not closed yet, the innermost last.
    """

    def __init__(self, text: str, *, literal: bool = False, values: Values | None = None) -> None:
        self.text = text
        self.at = 0
        self.end = 0
        self.literal = literal
        self.values = values
        self.problems: list[Problem] = []
        self.open: list[Open] = []

    # Tokens.

    def peek(self) -> str:
        """Skip blanks and give the character that follows, ``""`` at the end of the text."""
        while (found := self.text[self.at : self.at + 1]) in _BLANKS:
            self.at += 1
        return found

    def take(self) -> None:
        """Step over the one character that `peek` gave."""
        self.at += 1
        self.end = self.at

    def enter(self, closer: str, wants: str) -> Open:
        """Step over an opening bracket."""
        bracket = Open(self.at, closer, wants)
        self.open.append(bracket)
        self.take()
        return bracket

    def separator(self, marks: str) -> str:
        """Read one of ``marks`` and give it, or the end of the innermost bracket and give ``""``."""
        found, bracket = self.peek(), self.open[-1]
        if found == bracket.closer:
            self.open.pop()
            self.take()
            return ""
        if not found or found not in marks:
            raise self.unexpected(bracket.wants)
        self.take()
        return found

    def word(self) -> str:
        """Read a word as written, placeholders included; ``""`` if no word begins here."""
        start = self.at
        match = _WIDE_WORD.match(self.text, start)
        if match is not None:
            self.at = self.end = match.end()
        return self.text[start : self.at]

    def pieces_of(self, word: str, start: int) -> list[Piece]:
        """Cut a word that was read at ``start`` into literal texts and placeholders."""
        return [word] if self.literal else split(self.text, start, start + len(word))

    def quoted(self) -> str:
        """Read a quoted text, and replace its placeholders or keep them."""
        start, mark = self.at, self.text[self.at]
        match = _INSIDE[mark].match(self.text, start + 1)
        close = match.end() if match else start + 1
        if self.text[close : close + 1] != mark:
            message = f"expected a closing {mark}, but the text ended; the quotes open here"
            raise self.refuse(message, start)
        hidden = first_hidden(self.text, start + 1, close)
        if hidden >= 0:
            raise self._hidden(hidden, mark)
        self.at = self.end = close + 1
        pieces = split_quoted(self.text, start + 1, close, double=mark == '"', literal=self.literal)
        if self.values is None and any(isinstance(piece, Placeholder) for piece in pieces):
            return Template(self.text[start : self.end])
        return self.joined(pieces, start)

    def name_of(self, word: str, start: int) -> str:
        """Return the name that a word is, with its placeholders replaced or kept."""
        pieces = self.pieces_of(word, start)
        if not (PLAIN_NAME.fullmatch(word) or (not self.literal and NAME.fullmatch(word))):
            hint = (
                "Options stand in ( ), backends in [ ]. A name is a letter or '_', then letters, digits "
                "and '_', '.', '-', '/'; a plugin and ':' may stand in front."
            )
            message = f"expected a name, got {shorten(word)!r}"
            raise self.refuse(message, start, start + len(word), hint=hint)
        if self.values is None or "{" not in word:
            return word
        name = self.joined(pieces, start, word)
        if PLAIN_NAME.fullmatch(name) or name == word:
            return name
        hint = "A placeholder in an expression is part of a name."
        self.note(f"expected a name, got {shorten(name)!r} from {shorten(word)!r}", start, hint)
        return word

    def joined(self, pieces: list[Piece], start: int, otherwise: str = "") -> str:
        """Join pieces to a text; when a placeholder has no value, note that and give ``otherwise``."""
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
        found, hint = self.peek(), None
        if found and found in ")]":
            hint = "Nothing is open that it could close."
        elif found:
            hint = "Several elements stand in a container: S[A,B] runs A, then B."
        if found:
            raise self.unexpected("the end of the text", hint)

    # Making errors, which the caller raises.

    def refuse(
        self, message: str, start: int, end: int | None = None, *, hint: str | None = None
    ) -> ConfigError:
        """Make the error for a place in the text."""
        return refused(self.text, start, message, hint, end=end)

    def unexpected(self, expected: str, hint: str | None = None) -> ConfigError:
        """Make the error for a token that stands where ``expected`` has to stand."""
        found, bracket = self.peek(), self.open[-1] if self.open else None
        if not found:
            return self._ended(expected, bracket)
        last = self.text[self.end - 1]
        if bracket is not None and found == bracket.closer and last in ",;":
            return self.refuse(f"trailing {last!r}: expected {expected} after it", self.end - 1)
        got = describe(found)
        if bracket is not None and found in ")]" and found != bracket.closer:
            got += f"; open is the {self.text[bracket.at]!r} at {bracket.at}"
        elif is_hidden(found):
            hint = "Remove it; control and invisible characters are allowed nowhere."
        elif not found.isascii():
            hint = "Put the text in quotes: outside them only ASCII is allowed."
        return self.refuse(f"expected {expected}, got {got}", self.at, hint=hint)

    def _ended(self, expected: str, bracket: Open | None) -> ConfigError:
        """Make the error for a text that ends too early."""
        length = len(self.text)
        if bracket is not None:
            ended = f"expected {expected}, but the text ended after {length} characters"
            return self.refuse(f"{self.text[bracket.at]!r} is never closed: {ended}", bracket.at)
        if not self.end:
            return self.refuse("empty expression: expected a name", 0, length)
        return self.refuse(f"expected {expected}, but the text ended", length)

    def _hidden(self, at: int, mark: str) -> ConfigError:
        character = self.text[at]
        code = escape_of(character)
        if has_surrogate(character):
            hint = "A lone surrogate cannot be encoded; remove it."
        elif mark == '"':
            hint = f"Write it as {code}."
        else:
            hint = f"Write it as {code} between double quotes."
        message = f"expected visible characters between quotes, got {describe(character)}"
        return self.refuse(message, at, hint=hint)
