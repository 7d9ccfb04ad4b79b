"""What can be seen of a class without running it: whether it could keep the backend contract."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from headrace.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["check_class"]

_METHODS = ("forward", "forward_with_dep", "init", "warm_up", "close", "describe")


def check_class(cls: type[Any]) -> None:
    """Refuse a class that says something of itself that cannot be meant.

    Raises:
        PluginError: It has no ``forward``; a method is asynchronous or a generator; or one of
            ``reads``, ``writes``, ``takes``, ``phases`` and ``prefixes`` is of a wrong kind. It names
            the class and all that is wrong.
    """
    wrong = [*_wrong_methods(cls), *_wrong_words(cls)]
    if wrong:
        raise PluginError(
            f"the class {cls.__module__}.{cls.__qualname__} is no backend: {'; '.join(wrong)}",
            hint="See headrace.Backend for what a class may say.",
        )


def _wrong_methods(cls: type[Any]) -> Iterator[str]:
    if not _has_forward(cls):
        yield "it has no method forward(self, batch)"
    for name in _METHODS:
        method = getattr(cls, name, None)
        if method is None:
            continue
        if not callable(method):
            yield f"{name} is no method, it is {_shown(method)}"
        elif inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            yield f"{name} is asynchronous, and a backend runs in a thread: write def {name}"
        elif inspect.isgeneratorfunction(method):
            yield f"{name} is a generator, which does nothing when it is called"


def _wrong_words(cls: type[Any]) -> Iterator[str]:
    for name in ("reads", "writes"):
        keys = getattr(cls, name, ())
        if not (isinstance(keys, property) or _is_typed_dict(keys) or _are_texts(keys)):
            example = f'{name} = ("{keys}",)' if isinstance(keys, str) else f'{name} = ("data",)'
            yield f"{name} is {_shown(keys)}, not a tuple of keys: write {example}"
    if not _are_texts(getattr(cls, "prefixes", ())):
        yield f'prefixes is {_shown(cls.prefixes)}, not a tuple of texts like ("or", "key=")'
    if not _is_arity(getattr(cls, "takes", 0)):
        yield f"takes is {_shown(cls.takes)}, neither a number of children nor (least, most or None)"
    if not _is_count(getattr(cls, "phases", 1), 1):
        yield f"phases is {_shown(cls.phases)}, not a number of at least 1"


def _has_forward(cls: type[Any]) -> bool:
    """Tell whether a class has a ``forward`` of its own; core's words of wiring need none."""
    if cls.__module__.startswith("headrace.words."):
        return True
    from headrace._backend import Backend

    inherited = (Backend.forward, None)
    return any(
        getattr(cls, name, None) not in inherited for name in ("forward", "forward_with_dep")
    )


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_arity(takes: Any) -> bool:
    if not isinstance(takes, (tuple, list)):
        return _is_count(takes, 0)
    if len(takes) != 2 or not _is_count(takes[0], 0):
        return False
    return takes[1] is None or _is_count(takes[1], takes[0])


def _are_texts(value: Any) -> bool:
    return isinstance(value, (tuple, list, set, frozenset)) and all(
        isinstance(one, str) and one for one in value
    )


def _is_typed_dict(value: Any) -> bool:
    return isinstance(value, type) and hasattr(value, "__required_keys__")


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - foreign code
        return object.__repr__(value)
