"""The changes that subscribers of models are told."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import Pipeline

__all__ = ["Change", "Listeners", "State"]

State = Literal["unloaded", "loading", "ready", "draining", "failed"]
"""The state of a version: it takes requests only while it is ready."""

logger = logging.getLogger("headrace.models")


@dataclass(frozen=True)
class Change:
    """A version of a model has another state.

    Attributes:
        name: The model.
        version: The version, digits.
        state: Its state from now on.
        pipeline: The pipeline, which takes requests, where the state is ready, else None.
        replaces: The version that it replaces for the requests of the name. The old pipeline is closed once all
            listeners have returned and its requests have ended. ``""`` if there is none.
        reason: The reason of the state. ``""`` if there is none.
    """

    name: str
    version: str
    state: State
    pipeline: Pipeline | None = None
    replaces: str = ""
    reason: str = ""


class Listeners:
    """The functions that are called at each change, in the thread that makes it."""

    def __init__(self) -> None:
        self._all: tuple[Callable[[Change], None], ...] = ()

    def add(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Add a listener. Return a function to remove it."""
        self._all = (*self._all, listener)

        def remove() -> None:
            self._all = tuple(other for other in self._all if other is not listener)

        return remove

    def tell(self, change: Change) -> None:
        """Call all listeners. The error of a listener is logged, since the change is made already."""
        for listener in self._all:
            try:
                listener(change)
            except Exception:
                logger.exception("a listener failed at %s", change)
