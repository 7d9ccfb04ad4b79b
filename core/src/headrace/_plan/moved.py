"""Values that name files, noted so that a configuration can be written for any folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace._config.document import Written
    from headrace._expression import Call, Span
    from headrace._plan.scope import Layer

__all__ = ["Moved"]


class Moved:
    """What to write in place of values that are relative to the file that holds them."""

    def __init__(self) -> None:
        self._keys: dict[int, Any] = {}
        self._arguments: dict[int, tuple[str, dict[Span, str]]] = {}
        self._lists: list[tuple[Written, list[Written]]] = []

    def key(self, written: Written, value: Any) -> None:
        """Take note of the value of a key."""
        self._keys[id(written)] = _escaped(value)

    def argument(self, layer: Layer, call: Call, span: Span | None, text: str) -> None:
        """Take note of one argument of an expression."""
        written = layer.written
        # What a placeholder brought in is not in the text of the configuration.
        if written is None or span is None or call.text != written.value:
            return
        self._arguments.setdefault(id(written), (written.value, {}))[1][span] = text

    def items(self, written: Written, items: list[Written]) -> None:
        """Take note of a list of texts, each of which is an expression of its own."""
        self._lists.append((written, items))

    def values(self) -> dict[int, Any]:
        """Give the new value of each `Written` that changes, by its identity."""
        found = dict(self._keys)
        for identity, (text, arguments) in self._arguments.items():
            for (start, end), new in sorted(arguments.items(), reverse=True):
                text = text[:start] + new + text[end:]
            found[identity] = text
        for written, items in self._lists:
            if any(id(item) in found for item in items):
                found[id(written)] = [found.get(id(item), item.value) for item in items]
        return found


def _escaped(value: Any) -> Any:
    """Write ``$`` in a resolved value so that it is not read as a placeholder."""
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, list):
        return [_escaped(part) for part in value]
    if isinstance(value, dict):
        return {key: _escaped(part) for key, part in value.items()}
    return value
