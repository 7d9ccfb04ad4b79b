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

White space (space, tab, newline, carriage return) is free outside quotes. The parser keeps its own
stack: a state is a method that reads a little and gives the next one, and what is open lies in
``open``. Time and memory are linear in the text.

`read_expression` replaces placeholders where they are read, so that what one brings in can neither
end a name or text nor begin another:

- In a name it becomes part of the name, which must still be a name.
- In quotes it becomes part of the text.
- A bare word with ``${...}`` in it is read as a word again: with ``M`` being 8, ``max=${M}`` and
  ``max=1${M}`` are numbers and ``x${M}`` is a text. If the word is one ``${NAME}``, that may also be
  a list, an expression or quoted text; what is none of these is a text as it stands.
- An expression that is one ``${NAME}`` is replaced and then parsed.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace._expression.scanner import Draft, OpenArgs, OpenBracket, OpenList, Scanner
from headrace._expression.templates import (
    MissingError,
    Placeholder,
    Template,
    Values,
    whole_placeholder,
)
from headrace._expression.tree import Args, Call
from headrace._expression.words import KEY, NumberError, read_word, shorten
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._expression.scanner import Open
    from headrace._expression.tree import Value

__all__ = ["parse", "read_expression"]

_State = Callable[[], Any]


class _Parser(Scanner):
    """The states; each gives the next one, None at the end."""

    def __init__(self, text: str, *, literal: bool = False, values: Values | None = None) -> None:
        super().__init__(text, literal=literal, values=values)
        self._draft = Draft(0)
        self._result: Value = None

    def run(self, state: _State | None) -> Value:
        """Go from state to state, to the result."""
        while state is not None:
            state = state()
        return self._result

    def element(self) -> _State:
        """Read ``[ "(" args ")" ] name`` and what follows."""
        found = self.peek()
        self._draft = Draft(self.at)
        if found == "(":
            return self._open_args(prefix=True)
        return self._name()

    def _name(self) -> _State:
        found, start = self.peek(), self.at
        word = self.word()
        if not word:
            raise self.missing("name", found)
        return self._named(word, start)

    def _named(self, word: str, start: int) -> _State:
        """Take ``word`` as the name of the draft."""
        self._draft.name = self.name_of(word, start)
        self._draft.name_span = (start, self.end)
        if self.peek() == "(":
            return self._open_args(prefix=False)
        return self._bracket

    def _open_args(self, *, prefix: bool) -> _State:
        frame = OpenArgs(self.at, self._draft, prefix)
        self.take()
        self.open.append(frame)
        self.comma = -1
        if self.peek() != ")":
            return self.value
        if prefix:
            hint = "Remove the '()' in front of the name."
            raise self.refuse("empty prefix: expected a value", frame.at, self.at + 1, hint=hint)
        return self._close_args

    def _bracket(self) -> _State:
        """Read what follows a name and its options."""
        found = self.peek()
        if found == "(":
            raise self.refuse("second '( )': a name has one pair of parentheses", self.at)
        if found != "[":
            return self._end_element
        frame = OpenBracket(self.at, self._draft)
        self.take()
        self.open.append(frame)
        self.comma = -1
        if self.peek() == "]":
            message = "empty brackets: expected a name between '[' and ']'"
            raise self.refuse(message, frame.at, self.at + 1, hint="Leave the brackets out.")
        return self.element

    def _end_element(self) -> _State | None:
        draft = self._draft
        call = Call(
            draft.name,
            draft.args,
            draft.phases,
            prefix=draft.prefix,
            span=(draft.start, self.end),
            name_span=draft.name_span,
            text=self.text,
        )
        return self._deliver(call)

    def value(self) -> _State | None:
        """Read an argument or an element of a list."""
        found, start = self.peek(), self.at
        frame = self.open[-1] if self.open else None
        if isinstance(frame, OpenArgs) and frame.key is None:
            frame.start = start
        if found == '"' or found == "'":
            return self._deliver(self.quoted())
        if found == "[":
            return self._open_list()
        word = self.word()
        if not word:
            raise self.missing("value", found)
        return self._after_word(word, start, frame)

    def _open_list(self) -> _State:
        self.open.append(OpenList(self.at))
        self.take()
        self.comma = -1
        return self._close_list if self.peek() == "]" else self.value

    def _after_word(self, word: str, start: int, frame: Open | None) -> _State | None:
        following = self.peek()
        if following == "=" and isinstance(frame, OpenArgs) and frame.key is None:
            if not KEY.fullmatch(word):
                message = f"expected a key (letters, digits and '_'), got {shorten(word)!r}"
                raise self.refuse(message, start, start + len(word))
            self.take()
            frame.key = word
            self.comma = -1
            return self.value
        if following in ("(", "["):
            self._draft = Draft(start)
            return self._named(word, start)
        return self._deliver(self._word_value(word, start))

    def _deliver(self, value: Value) -> _State | None:
        """Hand a finished value or element to what is open around it, and read on."""
        if not self.open:
            self._result = value
            self.finish()
            return None
        frame = self.open[-1]
        if isinstance(frame, OpenArgs):
            self._add_argument(frame, value)
        elif isinstance(frame, OpenList):
            frame.values.append(value)
        elif isinstance(value, Call):
            frame.phase.append(value)
        return self._separator(frame)

    def _separator(self, frame: Open) -> _State:
        found = self.peek()
        if found == frame.closer:
            return self._closing(frame)
        is_bracket = isinstance(frame, OpenBracket)
        if found == "," or (found == ";" and is_bracket):
            self.comma = self.at
            self.take()
            if isinstance(frame, OpenBracket) and found == ";":
                frame.done.append(tuple(frame.phase))
                frame.phase = []
            return self.element if is_bracket else self.value
        raise self.not_separated(frame, found)

    def _closing(self, frame: Open) -> _State:
        if isinstance(frame, OpenArgs):
            return self._close_args
        return self._close_list if isinstance(frame, OpenList) else self._close_bracket

    def _add_argument(self, frame: OpenArgs, value: Value) -> None:
        key, span = frame.key, (frame.start, self.end)
        if key is None:
            if frame.named:
                message = (
                    f"positional value after {shorten(frame.named[-1][0])!r}: expected key=value"
                )
                raise self.refuse(message, *span, hint="Values without a key come first.")
            frame.positional.append(value)
        elif key in frame.keys:
            first = self.text[slice(*frame.spans[frame.keys[key]])]
            second = self.text[slice(*span)]
            message = (
                f"key {shorten(key)!r} stands twice: {shorten(first)!r} and {shorten(second)!r}"
            )
            raise self.refuse(message, *span)
        else:
            frame.keys[key] = len(frame.spans)
            frame.named.append((key, value))
        frame.spans.append(span)
        frame.key = None

    def _close_args(self) -> _State:
        frame = self.open.pop()
        assert isinstance(frame, OpenArgs)  # noqa: S101 - for the type checker
        self.take()
        args = Args(
            tuple(frame.positional),
            tuple(frame.named),
            spans=tuple(frame.spans),
            span=(frame.at, self.end),
        )
        self._draft = frame.owner
        if frame.prefix:
            self._draft.prefix = args
            self.comma = -1
            return self._name
        self._draft.args = args
        return self._bracket

    def _close_list(self) -> _State | None:
        frame = self.open.pop()
        assert isinstance(frame, OpenList)  # noqa: S101 - for the type checker
        self.take()
        return self._deliver(tuple(frame.values))

    def _close_bracket(self) -> _State:
        frame = self.open.pop()
        assert isinstance(frame, OpenBracket)  # noqa: S101 - for the type checker
        self.take()
        self._draft = frame.owner
        self._draft.phases = (*frame.done, tuple(frame.phase))
        found = self.peek()
        if found == "(":
            raise self.refuse("options stand before the brackets: A(c)[B]", self.at)
        if found == "[":
            raise self.refuse("second '[ ]': a name has one pair of brackets", self.at)
        return self._end_element

    def _word_value(self, word: str, start: int) -> Value:
        pieces = self.pieces_of(word, start)
        templated = any(isinstance(piece, Placeholder) for piece in pieces)
        if templated and self.values is None:
            return Template(word)
        text = self.joined(pieces, start)
        if Placeholder(None, None) in pieces:
            return text  # the name of a node is a text, whatever it looks like
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
        brought_in = _Parser(text, literal=True)
        try:
            return brought_in.run(brought_in.value)
        except ConfigError:
            return text


