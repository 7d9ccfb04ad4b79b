"""What the body of a backend class may say: the kinds of its attributes, and names that were perhaps meant."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from headrace import Backend, Options


def _is_weight(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _are_keys(value: Any) -> bool:
    if isinstance(value, type):
        return hasattr(value, "__annotations__")
    return isinstance(value, (tuple, list)) and all(isinstance(key, str) for key in value)


_SWITCHES = (
    "owns_thread",
    "rerun",
    "keeps",
    "builds_elsewhere",
    "stateful",
    "uses_pipeline",
    "wide",
)
_KEYS = (_are_keys, "a tuple of keys, or a TypedDict")
_ATTRIBUTES = {
    "min": (_is_weight, "a whole number of at least 1"),
    "max": (
        lambda value: value is None or _is_weight(value),
        "a whole number of at least 1, or None",
    ),
    "reads": _KEYS,
    "writes": _KEYS,
    "Options": (
        lambda value: isinstance(value, type) and issubclass(value, Options),
        "a class that derives from headrace.Options",
    ),
    **dict.fromkeys(_SWITCHES, (lambda value: isinstance(value, bool), "True or False")),
}
"""What each attribute may be, and how an error says it."""

_ELSEWHERE = dict.fromkeys(("batch_size", "max_batch", "max_batch_size"), "max")
"""The names of attributes in other frameworks, and here."""


def wrong_attribute(cls: type[Any]) -> str | None:
    """Say which attribute of a class is wrong: its kind, or a name that means nothing here; None where none is.

    A property is left to the instance. A name is wrong where it is like a switch and its value is one, or means ``max`` elsewhere.
    """
    for base in cls.__mro__:
        if base in Backend.__mro__:
            continue
        for name, value in vars(base).items():
            if name.startswith("_") or hasattr(type(value), "__get__"):
                continue
            known = name if name in _ATTRIBUTES else _ELSEWHERE.get(name) or _alike(name)
            fits, kind = _ATTRIBUTES.get(known or "", (None, ""))
            if fits is None:
                continue
            if known == name and not fits(value):
                return f"{name} is {value!r:.200}, and takes {kind}"
            if known != name and fits(value):
                return f"{name} means nothing here. Did you mean {known!r}, which takes {kind}?"
    return None


def _alike(name: str) -> str | None:
    """Return the switch of which a name is a slip by a letter or two; other names may be a class's own."""
    known = () if hasattr(Backend, name) else _SWITCHES
    return next(iter(get_close_matches(name, known, n=1, cutoff=0.85)), None)
