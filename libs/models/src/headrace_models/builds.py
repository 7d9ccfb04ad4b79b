"""The build of a model, and the requests that wait for it."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headrace_models.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Build"]


class Build(Future["BaseException | None"]):
    """The outcome of a build: None, or the error.

    Args:
        title: The model with its version.
        queue_size: How many requests may wait for it.
    """

    def __init__(self, title: str, queue_size: int) -> None:
        super().__init__()
        self._title, self._queue_size = title, queue_size
        self._counting = threading.Lock()
        self._waiting = 0

    def end(self, outcome: BaseException | None) -> None:
        """Give those who wait the outcome, unless they have one."""
        with suppress(InvalidStateError):
            self.set_result(outcome)

    @contextmanager
    def queued(self, number: int = 1) -> Iterator[None]:
        """Count requests as waiting while the block runs.

        Raises:
            OutOfMemoryError: More would wait than may.
        """
        most = self._queue_size
        with self._counting:
            waiting = self._waiting
            if not self.done() and waiting and waiting + number > most:
                text = f"model {self._title!r} is being built, and {waiting} requests wait for it"
                hint = "Wait, or enlarge queue_size."
                raise OutOfMemoryError(text, queue_size=most, waiting=waiting, hint=hint)
            self._waiting += number
        try:
            yield
        finally:
            with self._counting:
                self._waiting -= number
