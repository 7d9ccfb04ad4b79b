"""Has all worker processes make the changes that requests ask for, one change after the other.

A request reaches one worker process, which asks the supervisor for the change. The supervisor sends the change to
every process. When all have answered, it sends the outcome to the process that asked. This module decides from
messages alone, without threads or processes. The worker processes' side is `headrace_serve.operating.worker_changes`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Message = dict[str, Any]

__all__ = ["SharedChanges"]


class SharedChanges:
    """Has every worker process make every change, in the same order. Used by the supervisor's thread.

    Args:
        send: Sends a message to a process by its number. If the process is gone the message is lost, and a call of
            `left` follows.
    """

    def __init__(self, send: Callable[[int, Message], None]) -> None:
        self._send = send
        self._members: set[int] = set()
        self._waiting: deque[tuple[int, int, Message]] = deque()
        self._current: tuple[int, int, Message] | None = None
        self._open: set[int] = set()
        self._refusal: Message | None = None
        self._unloaded: dict[str, Message] = {}

    def received(self, number: int, message: Message) -> None:
        """Handle a message of a process: it joins, it asks for a change, or it reports one as made or failed."""
        if "join" in message:
            self._join(number)
        elif "ask" in message:
            self._waiting.append((number, message["ask"], message["change"]))
            self._next()
        elif "made" in message and number in self._open:
            self._answer(number, message["made"])

    def left(self, number: int) -> None:
        """Record that a process has ended, so that no change waits for its answer any more."""
        self._members.discard(number)
        if number in self._open:
            self._answer(number, None)

    def reloaded(self) -> None:
        """Record that all processes load every model again, so that no model is unloaded."""
        self._unloaded.clear()

    def _join(self, number: int) -> None:
        """Send the earlier changes to a process that is about to listen; from now on it makes every change."""
        self._members.add(number)
        self._send(number, {"before": [*self._unloaded.values()]})
        if self._current is not None:
            self._open.add(number)
            self._send(number, {"change": self._current[2]})

    def _next(self) -> None:
        if self._current is not None or not self._waiting:
            return
        self._current = self._waiting.popleft()
        self._open, self._refusal = set(self._members), None
        for number in sorted(self._members):
            self._send(number, {"change": self._current[2]})

    def _answer(self, number: int, refusal: Message | None) -> None:
        self._open.discard(number)
        self._refusal = self._refusal or refusal  # the first that came
        if self._open or self._current is None:
            return
        (origin, ask, change), self._current = self._current, None
        if self._refusal is None:
            self._note(change)
        if origin in self._members:
            self._send(origin, {"answer": ask, "refusal": self._refusal})
        self._next()

    def _note(self, change: Message) -> None:
        """Keep a change if a process that starts later has to make it too; drop those that it cancels."""
        name = change["name"]
        match change["what"]:
            case "unload":
                self._unloaded[name] = change
            case "load":
                self._unloaded.pop(name, None)
