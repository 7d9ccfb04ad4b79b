"""One recording of a trace: what threads of a pipeline note, and the thread that writes it."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

import headrace
from headrace.errors import SetupError, code_of
from headrace_observe.aside import MOST_PENDING, Aside
from headrace_observe.trace_events import (
    TAIL,
    BatchHeard,
    ElementHeard,
    EventMaker,
    RequestHeard,
    SpanHeard,
)
from headrace_observe.trace_store import TraceStore

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.hookspecs import BatchRecord

__all__ = ["Recording"]

_log = logging.getLogger("headrace.observe.trace")

_MOST_INSIDE = 10_000
"""So many elements are kept of one batch."""


class Recording:
    """Records what it is told until `finish`. Its other methods may be called by any thread.

    Args:
        path: The file.
        sample: The share of requests, from above 0 to 1.
        max_bytes: The largest size of the file.

    Raises:
        SetupError: The folder of the file cannot be written.
    """

    def __init__(self, path: Path, sample: float, max_bytes: int) -> None:
        self.path = path
        self._sample = sample
        try:
            self._store = TraceStore(path, max_bytes)
        except OSError as error:
            raise SetupError(f"the trace {path} cannot be written: {error.strerror}") from error
        self._names: dict[int, str] = {}
        self._maker = EventMaker(time.monotonic(), self._names)
        self._inside: dict[tuple[str, int], deque[ElementHeard | SpanHeard]] = {}
        self._ran: dict[int, BatchHeard] = {}
        self._numbers = itertools.count(1)
        self._aside = Aside(self._keep, self._finish, name="headrace-trace")

    # What is called while requests run.

    def inside(self, node: str, instance: int, heard: ElementHeard | SpanHeard) -> None:
        """Note what has happened inside the batch that an instance runs."""
        if isinstance(heard, ElementHeard) and heard.thread not in self._names:
            self._names[heard.thread] = threading.current_thread().name
        found = self._inside.get((node, instance))
        if found is None:
            found = self._inside.setdefault((node, instance), deque(maxlen=_MOST_INSIDE))
        found.append(heard)

    def batch(self, record: BatchRecord) -> None:
        """Note a batch that has run, if any of its requests is in the sample."""
        inside = self._inside.pop((record.node, record.instance), ())
        requests = record.requests
        if self._sample < 1:
            requests = [one for one in requests if random.random() < self._sample]  # noqa: S311
            if not requests:
                return
        if record.thread not in self._names:
            self._names[record.thread] = threading.current_thread().name
        failed = len(record.errors) - record.errors.count(None)
        heard = BatchHeard(
            next(self._numbers),
            *(record.node, record.instance, record.thread, record.started, record.ended),
            *(len(record.errors), record.weight, failed, inside),
        )
        if len(self._ran) > MOST_PENDING:  # of requests whose owners had gone before they ran
            self._ran.clear()
        for one in requests:
            self._ran[id(one.request)] = heard
        self._aside.leave(heard)

    def request(
        self, node: str, request: Any, started: float, ended: float, error: BaseException | None
    ) -> None:
        """Note a request that has its outcome, if it is in the sample."""
        batch = self._ran.pop(id(request), None)
        if batch is not None and batch.node != node:
            batch = None
        if batch is None and self._sample < 1:
            chosen = error is not None and random.random() < self._sample  # noqa: S311
            if not chosen:  # it ran and is not in the sample, or it never ran
                return
        code = None if error is None else code_of(error)
        self._aside.leave(RequestHeard(node, started, ended, code, batch))

    # In the thread that writes.

    def _keep(self, heard: BatchHeard | RequestHeard) -> None:
        maker = self._maker
        made = maker.batch(heard) if isinstance(heard, BatchHeard) else maker.request(heard)
        try:
            for event in made:
                self._store.add(event)
        except OSError as error:
            self._fail(error)

    def _finish(self) -> None:
        about: dict[str, object] = {
            "headrace": headrace.__version__,
            "clock": "time.monotonic() since the trace began",
            "sample": self._sample,
        }
        try:
            self._store.finish(self._maker.head(about), TAIL)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> NoReturn:
        self._store.discard()
        _log.error("the trace %s ended: it cannot be written: %s", self.path, error)
        raise error

    def finish(self) -> None:
        """Write the file; it is whole when this returns.

        Raises:
            OSError: It could not be written; what was at the path is untouched.
        """
        self._aside.finish()
