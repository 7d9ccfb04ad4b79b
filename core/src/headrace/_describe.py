"""Plain data about plans and what was built from them: ``describe()`` and ``explain``."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from headrace._portable import error_text

if TYPE_CHECKING:
    from headrace._backend import Backend
    from headrace._plan.element import Element, NodePlan


def plain(value: Any) -> Any:
    """Give a value as JSON can hold it."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    return repr(value)


def describe_element(element: Element, built: dict[int, Any] | None = None) -> dict[str, Any]:
    """Give one element and all below it.

    Args:
        element: The element.
        built: What was built, by the identity of its element; None when nothing was.
    """
    options: dict[str, Any] = {}
    for key, origin in element.origins.items():
        field = _field(element, key)
        value = getattr(element.options, field, None) if element.options is not None else None
        options[key] = {"value": plain(value), "origin": origin}
    backend = (built or {}).get(id(element))
    least, most = (backend.min, backend.max) if backend is not None else element.range
    described = {
        "name": element.name,
        "distribution": element.spec.distribution,
        "version": element.spec.version,
        "options": options,
        "range": [least, most],
        "built": _built(backend) if backend is not None else {},
        "children": [describe_element(child, built) for child in element.children],
    }
    why = getattr(element.cls, "waits_while", None)
    if why is not None and element.options is not None:
        queue = getattr(element.options, "queue", None)
        described["waits"] = f"holds its instance while queue {queue!r} is {why}"
    if element.definition is not None:
        described["definition"] = element.definition
    if element.named is not None:
        described["instance"] = element.named.name
    if element.target is not None:
        described["target"] = element.target[0]
    if element.own_thread:
        described["own_thread"] = True
    if any(positional or named for positional, named in element.prefixes):
        described["prefixes"] = [
            [*map(plain, positional), *(f"{key}={value}" for key, value in named.items())]
            for positional, named in element.prefixes
        ]
    if element.unavailable:
        described["not_chosen"] = dict(element.unavailable)
    return described


def _built(backend: Backend) -> Any:
    """Give what a backend says of itself, or why it cannot."""
    try:
        return plain(backend.describe())
    except Exception as error:  # noqa: BLE001 - the others are described all the same
        return {"error": error_text(error)}


def _field(element: Element, key: str) -> str:
    for name, field in element.cls.Options.model_fields.items():
        if (field.alias or name) == key:
            return name
    return key


def owns_thread(plan: NodePlan) -> bool:
    """Tell whether each instance of a node is run by a thread of its own."""
    from headrace._plan.word import word_of

    root = plan.instance
    while root is not None:
        if root.own_thread or word_of(root.cls)._threaded:
            return True
        root = root.children[0] if root.call.part == "Reflect" and root.children else None
    return False
