"""Putting the node's name and the environment in the place of placeholders.

Replacement happens once, in the tree: what a placeholder brings in is never searched again, and
can neither end a name or text nor begin another. ``${NAME:-default}`` takes the default, as in a
shell, when the variable is unset or empty.

- In a name it becomes part of the name, which must still be a name.
- In quotes it becomes part of the text.
- A bare word with ``${...}`` in it is read as a word again: with ``M`` being 8, ``max=${M}`` and
  ``max=1${M}`` are numbers and ``x${M}`` is a text. If the word is one ``${NAME}``, that may also be
  a list, an expression or quoted text; what is none of these is a text as it stands.
- An expression that is one ``${NAME}`` is replaced and then parsed.
"""

from __future__ import annotations

import re
from dataclasses import replace as changed
from typing import TYPE_CHECKING

from headrace._expression.parser import parse, parse_literal, parse_literal_value
from headrace._expression.templates import (
    Piece,
    Placeholder,
    Template,
    split_bare,
    split_quoted,
)
from headrace._expression.tree import Args, Call
from headrace._expression.words import PLAIN_NAME, NumberError, has_surrogate, read_word, shorten
from headrace.errors import ConfigError, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace._expression.tree import Span, Value

__all__ = ["read_expression", "substitute", "substitute_text"]

_VARIABLE = r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^{}]*))?\}"
_WHOLE = re.compile(rf"\s*{_VARIABLE}\s*")
_IN_TEXT = re.compile(rf"\$\$|{_VARIABLE}|\$\{{")
_IN_NODE_TEXT = re.compile(
    rf"\$\$|{_VARIABLE}|\$\{{|\{{\{{|\}}\}}|(?P<node>\{{node_name\}})|[{{}}]"
)


class _MissingError(ValueError):
    """A placeholder has no value."""

    def __init__(self, message: str, hint: str) -> None:
        self.hint = hint
        super().__init__(message)


class _Values:
    """What placeholders stand for."""

    def __init__(self, node_name: str | None, environ: Mapping[str, str]) -> None:
        self.node_name = node_name
        self.environ = environ

    def of(self, placeholder: Placeholder) -> str:
        name, default = placeholder
        if name is None:
            if self.node_name is None:
                hint = "Write the name, or move the text into a node."
                raise _MissingError("{node_name} has no value here, outside of a node", hint)
            return self.node_name
        value = self.environ.get(name)
        if default is not None and not value:
            return default
        if value is None:
            hint = "Set it, or give a default: ${NAME:-default}."
            raise _MissingError(f"the environment variable {shorten(name)!r} is not set", hint)
        if has_surrogate(value):
            raise _MissingError(
                f"the environment variable {shorten(name)!r} is no text", "Use UTF-8 in it."
            )
        return value

    def join(self, pieces: list[Piece]) -> str:
        return "".join(p if isinstance(p, str) else self.of(p) for p in pieces)


