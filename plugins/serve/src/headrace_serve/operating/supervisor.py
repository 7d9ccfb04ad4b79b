"""Decides when worker processes are started, restarted and ended, only from events and a clock."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_formats import back_off
from headrace_serve.operating.init_process import HANGUP
from headrace_serve.operating.logs import say
from headrace_serve.operating.running import INTERRUPTED
from headrace_serve.operating.shared_changes import SharedChanges

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Supervisor", "Worker"]

_LOOKS = 5
"""How often the supervisor looks for an answer within the time that a process has for it."""

_HEALTHY_S = 1.0
"""A process that has served for so long was healthy. If it dies later, the pauses begin again with the shortest."""


@dataclass
class Worker:
    """One worker process.

    Attributes:
        number: The number of the worker, from 1.
        process: The `subprocess.Popen` of the process. None while there is none.
        ready: Whether its models take requests.
        reload: Whether a SIGHUP came while the process was starting, and must still be sent to it.
        failures: How often in a row the process died before it had served for `_HEALTHY_S`.
        since: The time at which it was ready, by the supervisor's clock.
        looks: How often the supervisor has looked since it asked the process for an answer that has not come.
        due: The time at which the process is started again. None: no start is planned.
    """

    number: int
    process: Any = None
    ready: bool = False
    reload: bool = False
    failures: int = 0
    since: float = 0.0
    looks: int = 0
    due: float | None = None


class Supervisor:
    """Keeps worker processes running until a signal ends it.

    Other threads put events into a queue: ``("ready", number)``, ``("exit", number, status)``,
    ``("signal", number)``, ``("pong", number)``, the answer to a ``ping``, and ``("message", number, message)``, a
    message for `SharedChanges`.

    A process that serves and gives no answer is killed, and started again as one that has died. What counts is how often
    the supervisor looks, and not the time: if it was stopped itself, or the machine was, no process is late for that.

    Attributes:
        served: Whether all processes have been ready, so that one that is started from then on is started again.

    Args:
        count: The number of processes.
        start: Starts a process by its number. Its events are put into ``events``.
        all_ready: Called once, when all processes are ready for the first time.
        end_s: Seconds for the processes to end, before they are killed.
        answer_s: Seconds for a process to answer, before it is killed. None: processes are not asked.
        events: The queue of events.
        clock: Gives a time in seconds that never goes back.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[int], Any],
        *,
        all_ready: Callable[[], None],
        end_s: float,
        answer_s: float | None = None,
        events: Any,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.workers = {number: Worker(number) for number in range(1, count + 1)}
        self._start = start
        self._all_ready = all_ready
        self._end_s = end_s
        self._answer_s = answer_s
        self._look_due: float | None = None
        self._events = events
        self._clock = clock
        self.served = False
        self._ends: float | None = None
        self._status = 0
        self._changes = SharedChanges(self.send)

    def run(self) -> int:
        """Run until all processes have ended; give the exit status."""
        for worker in self.workers.values():
            self._begin(worker)
        while self._ends is None or any(each.process is not None for each in self.workers.values()):
            try:
                kind, *about = self._events.get(timeout=self._until_due())
            except queue.Empty:
                self._on_time()
                continue
            getattr(self, f"_on_{kind}")(*about)
        return self._status

    def kill(self) -> None:
        """Kill all processes."""
        for worker in self.workers.values():
            if worker.process is not None:
                worker.process.kill()

    def _begin(self, worker: Worker) -> None:
        worker.due = None
        worker.ready = worker.reload = False
        worker.looks = 0
        worker.process = self._start(worker.number)

    def _until_due(self) -> float | None:
        times = [worker.due for worker in self.workers.values() if worker.due is not None]
        if self._look_due is not None:
            times.append(self._look_due)
        if self._ends is not None:
            times = [self._ends]
        return max(0.0, min(times) - self._clock()) if times else None

    def _on_time(self) -> None:
        now = self._clock()
        if self._ends is not None:
            if now >= self._ends:
                self.kill()
                self._ends = now + self._end_s
            return
        for worker in self.workers.values():
            if worker.due is not None and worker.due <= now:
                self._begin(worker)
        if self._look_due is not None and self._look_due <= now:
            self._look(now)

    def _look(self, now: float) -> None:
        """Ask the processes that serve for an answer, and kill those that have given none for too long."""
        answer_s: Any = self._answer_s
        every_s = answer_s / _LOOKS
        was_away = now > self._look_due + every_s
        self._look_due = now + every_s
        if was_away:  # the answers may be on their way
            return
        for number, worker in self.workers.items():
            if not worker.ready or worker.process is None:
                continue
            if not worker.looks:
                self.send(number, {"ping": True})
            if worker.looks == _LOOKS:
                say(f"worker {number} has answered nothing for {answer_s:g} s and is killed")
                worker.process.kill()
            worker.looks += 1

    def _on_pong(self, number: int) -> None:
        self.workers[number].looks = 0

    def _on_ready(self, number: int) -> None:
        worker = self.workers[number]
        worker.ready, worker.since = True, self._clock()
        if worker.reload and worker.process is not None and HANGUP is not None:
            worker.reload = False
            worker.process.send_signal(HANGUP)
        if not self.served and all(each.ready for each in self.workers.values()):
            self.served = True
            self._all_ready()
            if self._answer_s is not None:
                self._look_due = self._clock()

    def _on_message(self, number: int, message: Any) -> None:
        self._changes.received(number, message)

    def send(self, number: int, message: Any) -> None:
        """Send a line to a process; if the process has ended the line is lost, and its ``exit`` event follows."""
        process = self.workers[number].process
        with contextlib.suppress(BrokenPipeError, ValueError):  # ValueError: it is closed already
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()

    def _on_exit(self, number: int, status: int) -> None:
        self._changes.left(number)
        worker = self.workers[number]
        worker.process = None
        ready, worker.ready = worker.ready, False
        if self._ends is not None:
            if ready and status != 0:
                say(f"worker {number} ended with {status}")
                self._status = self._status or 1
            return
        if not self.served:
            say(f"worker {number} ended with {status} before all had started")
            self._status = status if status > 0 else 1
            self._finish()
            return
        now = self._clock()
        if ready and now - worker.since >= _HEALTHY_S:
            worker.failures = 0
        pause_s = back_off(worker.failures)
        worker.failures += 1
        worker.due = now + pause_s
        say(f"worker {number} ended with {status}; it is started again in {pause_s:g} s")

    def _on_signal(self, number: int) -> None:
        if number != HANGUP:
            say("draining")
            self._status = INTERRUPTED if number == signal.SIGINT else 0
            self._finish()
            return
        self._changes.reloaded()
        for worker in self.workers.values():
            if worker.ready and worker.process is not None:
                worker.process.send_signal(number)
            else:
                worker.reload = True

    def _finish(self) -> None:
        """Ask all processes to end, and restart none."""
        self._ends = self._clock() + self._end_s
        for worker in self.workers.values():
            worker.due = None
            if worker.process is not None:
                worker.process.terminate()
