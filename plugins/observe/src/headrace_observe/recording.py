"""One recording of a trace: what threads of a pipeline note, and the thread that writes it."""

from __future__ import annotations

import itertools
import logging
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import headrace
from headrace.errors import SetupError, code_of
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

_MOST_PENDING = 200_000
"""So many batches and requests wait in memory for the thread that writes; then the oldest go."""

_MOST_INSIDE = 10_000
"""So many elements are kept of one batch."""

_GATHER_S = 0.05
"""How long the thread that writes lets things gather once it has been woken."""


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
        self._pending: deque[BatchHeard | RequestHeard] = deque(maxlen=_MOST_PENDING)
        self._noted = 0
        self._wake = threading.Event()
        self._idle = False
        self._ends = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._write, name="headrace-trace", daemon=True)
        self._thread.start()

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
        if len(self._ran) > _MOST_PENDING:  # of requests whose owners had gone before they ran
            self._ran.clear()
        for one in requests:
            self._ran[id(one.request)] = heard
        self._note(heard)

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
        self._note(RequestHeard(node, started, ended, code, batch))

    def _note(self, heard: BatchHeard | RequestHeard) -> None:
        self._pending.append(heard)
        self._noted += 1
        if self._idle:
            self._idle = False
            self._wake.set()

    # The thread that writes.

    def _write(self) -> None:
        try:
            while not self._ends.is_set():
                self._idle = True
                if not self._pending:
                    self._wake.wait()
                self._wake.clear()
                self._ends.wait(_GATHER_S)
                self._drain()
            self._drain()
            about: dict[str, object] = {
                "headrace": headrace.__version__,
                "clock": "time.monotonic() since the trace began",
                "sample": self._sample,
            }
            self._store.finish(self._maker.head(about), TAIL)
        except OSError as error:
            self._error = error
            self._store.discard()
            _log.error("the trace %s ended: it cannot be written: %s", self.path, error)

    def _drain(self) -> None:
        maker, add = self._maker, self._store.add
        for _ in range(len(self._pending)):
            try:
                heard = self._pending.popleft()
            except IndexError:  # pushed out by newer ones
                break
            made = maker.batch(heard) if isinstance(heard, BatchHeard) else maker.request(heard)
            for event in made:
                add(event)

    def finish(self) -> None:
        """Write the file; it is whole when this returns.

        Raises:
            OSError: It could not be written; what was at the path is untouched.
        """
        self._ends.set()
        self._wake.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
