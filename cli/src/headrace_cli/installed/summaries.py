"""What commands of plugins do, in one line each, read from the text of their modules; nothing is imported."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_cli.lint.functions import spec_of

if TYPE_CHECKING:
    from headrace.plugins import Plugin

__all__ = ["summary"]


def summary(path: str, plugin: Plugin) -> str:
    """Return the first sentence that a command says of itself, and the distribution it comes with.

    It is that of a function's docstring, of the ``help`` of a ``typer.Typer``, or of the docstring of its callback. Where the
    text does not tell, the distribution is all that is said.

    Args:
        path: The import path of the command, ``package.module:name``.
        plugin: The plugin that offers it.
    """
    module, _, name = path.partition(":")
    text = _said(module, name)
    comes_with = f"Comes with {plugin.distribution}."
    return f"{text} ({plugin.distribution})" if text else comes_with


def _said(module: str, name: str) -> str:
    spec = spec_of(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    try:
        nodes = ast.parse(Path(spec.origin).read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and (node.name == name or _is_callback(node, name)):
            text = ast.get_docstring(node) or ""
        elif isinstance(node, ast.Assign):
            text = _assigned(node, name)
        else:
            continue
        if text:
            return " ".join(text.split("\n\n")[0].split())
    return ""


def _is_callback(node: ast.FunctionDef, name: str) -> bool:
    """Return whether a function has the decorator ``@name.callback(...)``."""
    called = [call.func for call in node.decorator_list if isinstance(call, ast.Call)]
    return any(ast.unparse(func) == f"{name}.callback" for func in called)


def _assigned(node: ast.Assign, name: str) -> str:
    """Return the text in ``name = Typer(help="...")`` or ``name.info.help = "..."``; "" for another statement."""
    target, value = ast.unparse(node.targets[0]), node.value
    if target == name and isinstance(value, ast.Call):
        value = next((word.value for word in value.keywords if word.arg == "help"), value)
    elif target != f"{name}.info.help":
        return ""
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
