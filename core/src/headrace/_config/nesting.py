"""How deep data and the call stack may be nested, so that nothing here overflows the stack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headrace.errors import ConfigError, Problem

MAX_DEPTH = 100
"""Greatest nesting of anything but ``S`` directly in ``S``."""

_ROOM = 700
"""Frames that planning or building a tree of the greatest depth may need."""

T = TypeVar("T")


def too_deep(value: Any) -> bool:
    """Tell whether lists and tables are nested more than `MAX_DEPTH` deep, or hold themselves."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: dict[int, Any] = {}
        for part in level:
            if isinstance(part, Mapping):
                inner.update((id(item), item) for item in part.values())
            elif isinstance(part, (list, tuple)):
                inner.update((id(item), item) for item in part)
        level = [item for item in inner.values() if isinstance(item, (Mapping, list, tuple))]
        if not level:
            return False
    return True


def with_room(function: Callable[[], T]) -> T:
    """Call ``function`` with room for its recursion, however deep the stack of the caller is.

    What is planned and built is at most `MAX_DEPTH` levels deep, so that a fresh stack is enough.
    """
    if sys.getrecursionlimit() - _depth() >= _ROOM:
        return _called(function)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((_called(function), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="headrace-room", daemon=True)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    value: T = result
    return value


def _called(function: Callable[[], T]) -> T:
    try:
        return function()
    except RecursionError as error:
        problem = Problem(
            "nesting",
            "the recursion limit of this process leaves no room for this configuration",
            hint=f"Nest less deep, or raise sys.setrecursionlimit({sys.getrecursionlimit()}).",
        )
        raise ConfigError(problem) from error


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return depth
