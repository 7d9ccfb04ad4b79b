"""What lives elsewhere for one container: started, watched, and started again when it has ended."""

from __future__ import annotations

import contextlib
import logging
import pickle
import socket
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from headrace.errors import InstanceLostError, SetupError
from headrace.isolation import error_text, run_in_pool
from headrace_process.asking import Answers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.isolation import Liveness
    from headrace_process.asking import Question
    from headrace_process.places import Place, Restarts

_log = logging.getLogger("headrace.process")

_CLOSE_S = 10.0
"""Seconds that X has for its ``close`` before its process is killed."""

_WAITED_S = 5.0
"""Requests wait for a start that comes within so many seconds, and are refused before a later one."""

_LOOK_S = 0.25
"""How often a build looks whether it was given up."""


class Child:
    """What was started once for a part elsewhere, from its start to its end.

    Args:
        place: Where it is started.
        functions: What answers its questions. See `headrace_process.asking`.

    Attributes:
        answers: Takes its questions.
        link: Carries batches there, and answers back.
        about: What has been reported of the X that was built.
        ended: Set once it has ended and its `Supervisor` has noted so everywhere.
        how: How it has ended, and a hint or None. See `headrace_process.places.Place.how_ended`.
        sent: How many batches were sent there.
        take_part: Gives the function that takes the parts of a request of the batch, by its number. None where nobody does.
        reported: How many of its reports (messages that are no answers) have arrived.
    """

    def __init__(
        self,
        place: Place,
        functions: Mapping[str, Callable[[Question], object]] | None = None,
    ) -> None:
        self.place = place
        self.ended = threading.Event()
        self.reported = self.sent = 0
        self.take_part: Callable[[int], Any] | None = None
        self._arrived = threading.Condition()
        self.how: tuple[str, str | None] = ("", None)
        self.about: dict[str, Any] = {}
        self.link, self._reports = place.start()
        self.answers = Answers(functions or {}, self._reports)

    def wait(self, built: Callable[[Any], None]) -> None:
        """Wait for the end. Show log records and warnings meanwhile.

        Args:
            built: Called with the description of X once it is built, or with the error of building it.
        """
        waits = threading.Thread(target=self._end_reports, name="headrace-process-end", daemon=True)
        # Where no thread can be started, `_read_report` sees the end only once all copies of the far end
        # of the socket are closed.
        with contextlib.suppress(RuntimeError):
            waits.start()
        with self._reports.makefile("rb") as reports:
            while self._read_report(reports, built):
                pass
        if waits.ident is not None:
            waits.join()
        self.note_end()

    def note_end(self) -> None:
        """Wait for the end, and note how it came."""
        self.place.wait()
        self.how = self.place.how_ended()

    def _end_reports(self) -> None:
        """Shut the socket down after the end.

        A process that was started there may live on and hold the far end: `_read_report` would wait for that.
        """
        self.place.wait()
        with contextlib.suppress(OSError):
            self._reports.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End it at once."""
        self.place.kill()

    def end(self) -> None:
        """Let all threads that wait for it see that it has ended."""
        self.ended.set()
        with self._arrived:
            self._arrived.notify_all()
        self.link.cut()

    def close(self) -> None:
        """Give back what is open; no thread uses it any more."""
        self.link.close()
        self._reports.close()
        self.place.close()

    def _read_report(self, reports: BinaryIO, built: Callable[[Any], None]) -> bool:
        """Read one report and act on it; False when no more can come."""
        try:
            kind, content = pickle.load(reports)  # noqa: S301 - from our own process
        except (EOFError, OSError, pickle.UnpicklingError):  # the last one may be truncated
            return False
        try:
            value = pickle.loads(content)  # noqa: S301 - its classes may be unknown here
            if kind == "built":
                built(value)
            elif kind == "log":
                _show(value)
            elif kind == "part":
                self._take_part(*value)
            elif kind == "ask":
                self.answers.take(*value)
            else:
                warnings.warn_explicit(*value)
        except Exception as error:  # noqa: BLE001 - a filter may raise the warning; classes may be unknown
            _log.warning("a message of a process could not be shown: %s", error_text(error))
        with self._arrived:
            self.reported += 1
            self._arrived.notify_all()
        return True

    def _take_part(self, number: int, part: Any) -> None:
        """Take a part of an answer. While it waits for its reader nothing else is read, so that X waits, too."""
        take = None if self.take_part is None else self.take_part(number)
        if take is not None:
            take(part)

    def wait_reported(self, count: int) -> None:
        """Wait until ``count`` reports have arrived, or the process has ended."""
        if self.reported < count:
            with self._arrived:
                self._arrived.wait_for(lambda: self.reported >= count or self.ended.is_set())


def _show(content: dict[str, Any]) -> None:
    """Log a record of the child process in this process."""
    record = logging.makeLogRecord(content)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


@dataclass(eq=False)
class Supervisor:
    """The thread that starts the child process, sees it end, and starts the next one.

    It closes every process that it has started: one that `child` gave as `child` gives the next, or in `close`,
    and one that nobody asked for as it ends.

    Args:
        name: The name of the thread.
        start_at: Makes the place of the next start.
        first: The first message to each new process.
        restarts: Says after which pause a process that has died is started again.
        liveness: Shows the scheduler whether the instance has a process now, or later.
        notify: Called when X is built in a new process, and when a process has ended.
        functions: What answers the questions of X. See `headrace_process.asking`.

    Attributes:
        current: The process in which X is built. None while there is none.
        pausing: Whether the next start is so far away that no request should wait for it.
    """

    name: str
    start_at: Callable[[], Place]
    first: dict[str, Any]
    restarts: Restarts
    liveness: Liveness
    notify: Callable[[], object]
    functions: Mapping[str, Callable[[Question], object]] = field(default_factory=dict)
    current: Child | None = None
    pausing: bool = False
    _starting: Child | None = None
    _closing: bool = False
    _built: bool = False
    _failure: Exception | None = None

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._given: list[Child] = []
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)

    @property
    def lives(self) -> bool:
        """Whether there is a process in which X is built."""
        return self.current is not None

    @property
    def over(self) -> bool:
        """Whether no process is started any more."""
        return self._failure is not None or self._closing

    def begin(self) -> None:
        """Start the first process."""
        run_in_pool(self._thread.start)

    def start(self, cancelled: Callable[[], bool]) -> Child:
        """Start the first process unless `begin` has, and wait until X is built there.

        Raises:
            SetupError: X could not be built, the process ended, or the build was given up.
        """
        try:
            if self._thread.ident is None:
                self.begin()
            with self._changed:
                while self.current is None and self._failure is None:
                    self._changed.wait(_LOOK_S)
                    if cancelled():
                        self._failure = SetupError("the build was given up")
            if self._failure is None:
                return self.child()
        except BaseException:
            self.kill()
            self.close()
            raise
        self.close()
        raise self._failure

    def child(self) -> Child:
        """Wait for a living process and give it. No thread uses the one given before any more.

        Raises:
            InstanceLostError: No process is started any more.
        """
        with self._changed:
            while self.current is None:
                if self.over:
                    why = self._failure or "it was closed"
                    problem = f"its process has died, and no other is started: {why}"
                    raise InstanceLostError(problem, hint="Build the pipeline again.")
                self._changed.wait()
            child = self.current
            if child not in self._given:
                self._given.append(child)
            while self._given[0] is not child:
                self._given.pop(0).close()
            return child

    def close(self) -> None:
        """Let the process close X and end; kill it when it does not end in time. No thread uses one any more."""
        with self._changed:
            self._closing = True
            child, starting = self.current, self._starting
            if child is not None:
                # Should the process die now, `_left` waits for this lock before it closes the descriptors, whose
                # numbers may belong to other files of the program from then on.
                child.link.end()
            self._changed.notify_all()
        if starting is not None:
            starting.kill()
        elif child is not None and not child.ended.wait(_CLOSE_S):
            child.kill()
        if self._thread.is_alive():
            self._thread.join()
        while self._given:
            self._given.pop().close()

    def kill(self) -> None:
        """End the process at once, whatever it does, and start no other."""
        with self._changed:
            self._closing = True
            child = self.current or self._starting
            self._changed.notify_all()
        if child is not None:
            child.kill()

    # What the supervising thread does. Linux kills the child process when the thread that started it ends.

    def _run(self) -> None:
        pause_s: float | None = 0.0
        while pause_s is not None:
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, pause_s):
                    return
            if self.pausing:
                self.pausing = False
                self.notify()
            child = None
            try:
                child = Child(self.start_at(), self.functions)
                why = self._live(child)
            except Exception as error:  # noqa: BLE001 - there may be no descriptors or no memory for a process
                why = error
                if child is not None:
                    child.kill()
                    child.note_end()
            pause_s = self._left(child, why)

    def _live(self, child: Child) -> Exception:
        """Watch a process from its start to its end. Return the reason of the end."""
        failure: list[Exception] = []

        def built(about: Any) -> None:
            if isinstance(about, Exception):
                failure.append(about)
            else:
                child.about = about
                self._began(child)

        with self._changed:
            self._starting = child
            if self._closing:
                child.kill()
        child.link.send(self.first)
        child.wait(built)
        died = SetupError(f"the process ended {child.how[0]}")
        return failure[0] if failure else died

    def _began(self, child: Child) -> None:
        """Make a process the current one: X is built in it."""
        with self._changed:
            self._built = True
            self._starting, self.current = None, child
            self._changed.notify_all()
        self.liveness.back(self)
        self.notify()

    def _left(self, child: Child | None, why: Exception) -> float | None:
        """Note that the process has ended; give the pause until the next, None when X was never built."""
        pause_s = self.restarts.pause_s(time.monotonic()) if self._built else None
        with self._changed:
            self._starting = self.current = None
            if pause_s is None:
                self._failure = self._failure or why
            self._changed.notify_all()
            noted = not self._closing
        if noted and pause_s is not None:
            # This comes before `child.end` below, which ends the batch that ran in the process: otherwise
            # the scheduler could give the instance another batch in between.
            self.pausing = pause_s > _WAITED_S
            self.liveness.away(self)
            self.notify()
            then = "%s: %s; another is started after %g s"
            _log.warning(then, self.name, error_text(why), pause_s)
        if child is not None:
            child.end()
            with self._changed:
                if child not in self._given:
                    child.close()
        return pause_s