def parse(text: str) -> Call:
    """Parse a composition expression; placeholders are kept as written.

    Args:
        text: The expression.

    Returns:
        The tree; ``parse(str(tree)) == tree``.

    Raises:
        ConfigError: The text is no expression; the problem has its place.
        TypeError: ``text`` is no str.
    """
    return _parsed(text)


def read_expression(text: str, *, node_name: str | None, environ: Mapping[str, str]) -> Call:
    """Parse an expression of a configuration and put values in the place of its placeholders.

    If all of it is one ``${NAME:-default}``, the default may be any expression without a
    placeholder: it is replaced first, then parsed.

    Args:
        text: The expression.
        node_name: What ``{node_name}`` stands for; None refuses it.
        environ: The environment, ``os.environ`` or the like.

    Raises:
        ConfigError: The text is no expression, or placeholders have no value, or one that does not
            fit: all of them, with code ``placeholder``.
        TypeError: ``text`` is no str.
    """
    values = Values(node_name, environ)
    whole = whole_placeholder(text)
    if whole is None:
        return _parsed(text, values=values)
    try:
        return _parsed(values.of(whole), literal=True)
    except MissingError as error:
        span = (0, len(text))
        problem = Problem("placeholder", str(error), span=span, text=text, hint=error.hint)
        raise ConfigError(problem) from None
    except ConfigError as error:
        where = f"in the value of {shorten(text.strip())}: "
        raise ConfigError(
            [replace(problem, message=where + problem.message) for problem in error.problems]
        ) from None


def _parsed(text: object, *, literal: bool = False, values: Values | None = None) -> Call:
    if not isinstance(text, str):
        raise TypeError(f"an expression is a str, not {type(text).__name__}")
    parser = _Parser(str(text), literal=literal, values=values)
    tree = parser.run(parser.element)
    if parser.problems:
        raise ConfigError(parser.problems)
    assert isinstance(tree, Call)  # noqa: S101 - for the type checker
    return tree


# A pickled tree is its text: nothing recurses, and its spans point into that text.


def _restored_args(text: str) -> Args:
    return parse(text).args


copyreg.pickle(Call, lambda call: (parse, (str(call),)))
copyreg.pickle(Args, lambda args: (_restored_args, (f"A{args}",)))
