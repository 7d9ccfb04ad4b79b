"""Values that name files, noted so that a configuration can be written for any folder."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from headrace._expression import Args, parse, parse_literal, substitute
from headrace._options import TextWithBase
from headrace._plan.values import plain_value

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._expression import Call, Span
    from headrace._plan.scope import Layer

__all__ = ["Moved", "with_folders"]

_ONE_PLACEHOLDER = re.compile(r"\s*\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^{}]*)?\}\s*")
_NODE = "headrace-node-name"
"""Stands for the name of a node in a path, while what is before it is put in full."""
_MARK = "headrace-argument-{}-"
"""Stands for an argument, while the text around it is written so that nothing is replaced."""


class Moved:
    """What to write in place of values that are relative to the file that holds them."""

    def __init__(self) -> None:
        self._keys: dict[int, Any] = {}
        self._arguments: dict[int, tuple[str, bool, dict[Span, Args]]] = {}
        self._lists: list[tuple[Written, list[Written]]] = []

    def key(self, written: Written, value: Any) -> None:
        """Take note of the value of a key."""
        self._keys[id(written)] = _escaped(value)

    def argument(
        self, layer: Layer, call: Call, which: int | str, value: Any, checked: Any, base: str
    ) -> None:
        """Take note of one argument of an expression.

        Args:
            layer: The text it stands in.
            call: The element it belongs to.
            which: Which of its arguments it is.
            value: The argument, placeholders replaced.
            checked: What it was read as.
            base: The folder that relative paths in it start from.
        """
        written, span, text = layer.written, call.args.span_of(which), call.text
        if written is None or span is None or text is None:
            return
        brought_in = text != written.value
        if brought_in and not _ONE_PLACEHOLDER.fullmatch(written.value):
            return  # it is not in the text of the configuration
        if not brought_in and "{node_name}" in text[slice(*span)]:
            # One text for all nodes: the name stays open.
            value = _with_open_name(written.value, call.span, which)
        moved = _immutable(with_folders(value, checked, base))
        args = Args((moved,)) if isinstance(which, int) else Args((), ((which, moved),))
        self._arguments.setdefault(id(written), (text, brought_in, {}))[2][span] = args

    def items(self, written: Written, items: list[Written]) -> None:
        """Take note of a list of texts, each of which is an expression of its own."""
        self._lists.append((written, items))

    def values(self) -> dict[int, Any]:
        """Give the new value of each `Written` that changes, by its identity."""
        found = dict(self._keys)
        for identity, (text, brought_in, arguments) in self._arguments.items():
            found[identity] = _rewritten(text, arguments, literal=brought_in)
        for written, items in self._lists:
            if any(id(item) in found for item in items):
                found[id(written)] = [found.get(id(item), item.value) for item in items]
        return found


def with_folders(written: Any, checked: Any, base: str | Path) -> Any:
    """Give ``written`` with the texts that were read as relative paths in full.

    Args:
        written: The value.
        checked: What it was read as.
        base: The folder that its relative paths start from.
    """
    if isinstance(written, (str, PurePath)) and isinstance(checked, Path):
        own = written.base if isinstance(written, TextWithBase) else Path(base)
        absolute = Path(written).is_absolute()
        return str(written) if absolute else str(own / Path(written).expanduser())
    if isinstance(written, list) and isinstance(checked, (list, tuple)):
        if len(written) == len(checked):
            pairs = zip(written, checked, strict=True)
            return [with_folders(part, inner, base) for part, inner in pairs]
    elif isinstance(written, dict):
        if isinstance(checked, BaseModel):
            fields = {field.alias or n: n for n, field in type(checked).model_fields.items()}
            inner = {key: getattr(checked, name) for key, name in fields.items()}
        else:
            inner = checked if isinstance(checked, dict) else {}
        return {
            key: with_folders(part, inner[key], base) if key in inner else part
            for key, part in written.items()
        }
    return written


def _with_open_name(text: str, span: Span | None, which: int | str) -> Any:
    """Give an argument of an expression with a mark for the name of the node."""
    todo = [substitute(parse(text), node_name=_NODE, environ=os.environ)]
    while True:
        call = todo.pop()
        if call.span == span:
            args = call.args
            found = args.positional[which] if isinstance(which, int) else args.mapping[which]
            return plain_value(found)
        todo.extend(call.children)


def _rewritten(text: str, arguments: dict[Span, Args], *, literal: bool) -> str:
    """Write an expression with other arguments, so that it reads back the same.

    Args:
        text: The expression.
        arguments: What is written in the place of what.
        literal: Whether a placeholder brought ``text`` in, so that nothing in it is replaced.
    """
    new = [str(args)[1:-1].replace(_NODE, "{node_name}") for args in arguments.values()]
    if not literal:
        for (start, end), argument in sorted(zip(arguments, new, strict=True), reverse=True):
            text = text[:start] + argument + text[end:]
        return text
    # Written as a literal first, with marks that stay as they are.
    keys = [args.named[0][0] + "=" if args.named else "" for args in arguments.values()]
    for index, (start, end) in sorted(enumerate(arguments), key=lambda item: item[1], reverse=True):
        text = text[:start] + keys[index] + _MARK.format(index) + text[end:]
    text = str(parse_literal(text))
    for index, argument in enumerate(new):
        text = text.replace(keys[index] + _MARK.format(index), argument)
    return text


def _immutable(value: Any) -> Any:
    return tuple(map(_immutable, value)) if isinstance(value, list) else value


def _escaped(value: Any) -> Any:
    """Write ``$`` in a resolved value so that it is not read as a placeholder."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    if isinstance(value, dict):
        return {key: _escaped(part) for key, part in value.items()}
    return value
