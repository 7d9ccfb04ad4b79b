"""For packages of plugins: public names that are imported when they are first used.

A package that only names its backends stays light. Its ``__init__.py`` says where its names live::

    from headrace.lazy import lazy_names

    if TYPE_CHECKING:
        from package.backend import Scale
        from package.images import scale_image

    __all__ = ["Scale", "scale_image"]

    if not TYPE_CHECKING:  # with these a type checker would accept every name
        __getattr__, __dir__ = lazy_names(__name__, {"backend": "Scale", "images": "scale_image"})
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
        homes: For each module within the package, as ``"images"``, the public names that it
            defines, as ``"crop resize"``. ``"resize:_resize"`` where a name is another one there.
            Below ``""`` are modules of the package.

    Returns:
        A function that imports a name when it is first used, and raises AttributeError for any
        other. And one that lists them, and what else the package has in ``__all__``.
    """
    pairs = [(home, name.split(":")) for home, names in homes.items() for name in names.split()]
    places = {name: (home, *other) for home, (name, *other) in pairs}

    def get(name: str) -> Any:
        here = sys.modules[package]
        if name not in places:
            text = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(text, name=name, obj=here)  # Python suggests the nearest name
        home, *other = places[name]
        value: Any = import_module(f"{package}.{home or name}")
        if home:
            value = getattr(value, *(other or [name]))
        setattr(here, name, value)
        return value

    def names() -> list[str]:
        return sorted({*places, *sys.modules[package].__all__})

    return get, names