class _Substitution:
    """One run over one tree: children first, all problems collected."""

    def __init__(self, values: _Values) -> None:
        self.values = values
        self.problems: list[Problem] = []
        self._done: dict[int, Value] = {}
        self._text: str | None = None

    def run(self, tree: Call) -> Call:
        """Give the tree without placeholders, itself if it has none."""
        nodes: list[tuple[Call | tuple[Value, ...], Span | None, str | None]] = []
        todo: list[tuple[Call | tuple[Value, ...], Span | None, str | None]]
        todo = [(tree, tree.span, tree.text)]
        while todo:
            node = todo.pop()
            nodes.append(node)
            todo += _inner(*node)
        for item, span, text in reversed(nodes):
            self._text = text
            if isinstance(item, Call):
                self._done[id(item)] = self._call(item)
            else:
                self._done[id(item)] = self._list(item, span)
        result = self._done[id(tree)]
        assert isinstance(result, Call)  # noqa: S101 - for the type checker
        return result

    def _call(self, call: Call) -> Call:
        name = self._name(call)
        prefix = None if call.prefix is None else self._args(call.prefix)
        args = self._args(call.args)
        changed_phases = False
        phases = []
        for phase in call.phases:
            new = tuple(self._child(child) for child in phase)
            changed_phases |= any(a is not b for a, b in zip(new, phase, strict=True))
            phases.append(new)
        if name == call.name and prefix is call.prefix and args is call.args and not changed_phases:
            return call
        return call.replace(name=name, prefix=prefix, args=args, phases=tuple(phases))

    def _child(self, child: Call) -> Call:
        new = self._done[id(child)]
        return new if isinstance(new, Call) else child

    def _args(self, args: Args) -> Args:
        spans = args.spans or (args.span,) * len(args)
        values = [*args.positional, *(value for _, value in args.named)]
        new = [self._value(value, span) for value, span in zip(values, spans, strict=True)]
        if all(a is b for a, b in zip(new, values, strict=True)):
            return args
        count = len(args.positional)
        named = tuple((key, v) for (key, _), v in zip(args.named, new[count:], strict=True))
        return args.replace(positional=tuple(new[:count]), named=named)

    def _list(self, values: tuple[Value, ...], span: Span | None) -> tuple[Value, ...]:
        new = tuple(self._value(value, span) for value in values)
        return values if all(a is b for a, b in zip(new, values, strict=True)) else new

    def _value(self, value: Value, span: Span | None) -> Value:
        if isinstance(value, (Call, tuple)):
            return self._done[id(value)]
        if not isinstance(value, Template):
            return value
        try:
            return _replaced(value, self.values)
        except _MissingError as error:
            self._problem(str(error), span, error.hint)
        except NumberError as error:
            self._problem(f"{error}, got it from {shorten(value)}", span, "Quotes make it a text.")
        return value

    def _name(self, call: Call) -> str:
        if "{" not in call.name:
            return call.name
        try:
            name = self.values.join(split_bare(call.name))
        except _MissingError as error:
            self._problem(str(error), call.name_span, error.hint)
            return call.name
        if PLAIN_NAME.fullmatch(name):
            return name
        message = f"expected a name, got {shorten(name)!r} from {shorten(call.name)!r}"
        self._problem(message, call.name_span, "A placeholder in an expression is part of a name.")
        return call.name

    def _problem(self, message: str, span: Span | None, hint: str) -> None:
        self.problems.append(Problem("placeholder", message, span=span, text=self._text, hint=hint))


def _inner(
    node: Call | tuple[Value, ...], span: Span | None, text: str | None
) -> list[tuple[Call | tuple[Value, ...], Span | None, str | None]]:
    """Give the calls and lists right inside a node, with their places."""
    if isinstance(node, tuple):
        return [
            (v, v.span if isinstance(v, Call) else span, text)
            for v in node
            if isinstance(v, (Call, tuple))
        ]
    inner: list[tuple[Call | tuple[Value, ...], Span | None, str | None]]
    inner = [(child, child.span, child.text) for child in node.children]
    for args in (node.prefix, node.args):
        if args is None or not len(args):
            continue
        values = [*args.positional, *(value for _, value in args.named)]
        spans = args.spans or (args.span,) * len(args)
        inner += [
            (value, where, node.text)
            for value, where in zip(values, spans, strict=True)
            if isinstance(value, (Call, tuple))
        ]
    return inner


def _replaced(template: Template, values: _Values) -> Value:
    """Give the value of a text with placeholders."""
    source = str(template)
    if source.startswith('"'):
        return values.join(split_quoted(source[1:-1], double=True))
    pieces = split_bare(source)
    text = values.join(pieces)
    if Placeholder(None, None) in pieces:
        return text  # the name of a node is a text, whatever it looks like
    value = read_word(text)
    if len(pieces) > 1 or not isinstance(value, str):
        return value
    try:
        return parse_literal_value(text)
    except ConfigError:
        return text


