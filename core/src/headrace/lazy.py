"""For packages of plugins: public names that are imported when they are first used.

A package that only names its backends stays light. Its ``__init__.py`` says where its names live::

    from headrace.lazy import lazy_names

    __all__ = ["Scale", "scale_image"]
    __getattr__, __dir__ = lazy_names(__name__, {"Scale": "backend", "scale_image": "images"})
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package. See PEP 562.

    Args:
        package: The name of the package, its ``__name__``.
        homes: Of each public name the module within the package that defines it, as ``"images"``. ``"images:resize"`` where it
            has another name there. ``""`` where it is a module of the package.

    Returns:
        A function that imports a name when it is first used, and raises AttributeError for any other. And one that lists
        them, and what else the package has in ``__all__``.
    """

    def get(name: str) -> Any:
        here = sys.modules[package]
        if name not in homes:
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=here)  # Python suggests the nearest name
        home, _, attribute = homes[name].partition(":")
        value: Any = import_module(f"{package}.{home or name}")
        if home:
            value = getattr(value, attribute or name)
        setattr(here, name, value)
        return value

    def names() -> list[str]:
        return sorted({*homes, *sys.modules[package].__all__})

    return get, names
