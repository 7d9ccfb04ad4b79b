"""Whether what a `Call` names is there; nothing is imported."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._registry.registry import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec

    from headrace._plan.element import Element
    from headrace._plan.resolver import Resolver
    from headrace._plan.scope import Scope

__all__ = ["check_function"]


def check_function(resolver: Resolver, element: Element, scope: Scope) -> bool:
    """Check that a function can be imported, and may be; report it if not."""
    options: Any = element.options
    call = element.call
    if options is None:  # missing, where an expression is looked at by itself
        return True
    if not resolver.pipeline.allow_import:
        message = f"{call.name} imports {options.function!r}, and running its code is not allowed"
        hint = "Allow it with allow_import=True, without --no-import and HEADRACE_IMPORT=0."
        resolver.add("import_refused", message, call, scope, hint=hint)
        return False
    module, _, name = options.function.partition(":")
    missing = _missing_module(module)
    if missing is not None:
        message = f"{call.name} needs the module {missing!r}, which cannot be found"
        fix = None if "." in missing else f"Install what brings {missing!r}."
        resolver.add("missing_dependency", message, call, scope, hint=fix)
        return False
    names = _names_in(module)
    first = name.partition(".")[0]
    if names is None or first in names:
        return True
    suggestion = nearest(first, (one for one in names if not one.startswith("_")))
    message = f"{call.name}: the module {module!r} has no {first!r}"
    resolver.add("option", message, call, scope, suggestion=suggestion)
    return False


def _missing_module(module: str) -> str | None:
    """Give the first part of a dotted name that is no module; None when all are."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        if name not in sys.modules and _spec(name) is None:
            return name
    return None


def _spec(name: str) -> ModuleSpec | None:
    """Find a module by asking the finders, so that not even its packages are imported."""
    package, _, _ = name.rpartition(".")
    path: Any = None
    if package:
        known = sys.modules.get(package)
        spec = None if known is not None else _spec(package)
        path = getattr(known, "__path__", None) if spec is None else spec.submodule_search_locations
        if path is None:
            return None  # it is no package
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            found: ModuleSpec | None = find(name, path) if find is not None else None
        except (ImportError, ValueError):
            continue
        if found is not None:
            return found
    return None


def _names_in(module: str) -> set[str] | None:
    """Give the names that a module has; None when only its import would show them."""
    known = sys.modules.get(module)
    if known is not None:
        return None if hasattr(known, "__getattr__") else set(dir(known))
    spec = _spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    names = set(_bound(tree))
    # What is made while it runs, and modules below a package, the text does not tell.
    unknown = {"*", "__getattr__", "globals", "vars", "exec", "setattr"}
    used = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    if unknown & (names | used) or spec.submodule_search_locations is not None:
        return None
    return names


def _bound(tree: ast.AST) -> Iterator[str]:
    """Give every name that some statement of a module binds, wherever it stands."""
    for one in ast.walk(tree):
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield one.name
        elif isinstance(one, ast.alias):
            yield (one.asname or one.name).partition(".")[0]
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id
