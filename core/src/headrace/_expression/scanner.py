"""Reading one token of an expression at a time, every refusal with its place."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from headrace._expression.templates import (
    Placeholder,
    Template,
    TemplateError,
    quoted_template,
    split_bare,
    split_quoted,
)
from headrace._expression.words import (
    WORD,
    WORD_CHARACTER,
    NumberError,
    describe,
    first_hidden,
    read_word,
)
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from headrace._expression.tree import Value

__all__ = ["Scanner"]

_BLANKS = re.compile(r"[ \t\n\r]*")
_WIDE_WORD = re.compile(rf"{WORD_CHARACTER[:-1]}${{}}]+")
_INSIDE = {'"': re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL), "'": re.compile(r"[^']*")}
_MARKS = ("$", "{", "}")


class Scanner:
    """A place in a text, and what is read there.

    Attributes:
        text: The whole text.
        at: The offset of the next token.
        end: The offset after the last token.
        literal: Placeholders are not known: ``$``, ``{`` and ``}`` are ordinary characters.
    """

    def __init__(self, text: str, *, literal: bool = False) -> None:
        self.text = text
        self.at = 0
        self.end = 0
        self.literal = literal

    def refuse(
        self,
        message: str,
        start: int,
        end: int | None = None,
        *,
        hint: str | None = None,
        code: str = "syntax",
    ) -> ConfigError:
        """Make the error for a place."""
        end = min(start + 1, len(self.text)) if end is None else end
        return ConfigError(
            Problem(code=code, message=message, span=(start, end), text=self.text, hint=hint)
        )

    def peek(self) -> str:
        """Skip blanks and give the character that follows, ``""`` at the end of the text."""
        at = self.at
        if self.text[at : at + 1] in " \t\n\r":
            match = _BLANKS.match(self.text, at)
            at = self.at = match.end() if match else at
        return self.text[at : at + 1]

    def take(self) -> None:
        """Step over the one character that `peek` gave."""
        self.at += 1
        self.end = self.at

    def unexpected(self, expected: str) -> ConfigError:
        """Make the error for a character that nothing allows here."""
        found = self.text[self.at]
        if " " < found <= "~":
            return self.refuse(f"expected {expected}, got {found!r}", self.at)
        if first_hidden(found) == 0:
            hint = "Remove it; control and invisible characters are allowed nowhere."
        else:
            hint = "Put the text in quotes: outside them only ASCII is allowed."
        return self.refuse(f"expected {expected}, got {describe(found)}", self.at, hint=hint)

    def word(self) -> str:
        """Read a word as written, placeholders included; ``""`` if none begins here."""
        start = self.at
        match = (_WIDE_WORD if self.literal else WORD).match(self.text, start)
        self.at = match.end() if match else start
        if not self.literal and self.text[self.at : self.at + 1] in _MARKS:
            match = _WIDE_WORD.match(self.text, self.at)
            self.at = match.end() if match else self.at
        if self.at > start:
            self.end = self.at
        return self.text[start : self.at]

    def value_of(self, word: str, start: int) -> Value:
        """Give the value of a word that was read at ``start``."""
        if self.literal or not any(mark in word for mark in _MARKS):
            try:
                return read_word(word)
            except NumberError as error:
                hint = "Quotes make it a text."
                raise self.refuse(str(error), start, start + len(word), hint=hint) from None
        try:
            pieces = split_bare(word)
        except TemplateError as error:
            raise self.template_error(error, start, hint=error.hint) from None
        if isinstance(pieces[0], str) and len(pieces) == 1:
            return pieces[0]
        return Template(word)

    def template_error(self, error: TemplateError, start: int, *, hint: str | None) -> ConfigError:
        """Give an error inside a word or quoted text its place in the whole text."""
        at = start + error.offset
        return self.refuse(str(error), at, hint=hint, code=error.code)

    def quoted(self) -> str:
        """Read a quoted text."""
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
        body = self.text[start + 1 : close]
        try:
            pieces = split_quoted(body, double=mark == '"', literal=self.literal)
        except TemplateError as error:
            raise self.template_error(error, start + 1, hint=error.hint) from None
        if any(isinstance(piece, Placeholder) for piece in pieces):
            return quoted_template(pieces)
        return str(pieces[0])

    def _hidden(self, at: int, mark: str) -> ConfigError:
        character = self.text[at]
        short = json.dumps(character)[1:-1]
        code = short if short.startswith("\\") else f"\\u{ord(character):04x}"
        if 0xD800 <= ord(character) <= 0xDFFF:
            hint = "A lone surrogate cannot be encoded; remove it."
        elif mark == '"':
            hint = f"Write it as {code}."
        else:
            hint = f"Write it as {code} between double quotes."
        return self.refuse(
            f"expected visible characters between quotes, got {describe(character)}", at, hint=hint
        )
