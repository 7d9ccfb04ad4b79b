"""The keys of a request that a backend says it reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.keys import BOX, COLOR, RESERVED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace._backend import Backend


OPTIONAL = frozenset(RESERVED) - {COLOR, BOX}
"""Keys that are there, or that a backend does without."""

Needs = dict[str, str]
"""The keys that every request needs somewhere, each with the name of a backend that reads it."""


def keys_named(
    backend: type[Backend] | Backend, options: Any, what: str, *, optional: bool = False
) -> Iterable[str]:
    """Give the keys that a backend names in ``reads`` or ``writes``.

    Args:
        backend: The class, or an instance, whose `init` may have named others.
        options: Its checked options, in which ``{option}`` is looked up; None for none.
        what: ``"reads"`` or ``"writes"``.
        optional: Whether the optional keys of a TypedDict count.
    """
    named: Any = getattr(backend, what)
    if isinstance(named, str):
        named = (named,)
    if isinstance(named, type):
        return _typed_keys(named, optional=optional)
    found: list[str] = []
    for key in named:
        if not (key.startswith("{") and key.endswith("}")):
            found.append(key)
            continue
        value: Any = getattr(options, key[1:-1], None)
        if isinstance(value, dict):
            value = list(value.values())
        values = value if isinstance(value, (list, tuple, set, frozenset)) else [value]
        found += [one for one in values if isinstance(one, str)]
    return found


def _typed_keys(named: type, *, optional: bool) -> list[str]:
    """Give the keys of a TypedDict; those that may be missing only if ``optional``."""
    required: Iterable[str] = getattr(named, "__required_keys__", ())
    every = list(getattr(named, "__annotations__", {}))
    if optional:
        return [*dict.fromkeys([*every, *required, *getattr(named, "__optional_keys__", ())])]
    return [key for key in required if not _may_be_missing(named, key)]


def _may_be_missing(named: type, key: str) -> bool:
    """Tell whether an annotation that is still text says ``NotRequired``."""
    for cls in (named, *getattr(named, "__orig_bases__", ())):
        annotation = getattr(cls, "__annotations__", {}).get(key)
        text = getattr(annotation, "__forward_arg__", annotation)
        if isinstance(text, str) and "NotRequired" in text:
            return True
    return False
