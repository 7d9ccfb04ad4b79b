"""Writing a tree: the base of its nodes, and the canonical text, made without recursion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from headrace._expression.templates import Template
from headrace._expression.words import spell

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

__all__ = ["Emit", "Node", "emit_value", "write"]

Emit: TypeAlias = "Callable[[Node | tuple[Any, ...] | str], None]"


class Node:
    """What `Call` and `Args` share: frozen, and equal when written the same."""

    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen: use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other):
            return NotImplemented
        return str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return write(self)

    def emit(self, emit: Emit) -> None:
        """Give the pieces of the text in order: texts, and nodes and lists to be written."""
        raise NotImplementedError

    def reads_as_word(self) -> bool:
        """Tell whether the text, in the place of a value, would be read as a word."""
        return False


def write(root: Node | tuple[Any, ...]) -> str:
    """Write a tree in its canonical form: no blanks, quotes only where they are needed."""
    out: list[str] = []
    todo: list[Node | tuple[Any, ...] | str] = [root]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        pieces: list[Node | tuple[Any, ...] | str] = []
        if isinstance(item, tuple):
            _emit_list(item, pieces.append)
        else:
            item.emit(pieces.append)
        todo += reversed(pieces)
    return "".join(out)


def _emit_list(values: tuple[Any, ...], emit: Emit) -> None:
    emit("[")
    for index, value in enumerate(values):
        if index:
            emit(",")
        emit_value(value, emit)
    emit("]")


def emit_value(value: Any, emit: Emit) -> None:
    """Give the pieces of a value to ``emit``."""
    if isinstance(value, Node):
        emit(value)
        if value.reads_as_word():
            emit("()")
    elif isinstance(value, tuple):
        emit(value)
    else:
        emit(str(value) if isinstance(value, Template) else spell(value))
