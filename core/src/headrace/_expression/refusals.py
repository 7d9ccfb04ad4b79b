"""What the parser says when a text stops being an expression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._expression.frames import OpenArgs
from headrace._expression.scanner import Scanner
from headrace._expression.templates import TemplateError, split_bare
from headrace._expression.words import NAME, PLAIN_NAME, shorten

if TYPE_CHECKING:
    from headrace._expression.frames import Open
    from headrace.errors import ConfigError

__all__ = ["Refusals"]


class Refusals(Scanner):
    """A scanner that knows what is open around it.

    Attributes:
        open: The brackets that are not closed yet, the innermost last.
        comma: The place of the separator just read, -1 at the start and after an opener.
    """

    def __init__(self, text: str, *, literal: bool = False) -> None:
        super().__init__(text, literal=literal)
        self.open: list[Open] = []
        self.comma = -1

    def missing(self, what: str, found: str) -> ConfigError:
        """Make the error for ``found`` where a name or value has to stand."""
        frame = self.open[-1] if self.open else None
        if not found:
            return self._ended(what, frame)
        if isinstance(frame, OpenArgs) and frame.key is not None:
            return self.unexpected(f"a value for {shorten(frame.key)!r}")
        if self.comma >= 0 and frame is not None and found == frame.closer:
            mark = self.text[self.comma]
            return self.refuse(f"trailing {mark!r}: expected a {what} after it", self.comma)
        return self.unexpected(f"a {what}")

    def _ended(self, what: str, frame: Open | None) -> ConfigError:
        """Make the error for a text that ends too early."""
        length = len(self.text)
        if frame is not None:
            return self._unclosed(frame, f"a {what}")
        if not self.end:
            return self.refuse("empty expression: expected a name", 0, length)
        return self.refuse(f"expected a {what}, but the text ended", length)

    def _unclosed(self, frame: Open, expected: str) -> ConfigError:
        mark = self.text[frame.at]
        return self.refuse(
            f"{mark!r} is never closed: expected {expected}, "
            f"but the text ended after {len(self.text)} characters",
            frame.at,
        )

    def not_separated(self, frame: Open, found: str) -> ConfigError:
        """Make the error for ``found`` where a separator or closer has to stand."""
        if not found:
            return self._unclosed(frame, frame.wants)
        if found in ")]":
            mark = self.text[frame.at]
            message = f"expected {frame.wants}, got {found!r}; open is the {mark!r} at {frame.at}"
            return self.refuse(message, self.at)
        return self.unexpected(frame.wants)

    def finish(self) -> None:
        """Refuse whatever follows the finished expression."""
        found = self.peek()
        if not found:
            return
        if found in ")]":
            message = f"expected the end of the text, got {found!r}, for which nothing is open"
            raise self.refuse(message, self.at)
        error = self.unexpected("the end of the text")
        if found in ",;":
            hint = "Several elements stand in a container: S[A,B] runs A, then B."
            error = self.refuse(
                "expected the end of the text, got " + repr(found), self.at, hint=hint
            )
        raise error

    def check_name(self, word: str, start: int) -> None:
        """Refuse a word that is no name."""
        if PLAIN_NAME.fullmatch(word) or (not self.literal and NAME.fullmatch(word)):
            return
        if not self.literal:
            try:
                split_bare(word)
            except TemplateError as error:
                raise self.template_error(error, start, hint=None) from None
        raise self.refuse(
            f"expected a name, got {shorten(word)!r}",
            start,
            start + len(word),
            hint="A name is a letter or '_', then letters, digits and '_', '.', '-', '/'; "
            "a plugin and ':' may stand in front.",
        )
