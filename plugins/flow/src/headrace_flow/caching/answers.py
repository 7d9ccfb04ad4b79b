"""Answers that are kept, in memory of their own, and given again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from headrace_flow.caching.content import PLAIN, UnknownContentError, is_array

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headrace.keys import Request

__all__ = ["Answer", "Answers", "written"]

_VALUE_BYTES = 32
"""What a value takes beside its content, roughly."""


def _copied(value: Any) -> tuple[Any, int]:
    """Return a value of its own memory, and about how many bytes it takes.

    Raises:
        UnknownContentError: It is neither immutable nor an array, nor a list, tuple or dict of such values.
    """
    kind = type(value)
    if kind in (bytes, str):
        return value, len(value) + _VALUE_BYTES
    if kind in PLAIN:
        return value, _VALUE_BYTES
    if is_array(value):
        return value.copy(), value.nbytes + _VALUE_BYTES
    if kind in (list, tuple):
        items = [_copied(item) for item in value]
        return kind(item for item, _ in items), sum(size for _, size in items) + _VALUE_BYTES
    if kind is dict:
        names, values = _copied([*value]), _copied([*value.values()])
        return dict(zip(names[0], values[0], strict=True)), names[1] + values[1]
    raise UnknownContentError(kind.__name__)


class Answer:
    """The outputs of a backend in a request, in memory of their own.

    Args:
        values: The keys and what was written.

    Attributes:
        keys: The keys.
        size: About how many bytes it takes.

    Raises:
        UnknownContentError: A value has a class that cannot be copied here.
    """

    def __init__(self, values: Request) -> None:
        self.keys = values.keys()
        try:
            self._values, self.size = _copied(values)
        except RecursionError:
            raise UnknownContentError("something that holds itself") from None

    def values(self) -> Request:
        """Return the keys with their values, again a copy."""
        copy: Request = _copied(self._values)[0]
        return copy


def written(before: Request, after: Request, declared: Collection[str]) -> Request:
    """Return the keys that a child has written: those with another value than before, and those that it declares.

    Args:
        before: A shallow copy of the request before the child ran.
        after: The request.
        declared: The keys that the backends in the child say they write. What they do to ``data`` is no answer: containers
            move results there.
    """
    return {
        key: value
        for key, value in after.items()
        if key != "data" and (key in declared or key not in before or before[key] is not value)
    }


class Answers:
    """Answers by content. The least recently used are dropped first. Any thread may use it.

    Args:
        seconds: For how long an answer is given.
        entries: How many answers are kept at most.
        most_bytes: How many bytes the kept answers take at most.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, seconds: float, entries: int, most_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._seconds, self._entries, self._most_bytes = seconds, entries, most_bytes
        self._clock, self._lock = clock, threading.Lock()
        self._kept: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()
        self._bytes = 0
        self.counts = {"hits": 0, "misses": 0, "uncached": 0}

    def get(self, content: bytes) -> Answer | None:
        """Return the answer to a content; None where there is none, or where its time is over."""
        with self._lock:
            if content not in self._kept:
                return None
            until, answer = self._kept[content]
            if self._clock() >= until:
                self._drop(content)
                return None
            self._kept.move_to_end(content)
            return answer

    def put(self, content: bytes, answer: Answer) -> bool:
        """Keep an answer; False where it is too large."""
        if answer.size > self._most_bytes:
            return False
        with self._lock:
            if content in self._kept:
                self._drop(content)
            self._kept[content] = self._clock() + self._seconds, answer
            self._bytes += answer.size
            while len(self._kept) > self._entries or self._bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))
        return True

    def _drop(self, content: bytes) -> None:
        self._bytes -= self._kept.pop(content)[1].size

    def count(self, what: str) -> None:
        """Count a request."""
        with self._lock:
            self.counts[what] += 1

    def statistics(self) -> dict[str, int]:
        """Return how many requests were hits, misses and uncached, and what is kept now."""
        with self._lock:
            return {**self.counts, "entries": len(self._kept), "bytes": self._bytes}
