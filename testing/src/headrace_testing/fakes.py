"""A clock that moves only when a test moves it, and backends that record, block, are slow or fail."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from pydantic import Field

from headrace import Backend
from headrace import Options as _Options
from headrace.keys import Request

__all__ = ["Blocking", "Failing", "FakeClock", "Recording", "Slow"]


class FakeClock:
    """A clock in seconds that stands still until it is moved; call it for the time."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now = start_s

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if not seconds >= 0:  # NaN is neither
            raise ValueError(f"a clock goes forward, got {seconds!r} seconds")
        self._now += seconds


class Recording(Backend):
    """Identity that records the ``data`` of every batch, in the order in which the batches ran.

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1 or more.

    Raises:
        Nothing.
    Source:
        own
    """

    batches: ClassVar[list[list[Any]]] = []
    """The ``data`` of each batch since `clear`, of all instances."""

    @classmethod
    def clear(cls) -> None:
        """Forget all recorded batches."""
        cls.batches.clear()

    def forward(self, batch: list[Request]) -> None:
        """Record the batch, and give ``data`` as ``result``."""
        self.batches.append([request["data"] for request in batch])
        for request in batch:
            request["result"] = request["data"]


class Blocking(Backend):
    """Identity that waits in ``forward`` until the test lets it go on.

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1 or more.

    Raises:
        Nothing.
    Source:
        own
    """

    entered: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    """Released once per batch that has begun."""
    leave: ClassVar[threading.Semaphore] = threading.Semaphore(0)
    """Acquired once per batch before it ends."""

    @classmethod
    def reset(cls) -> None:
        """Reset: no batch has entered, and none may leave."""
        cls.entered = threading.Semaphore(0)
        cls.leave = threading.Semaphore(0)

    def forward(self, batch: list[Request]) -> None:
        """Report that the batch has begun, and wait until it may end."""
        self.entered.release()
        self.leave.acquire()
        for request in batch:
            request["result"] = request["data"]


class Slow(Backend):
    """Identity that takes its time: a batch of ``Slow(ms=20)`` of any size takes 20 milliseconds.

    The interpreter's lock is free meanwhile, as it is while a native library computes.

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1 or more.

    Raises:
        Nothing.
    Source:
        own
    """

    class Options(_Options):
        """Options of Slow.

        Attributes:
            ms: How long a batch takes, in milliseconds.
        """

        positional = ("ms",)
        ms: float = Field(10.0, ge=0)

    never: ClassVar[threading.Event] = threading.Event()
    """A batch waits for this event with its time as the timeout; setting the event ends all batches."""

    def init(self, options: Any, context: Any) -> None:
        """Keep the options."""
        self.options = options

    def forward(self, batch: list[Request]) -> None:
        """Return ``data`` as ``result`` when the time is over."""
        self.never.wait(self.options.ms / 1000)
        for request in batch:
            request["result"] = request["data"]


class Failing(Backend):
    """Identity that fails for one value: ``Failing(on=bad)`` raises for a batch that holds "bad".

    Reads:
        data: Anything.
    Writes:
        result: The same object.
    Batch:
        1 or more.

    Raises:
        ValueError: An item's ``data`` equals the option ``on``.
    Source:
        own
    """

    class Options(_Options):
        """Options of Failing.

        Attributes:
            on: The data that fails.
            alone: Whether only that item fails, and not its whole batch.
        """

        positional = ("on",)
        on: Any = None
        alone: bool = False

    def init(self, options: Any, context: Any) -> None:
        """Keep the options."""
        self.options = options

    def _must_fail(self, data: Any) -> bool:
        try:
            return bool(data == self.options.on)
        except Exception:  # noqa: BLE001 - comparing an array gives an array, which has no truth value
            return False

    def forward(self, batch: list[Request]) -> list[Exception | None] | None:
        """Return ``data`` as ``result``, or fail."""
        outcomes: list[Exception | None] = []
        for request in batch:
            failed = self._must_fail(request["data"])
            if failed and not self.options.alone:
                raise ValueError(f"told to fail on {self.options.on!r}")
            outcomes.append(ValueError(f"told to fail on {self.options.on!r}") if failed else None)
            if not failed:
                request["result"] = request["data"]
        return outcomes if any(outcomes) else None
