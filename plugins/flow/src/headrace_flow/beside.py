"""A backend that runs beside another one, in a thread of its own, and is compared with it: for `Shadow`."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.words import run_child
from headrace_flow.comparing import IncomparableError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    import headrace
    from headrace.keys import Request

__all__ = ["Beside", "Counts", "Job"]


class Job(NamedTuple):
    """A copy of a request, and of what the backend that counts has answered."""

    request: Request
    answer: Request


class Counts:
    """What became of the requests that B was to run, of all instances."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        kinds = ("compared", "differences", "failed", "uncompared", "dropped")
        self._counts = dict.fromkeys(kinds, 0)

    def count(self, *kinds: str) -> None:
        """Count a request."""
        with self._lock:
            for kind in kinds:
                self._counts[kind] += 1

    def statistics(self) -> dict[str, int]:
        """Return the counts by name."""
        with self._lock:
            return {**self._counts}


class Beside:
    """Runs a backend on copies of requests, as many at a time as it takes.

    Args:
        child: The backend.
        same: Compares the answer that counts with that of the backend.
        counts: Counts what becomes of the requests.
        logger: Is told of differences.
    """

    def __init__(
        self,
        child: headrace.Backend,
        same: Callable[[Any, Any], bool],
        counts: Counts,
        logger: logging.Logger,
    ) -> None:
        self._child, self._same, self._counts, self._logger = child, same, counts, logger
        self._jobs: deque[Job] = deque()
        self._changed, self._closed = threading.Condition(), False
        self._thread: threading.Thread | None = None

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Let a request wait; the first one starts the thread."""
        with self._changed:
            self._jobs.append(job)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._work, name="headrace-shadow", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _work(self) -> None:
        while jobs := self._taken():
            try:
                self._run(jobs)
            except Exception:  # the thread serves the next
                self._logger.exception("Shadow failed on %d requests", len(jobs))

    def _taken(self) -> list[Job]:
        """Return what the backend takes at a time; nothing once it is closed."""
        jobs: list[Job] = []
        weight, most = 0, self._child.max
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            while self._jobs and not self._closed:
                weight += self._jobs[0].request.get("request_size", 1)
                if jobs and most is not None and weight > most:
                    break
                jobs.append(self._jobs.popleft())
        return jobs

    def _run(self, jobs: list[Job]) -> None:
        batch = [job.request for job in jobs]
        outcomes: list[Exception | None] = [None] * len(batch)
        run_child(self._child, batch, range(len(batch)), outcomes, pad=True, apart=True)
        for (request, answer), error in zip(jobs, outcomes, strict=True):
            about = request.get("request_id", "without request_id")
            if error is not None:
                self._counts.count("failed")
                self._logger.warning("request %s: B of Shadow failed: %s", about, error)
                continue
            try:
                same = "result" in request and self._same(answer["result"], request["result"])
            except IncomparableError:
                self._counts.count("uncompared")
                continue
            self._counts.count("compared", *(() if same else ("differences",)))
            if not same:
                self._logger.warning("request %s: A and B of Shadow differ", about)

    def close(self) -> None:
        """Drop what waits, and wait for the batch that runs."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()
