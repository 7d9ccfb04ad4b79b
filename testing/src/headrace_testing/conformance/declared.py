"""The keys that a class declares under ``reads`` or ``writes``."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping
from typing import Any

_WORD = re.compile(r"(?:\w+\.)?(Required|NotRequired)\[")


class Keys(typing.NamedTuple):
    """The keys that a class declares: those that must be there, and those that may be."""

    required: frozenset[str]
    optional: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        """Every declared key."""
        return self.required | self.optional


def declared_keys(declared: Any, options: Any) -> Keys:
    """Return the keys of ``reads`` or ``writes``: a tuple of keys and ``{option}``, or a TypedDict.

    An option may hold one key, a list of keys, a table whose values are keys, or None for no key.
    """
    if isinstance(declared, type):
        required = set(getattr(declared, "__required_keys__", ()))
        for key, annotation in declared.__annotations__.items():
            # Under `from __future__ import annotations` Python does not recognise Required and NotRequired.
            word = _WORD.match(getattr(annotation, "__forward_arg__", ""))
            if word is not None:
                (required.add if word[1] == "Required" else required.discard)(key)
        return Keys(frozenset(required), frozenset(declared.__annotations__) - required)
    keys: list[str] = []
    for key in declared:
        if key.startswith("{") and key.endswith("}"):
            value = getattr(options, key[1:-1], None)
            if isinstance(value, str):
                keys.append(value)
            elif isinstance(value, Mapping):
                keys.extend(value.values())
            else:
                keys.extend(value or ())
        else:
            keys.append(key)
    return Keys(frozenset(keys), frozenset())
