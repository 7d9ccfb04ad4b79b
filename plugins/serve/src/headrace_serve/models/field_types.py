"""The types of the fields of bodies of JSON, which serving files name by texts."""

from __future__ import annotations

import ast
from typing import Any, Final

__all__ = ["type_of"]

_TYPES: Final[dict[str, Any]] = {
    "str": str, "int": int, "float": float, "bool": bool, "any": Any, "list": list, "dict": dict
}  # fmt: skip


def type_of(text: str) -> Any:
    """Return the type that a text names: ``str``, ``int``, ``float``, ``bool``, ``any``, ``list[T]``, ``dict[str, T]``, ``T | None``.

    Raises:
        ValueError: The text names no such type.
    """
    try:
        return _typed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError):
        known = "str, int, float, bool, any, list[T], dict[str, T], T | None"
        raise ValueError(f"{text!r} is no type; there are: {known}") from None


def _typed(node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return _TYPES[name]
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _typed(left) | _typed(right)
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return list[_typed(inner)]  # type: ignore[misc]  # a type that is made here
        case ast.Subscript(
            value=ast.Name(id="dict"), slice=ast.Tuple(elts=[ast.Name(id="str"), inner])
        ):
            return dict[str, _typed(inner)]  # type: ignore[misc]
    raise ValueError
