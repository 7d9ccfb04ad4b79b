"""A node as its parts see it: what they read of it, and the steps that they take there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from headrace._run.room import Home

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace._run.entry import Entry
    from headrace._run.failures import FailureLog
    from headrace._run.instance import Instance
    from headrace.errors import ClosedError


class NodeState(Home, Protocol):
    """What the parts of a node share of it: see `headrace._run.node.Node`."""

    clock: Callable[[], float]
    free: list[Instance]
    special: bool
    entered: int
    refusing: ClosedError | None
    must_have_result: bool
    failures: FailureLog

    @property
    def reporter(self) -> object: ...
    def claim(self, instance: Instance) -> bool: ...
    def note_lost(self, instance: Instance) -> None: ...
    def enter(self, entries: Iterable[Entry]) -> None: ...
    def fail_late(self, entry: Entry) -> None: ...
    def fail_waiting(self, error: BaseException, entries: Iterable[Entry]) -> None: ...
    def is_held_by_this_thread(self) -> bool: ...
