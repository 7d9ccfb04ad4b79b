"""The pipelines that the server builds, as models call each other: these calls count in the statistics of the protocol too."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.keys import REQUEST_SIZE
from headrace_models import Models
from headrace_serve.monitoring.counters import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace import Pipeline

__all__ = ["CalledModels"]


class CalledModels(Models):
    """Models that count the requests of those who lease them: ensembles, models of Python, scripts."""

    def __init__(self, *args: Any, **how: Any) -> None:
        self._called: Any = weakref.WeakKeyDictionary()
        super().__init__(*args, **how)

    @contextmanager
    def lease(
        self, name: str, *, key: str | bytes | None = None, timeout: float | None = None
    ) -> Iterator[Any]:
        """Lease a pipeline that counts what it is asked; see `headrace_models.Models.lease`."""
        with super().lease(name, key=key, timeout=timeout) as pipe:
            yield self._of(pipe)

    def counts_of(self, pipe: Pipeline) -> Counts:
        """Return the counts of the calls of a pipeline by other models."""
        counts: Counts = self._of(pipe).counts
        return counts

    def _of(self, pipe: Pipeline) -> Any:
        called = self._called.get(pipe)
        if called is None:
            fresh = _Called(pipe)
            if (original := getattr(pipe, "original", None)) is not None:  # in an exchange
                fresh.counts = self._of(original).counts
            called = self._called.setdefault(pipe, fresh)
        return called


class _Called:
    """A pipeline that counts what is submitted to it. It holds the pipeline no longer than a lease does."""

    def __init__(self, pipe: Pipeline) -> None:
        self._pipe, self._lock = weakref.ref(pipe), threading.Lock()
        self.counts = Counts()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe(), name)

    def submit(self, request: dict[str, Any], **how: Any) -> Any:
        """Submit a request; see `headrace.Pipeline.submit`."""
        pipe: Any = self._pipe()
        started, rows = time.perf_counter_ns(), int(request.get(REQUEST_SIZE, 1))
        running = pipe.submit(request, **how)
        running.add_done_callback(partial(self._note, started, rows))
        return running

    def _note(self, started: int, rows: int, done: Any) -> None:
        elapsed_ns = time.perf_counter_ns() - started
        with self._lock:  # requests end in any threads
            if done.cancelled() or done.exception() is not None:
                self.counts.note_failed(elapsed_ns)
            else:
                self.counts.note(elapsed_ns, rows, 1)
