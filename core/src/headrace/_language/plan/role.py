"""The role of a backend class in an expression: flags that planner and builder read, and that only words of core set."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

from headrace._language.registry.discovery import CORE_BACKENDS, load


class Role:
    """The flags of a word. The defaults are those of a plain backend.

    Attributes:
        _names: How many of its children are names, and no backends.
        _wiring: Whether it runs nothing itself: once it is built, its last child is called in its place.
        _threaded: Whether its children run in a thread of their own already.
        _in_turn: Whether each child gets the result of the one before as its ``data``. Without a prefix in it, it may be
            replaced by its children where it stands, without prefix, in another one.
    """

    _names: ClassVar[int] = 0
    _wiring: ClassVar[bool] = False
    _threaded: ClassVar[bool] = False
    _in_turn: ClassVar[bool] = False


def role_of(cls: type[Any]) -> type[Role]:
    """Return the role of a backend class: the class itself, or `Role` for a plain one."""
    return cls if issubclass(cls, Role) else Role


def core_role(name: str) -> type[Role]:
    """Return the role of the word of core called ``name``; `Role` itself when there is none."""
    plugin, _, part = name.rpartition(":")
    path = CORE_BACKENDS.get(part) if plugin in ("", "headrace") else None
    return Role if path is None else _load_role(path)


@cache
def _load_role(path: str) -> type[Role]:
    return role_of(load(path, "headrace"))
