"""Names of functions that `Call` would not find, read from the text of their modules; nothing is imported."""

from __future__ import annotations

import ast
import sys
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from headrace.errors import Problem, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec

_DYNAMIC = {
    "*",
    "__getattr__",
    "globals",
    "vars",
    "locals",
    "exec",
    "setattr",
    "modules",
    "_convert_",
}
"""What makes names while a module runs, so that its text does not tell them all."""


def misspelt(plan: dict[str, Any]) -> Iterator[Problem]:
    """Return a problem for each function of a `Call` that its module certainly does not have.

    Args:
        plan: What `headrace.explain` says of a configuration.
    """
    for node, texts in plan["nodes"].items():
        for function in sorted({name for key in texts for name in _functions(texts[key])}):
            module, _, name = function.partition(":")
            name = name.partition(".")[0]
            names = _names(module)
            if names is not None and name not in names:
                public = sorted(n for n in names if not n.startswith("_"))
                text = f"{function!r} cannot be called: {module} has no {name!r}"
                yield Problem("option", text, path=node, suggestion=nearest(name, public))


def _functions(tree: Any) -> Iterator[str]:
    """Return the functions that the elements of a tree call; nothing where ``tree`` is none."""
    if isinstance(tree, dict) and "children" in tree:
        option = tree["options"].get("function")
        if (tree["name"], tree["distribution"]) == ("Call", "headrace") and option is not None:
            yield option["value"]
        for child in tree["children"]:
            yield from _functions(child)


def _names(module: str) -> set[str] | None:
    """Return the names that a module has; None where only its import would tell."""
    if module in sys.builtin_module_names:
        return set(dir(__import__(module)))
    spec = spec_of(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    package, _, _ = module.rpartition(".")
    if spec.submodule_search_locations and package and _names(package) is None:
        return None  # such a package may fill those inside of it, as that of OpenCV does
    try:
        nodes = list(ast.walk(ast.parse(Path(spec.origin).read_bytes())))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    bound = {name for node in nodes for name in _bound(node)}
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    if _DYNAMIC & (bound | used):
        return None
    return bound | {module.name for module in iter_modules(spec.submodule_search_locations or [])}


def spec_of(module: str) -> ModuleSpec | None:
    """Find a module in the folders of ``sys.path``, without importing the packages that it stands in."""
    path: Any = None
    spec = None
    for name in accumulate(module.split("."), "{}.{}".format):
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec


def _bound(node: ast.AST) -> Iterator[str]:
    """Return the names that a statement of a module binds, wherever it stands."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, ast.alias):
        yield (node.asname or node.name).partition(".")[0]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
