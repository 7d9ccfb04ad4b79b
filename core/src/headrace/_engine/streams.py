"""Answers in parts: the iterator that ``pipe.stream`` returns; that of ``pipe.stream_async`` is in `async_streams`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace._scheduling.cycles import cycle_of, noted
from headrace._scheduling.parts import Parts
from headrace._scheduling.refusals import endless_wait
from headrace._scheduling.threads import Signal, helpers, reentrant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace._engine.futures import NodeRequest
    from headrace._graph.request import GraphRequest
    from headrace._scheduling.entry import Entry
    from headrace._scheduling.node import Node
    from headrace.keys import Request

    Entrance: TypeAlias = Any
    """Of `headrace._engine.entrance`, which names what stands here."""


class Reading(Parts):
    """The parts of a request, and its outcome; the scheduler refers to it, and it never to the iterator of the user.

    Attributes:
        request: The request.
        pending: Stands for it while it has no outcome; None before it enters, and afterwards.
        is_over: Whether it has its outcome.
        error: Its error, until that is raised; None for none.
    """

    def __init__(self, entry: Entry) -> None:
        super().__init__()
        self.request = entry.request
        self.pending: NodeRequest | GraphRequest | None = None
        self.is_over = False
        self.error: BaseException | None = None
        entry.entered = {**(entry.entered or {}), Parts: self}

    def finished(self, entry: Entry) -> None:
        """Take the outcome of the entry; see `headrace._scheduling.entry.Owner`."""
        entry.give_back()
        self.error, self.pending = entry.take_error(), None
        self.closed = self.is_over = True
        self.wake()

    def fail(self, error: BaseException) -> None:
        """End the request with an error, in a helper: who emits waits for nothing."""
        pending = self.pending
        if pending is not None:
            helpers.run(pending.stop, error)

    def cancel(self) -> bool:
        """Withdraw the request; where a backend runs on it, that is told that it is unwanted. True where none does."""
        self.closed = True
        self.waiting.clear()
        return self._give_up() is False

    @reentrant()
    def _give_up(self) -> bool:
        pending, self.pending = self.pending, None
        return pending is not None and pending.give_up()

    def last(self) -> Request:
        """Return the finished dict, which comes after all parts, or raise the error of the request."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.request
        finally:
            del error, self  # see `Entry.take_error`


class _SyncReading(Reading):
    """Wakes a thread."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.signal = Signal()
        self.wake = self.signal.wake  # type: ignore[method-assign]

    def places(self) -> Sequence[tuple[Node, object]]:
        """Return the nodes that the request needs; see `headrace._scheduling.cycles`."""
        pending = self.pending
        return () if pending is None else pending.places()


class Stream:
    """Gives the parts of one answer in order, and after them the finished dict; leaving it cancels the request."""

    _reading: Reading | None = None

    def __init__(self, entrance: Entrance, admitted: Sequence[Any]) -> None:
        ((entry, _),) = admitted
        self._reading = reading = _SyncReading(entry)
        entrance.submit([*admitted], [reading])

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        """Wait for the next part; ContractError where this thread holds the instance that would give it."""
        reading: Any = self._reading
        if reading is None:
            raise StopIteration
        while not reading.waiting:
            if reading.is_over and not reading.waiting:  # the last part may have come in between
                self._reading = None
                return reading.last()
            with noted(reading):
                node = cycle_of(reading)
                if node is not None:
                    raise endless_wait(node)
                reading.signal.sleep()
        return reading.waiting.popleft()

    def close(self) -> None:
        """Read no more: the request is cancelled unless it has ended."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()