def substitute(tree: Call, *, node_name: str | None, environ: Mapping[str, str]) -> Call:
    """Put values in the place of all placeholders of a tree.

    Args:
        tree: The tree; it is not changed. Places stay those of its text.
        node_name: What ``{node_name}`` stands for; None refuses it.
        environ: The environment, ``os.environ`` or the like.

    Raises:
        ConfigError: Placeholders without a value, or whose value does not fit; all of them, with
            code ``placeholder``. If the whole expression is one ``${NAME}``, also what is wrong
            with the expression that it brings in.
    """
    values = _Values(node_name, environ)
    run = _Substitution(values)
    whole = _whole(tree)
    if whole is None:
        result = run.run(tree)
        if run.problems:
            raise ConfigError(sorted(run.problems, key=lambda p: p.span or (0, 0)))
        return result
    return _brought_in(whole, values, tree.name, tree.span, tree.text)


def read_expression(text: str, *, node_name: str | None, environ: Mapping[str, str]) -> Call:
    """Parse an expression of a configuration and put values in the place of its placeholders.

    If all of it is one ``${NAME:-default}``, the default may be any expression without a
    placeholder: it is replaced first, then parsed.

    Args:
        text: The expression.
        node_name: What ``{node_name}`` stands for; None refuses it.
        environ: The environment, ``os.environ`` or the like.

    Raises:
        ConfigError: As of `parse` and `substitute`.
    """
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        return substitute(parse(text), node_name=node_name, environ=environ)
    found = Placeholder(whole["name"], whole["default"])
    values = _Values(node_name, environ)
    return _brought_in(found, values, text.strip(), (0, len(text)), text)


def _brought_in(
    placeholder: Placeholder, values: _Values, name: str, span: Span | None, text: str | None
) -> Call:
    """Parse the expression that a placeholder stands for."""
    try:
        return parse_literal(values.of(placeholder))
    except _MissingError as error:
        problem = Problem("placeholder", str(error), span=span, text=text, hint=error.hint)
        raise ConfigError(problem) from None
    except ConfigError as error:
        raise ConfigError(
            [
                changed(p, message=f"in the value of {shorten(name)}: {p.message}")
                for p in error.problems
            ]
        ) from None


def _whole(tree: Call) -> Placeholder | None:
    """Give the environment variable that the whole expression is, or None."""
    if tree.prefix is not None or len(tree.args) or tree.phases or "$" not in tree.name:
        return None
    pieces = split_bare(tree.name)
    piece = pieces[0]
    return piece if len(pieces) == 1 and isinstance(piece, Placeholder) else None


def substitute_text(text: str, environ: Mapping[str, str], node_name: str | None = None) -> str:
    """Put values in the place of the placeholders of a plain text of a configuration.

    ``$$`` is ``$``, and a ``$`` before anything but ``{`` is itself. With ``node_name`` also
    ``{node_name}`` is replaced, ``{{`` and ``}}`` are ``{`` and ``}``, and other braces are refused;
    without it braces are ordinary characters.

    Raises:
        ConfigError: Placeholders that are wrong or have no value; all of them.
    """
    values = _Values(node_name, environ)
    problems: list[Problem] = []

    def value(match: re.Match[str]) -> str:
        found = match[0]
        if found in ("$$", "{{", "}}"):
            return found[0]
        if found in ("${", "{", "}"):
            known = "{node_name}, ${NAME} and ${NAME:-default}" if node_name else "${NAME}"
            message, hint = (
                f"expected {known}, got {found!r}",
                f"Write {found[0] * 2!r} for {found[0]!r}.",
            )
        else:
            try:
                return values.of(Placeholder(match["name"], match["default"]))
            except _MissingError as error:
                message, hint = str(error), error.hint
        problems.append(Problem("placeholder", message, span=match.span(), text=text, hint=hint))
        return found

    pattern = _IN_TEXT if node_name is None else _IN_NODE_TEXT
    result = pattern.sub(value, text)
    if problems:
        raise ConfigError(problems)
    return result
