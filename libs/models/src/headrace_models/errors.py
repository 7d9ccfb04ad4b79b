"""The errors of named models, beside those of `headrace.errors`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, OverloadedError, among

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OutOfMemoryError", "UnknownModelError", "UnloadedError"]


@dataclass(eq=False, repr=False, kw_only=True)
class OutOfMemoryError(OverloadedError):
    """There is no room for the model in the budget of memory, or too many requests wait for it to come.

    Attributes:
        passes: Whether what stays now leaves by itself: an exchange ends, or what was prepared takes its place.
    """

    code = "memory"

    passes: bool = False


class UnknownModelError(HeadraceError, KeyError):
    """No model has this name, or the model has no such version.

    Attributes:
        name: The name that was asked for, with its version if one was asked for.
        known: The names that exist.
    """

    code = "unknown_model"

    def __init__(self, name: str, known: Iterable[str] = (), *, alias: str | None = None) -> None:
        """Say what is not there; ``alias`` is the alias that has it as a target."""
        self.name = name
        self.known = tuple(known)
        text = "" if alias is None else f"the alias {alias!r} has an unknown target: "
        text += f"there is no model {name[:200]!r}"
        super().__init__(f"{text}. {among(name, self.known)}" if self.known else text)


class UnloadedError(HeadraceError, RuntimeError):
    """The model, or this version of it, takes no requests, because it was unloaded or replaced.

    Attributes:
        name: The model with its version, ``"detect:3"``.
        reason: Why it takes no requests.
        replaced: Whether another version has taken its place.
    """

    code = "unloaded"

    def __init__(self, name: str, reason: str, *, replaced: bool = False) -> None:
        self.name = name
        self.reason = reason
        self.replaced = replaced
        hint = f"load({name!r}) makes it ready."
        if replaced:
            hint = f"rollback({name.partition(':')[0]!r}) brings the version back that was replaced last."
        super().__init__(f"model {name!r} takes no requests: {reason}\n  {hint}")
