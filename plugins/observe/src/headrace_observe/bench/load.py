"""Loads on a pipeline: closed loops, whose clients wait for each answer, and open loops, with given arrival times."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_observe.bench.notes import Notes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = ["CLOSED_CLOCK", "MOST_CLIENTS", "OPEN_CLOCK", "ClosedLoop", "OpenLoop", "client", "send"]

CLOSED_CLOCK = (
    "from the call of pipe(request) to its return, in the client's thread; each client sends its next "
    "request when it has the answer, so no latency includes time in which nothing could be sent"
)
OPEN_CLOCK = (
    "from the intended arrival of a request to its answer, even if it was sent late; "
    "requests arrive whether or not earlier ones are answered"
)


def client(
    call: Callable[[dict[str, Any]], object],
    requests: Iterable[dict[str, Any]],
    notes: Notes,
    goes_on: Callable[[], bool],
    clock: Callable[[], float],
) -> None:
    """Send one request after the other and note how each ended.

    Args:
        call: Sends a request and returns when it is answered.
        requests: The requests. The time to make one is no part of its latency.
        notes: Gets the end of each request.
        goes_on: Asked before each request. False ends the client.
        clock: Gives the time in seconds.
    """
    for request in requests:
        if not goes_on():
            return
        started = clock()
        try:
            call(request)
        except Exception as error:  # noqa: BLE001 - a failed request is a figure
            notes.failed(clock(), error)
        else:
            ended = clock()
            notes.ok(ended, ended - started)


def send(
    submit: Callable[[dict[str, Any]], Future[Any]],
    requests: Iterator[dict[str, Any]],
    arrivals: Iterable[float],
    notes: Notes,
    pause: Callable[[float], bool],
    clock: Callable[[], float],
) -> int:
    """Send each request at its arrival time. Its latency counts from that time, even if it was sent later.

    Args:
        submit: Sends a request. It may wait while the queue is full. That time is part of the latency.
        requests: The requests, as many as there are arrivals.
        arrivals: The arrival times in seconds from the call of this function, ascending.
        notes: Gets the end of each request.
        pause: Waits so many seconds. If it returns True the sending ends.
        clock: Gives the time in seconds.

    Returns:
        The number of requests that were sent.
    """
    began, sent = clock(), 0
    for offset in arrivals:
        due = began + offset
        if pause(max(0.0, due - clock())):
            break
        sent += 1
        try:
            future = submit(next(requests))
        except Exception as error:  # noqa: BLE001 - a refused request is a figure
            notes.failed(clock(), error)
        else:
            future.add_done_callback(partial(_ended, due, notes, clock))
    return sent


def _ended(due: float, notes: Notes, clock: Callable[[], float], future: Future[Any]) -> None:
    now = clock()
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    if error is None:
        notes.ok(now, now - due)
    else:
        notes.failed(now, error)


MOST_CLIENTS = 10_000
"""The most clients of a closed loop, each of which is a thread."""


class ClosedLoop:
    """``clients`` threads, each of which sends its next request when it has its answer.

    Args:
        call: Sends a request and returns when it is answered.
        samples: The requests, which are sent in turn. Each is copied.
        clients: The number of threads.
        total: The number of requests after which the loop ends. None: it goes on until `stop`.
        clock: Gives the time in seconds.
    """

    by_rate = True

    def __init__(
        self,
        call: Callable[[dict[str, Any]], object],
        samples: Sequence[dict[str, Any]],
        clients: int,
        *,
        total: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.about: dict[str, Any] = {"kind": "closed", "clients": clients}
        self.clock_covers = CLOSED_CLOCK
        self.notes = [Notes() for _ in range(clients)]
        self._running = True
        self._turns = itertools.count()
        self._total = total
        self._threads = [
            threading.Thread(
                target=client,
                args=(call, _copies(samples, k), notes, self._goes_on, clock),
                name=f"headrace-bench-{k}",
                daemon=True,
            )
            for k, notes in enumerate(self.notes)
        ]

    def _goes_on(self) -> bool:
        return self._running and (self._total is None or next(self._turns) < self._total)

    def run(self) -> None:
        """Send ``total`` requests, and wait until all clients have ended."""
        try:
            self.start()
            self.join()
        finally:
            self.stop()

    def start(self) -> None:
        """Let the clients begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all clients from sending."""
        self._running = False

    @property
    def ended(self) -> bool:
        """Whether no client sends any more."""
        return not any(thread.is_alive() for thread in self._threads)

    def join(self, seconds: float | None = None) -> None:
        """Wait for all clients, at most ``seconds``; None: without a limit."""
        until = None if seconds is None else time.monotonic() + seconds
        for thread in self._threads:
            thread.join(None if until is None else max(0.0, until - time.monotonic()))


class OpenLoop:
    """One thread that sends each request at its arrival time.

    Args:
        submit: Sends a request and gives its future.
        samples: The requests, which are sent in turn. Each is copied.
        arrivals: The arrival times, in seconds from the start.
        about: The description of the load in the figures, as ``{"kind": "open", "rate": 200}``.
        clock: Gives the time in seconds.
    """

    by_rate = False

    def __init__(
        self,
        submit: Callable[[dict[str, Any]], Future[Any]],
        samples: Sequence[dict[str, Any]],
        arrivals: Iterable[float],
        about: dict[str, Any],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.about = about
        self.clock_covers = OPEN_CLOCK
        self.notes = [Notes()]
        stopped = threading.Event()
        self._stopped = stopped

        def pause(seconds: float) -> bool:
            return stopped.wait(seconds) if seconds > 0 else stopped.is_set()

        self._sent: int | None = None  # None until the last request is sent
        self._work = (submit, _copies(samples, 0), arrivals, self.notes[0], pause, clock)
        self._thread = threading.Thread(
            target=self._send, name="headrace-bench-arrivals", daemon=True
        )

    def _send(self) -> None:
        self._sent = send(*self._work)

    def start(self) -> None:
        """Let requests arrive."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the arrivals."""
        self._stopped.set()

    @property
    def ended(self) -> bool:
        """Whether all requests were sent and are answered."""
        return self._sent is not None and self.notes[0].count >= self._sent

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread that sends."""
        self._thread.join(seconds)


def _copies(samples: Sequence[dict[str, Any]], first: int) -> Iterator[dict[str, Any]]:
    """Return copies of the samples in turn, without end, from number ``first`` on."""
    start = first % len(samples)
    for sample in itertools.cycle([*samples[start:], *samples[:start]]):
        yield dict(sample)
