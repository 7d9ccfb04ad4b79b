"""What one version of a model takes of a budget of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Holding"]


@dataclass(eq=False)
class Holding:
    """What one version of a model takes of the budget.

    Attributes:
        title: The model with its version, ``"detect:3"``.
        sizes_bytes: What it takes, by device.
        origin: Whether these are ``given``, ``measured``, or ``estimated`` from the sizes of its files.
        keep: Whether it never leaves for another one.
        is_lent: Whether its pipeline was given to somebody, so that it does not leave either.
        idle_unload_s: Seconds without a request after which it leaves. None: it stays.
        reason: Why it leaves.
        prepared: Who has it stay until a switch: exchanges that compare it, and what was prepared beside it or to replace it.
        replaces: What it is to replace. That stays from when this has its room until the operation ends.
        caller: Of a call of a model that did not count with its caller before: the caller.
        waits_since: When it began to wait for room, by the clock of the budget.
        since: When it was ready, by the clock of the budget. None before.
        leaving: Whether it was told to leave.
        last_use: Gives the time of its last request.
        is_busy: Says whether requests are inside it.
        leave: Lets it leave once its requests have ended. Returns False if an operation does not allow that now.
        calls: The models that it calls, by name or alias: they count with it while it is here.
        key: What its size depends on: see `headrace_models.memory.sizes.key_of`.
    """

    title: str
    sizes_bytes: dict[str, int] = field(default_factory=dict)
    origin: Literal["given", "measured", "estimated"] = "estimated"
    keep: bool = False
    is_lent: bool = False
    idle_unload_s: float | None = None
    reason: str = "evicted: another model needs its memory"
    prepared: set[object] = field(default_factory=set)
    replaces: Holding | None = None
    caller: Holding | None = None
    waits_since: float = 0.0
    since: float | None = None
    leaving: bool = False
    last_use: Callable[[], float] = lambda: 0.0
    is_busy: Callable[[], bool] = lambda: False
    leave: Callable[[], bool] = lambda: True
    calls: set[str] = field(default_factory=set)
    key: str = ""

    @property
    def stays(self) -> bool:
        """Whether it never leaves, or not before a switch for which the same thread builds others."""
        return self.keep or self.is_lent or bool(self.prepared)

    def set_as(self, other: Holding) -> None:
        """Set what is given of another one: whether it is kept, when it is idle, and its size, where one of the two is given."""
        self.keep, self.idle_unload_s = other.keep, other.idle_unload_s
        if "given" in (self.origin, other.origin):
            self.origin, self.sizes_bytes = other.origin, {**other.sizes_bytes}
