"""The process of one `Process`: started, watched, and started again when it has died."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import time
import warnings
from collections import deque
from typing import TYPE_CHECKING, Any

from headrace._build.channel import END, Channel
from headrace._engine.blueprint import LOOK_S
from headrace._portable import error_text
from headrace._process import memory_file, spawn
from headrace._scheduling.calls import errand
from headrace.errors import InstanceLostError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._checked import Presence

_log = logging.getLogger("headrace.process")

_CODE = "import sys; sys.path[:] = {path!r}; from headrace.words._exchange import main; main({files}, {parent})"
_CLOSE_S = 10.0
"""Seconds that what is in the process has to close itself, before the process is killed."""

_FIRST_PAUSE_S = 0.1
_MINUTE_S = 60.0
_LENGTH = struct.Struct("<Q")


class Restarts:
    """How often a process may be started again, and after which pause.

    Args:
        limit: How often within a minute.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._deaths: deque[float] = deque()

    def pause_s(self, now: float) -> float | None:
        """Take note that it has died; give the seconds until the next start, None for no other.

        The first start within a minute comes at once, the second after 0.1 s, and each further one after
        twice the pause before.
        """
        deaths = self._deaths
        while deaths and now - deaths[0] >= _MINUTE_S:
            deaths.popleft()
        deaths.append(now)
        if len(deaths) > self._limit:
            return None
        return _FIRST_PAUSE_S * 2.0 ** (len(deaths) - 2) if len(deaths) > 1 else 0.0


class Child:
    """One process, from its start to its end.

    Attributes:
        channel: The way to it.
        process: Its `subprocess.Popen`.
        about: What it has reported of what was built there.
        ended: Set once it has ended, and all that follows from it is noted.
        status: With which status, see `subprocess.Popen.returncode`.
        reported: How many reports of it have arrived: messages that are no answers.
    """

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.reported = 0
        self._arrived = threading.Condition()
        self.status: int | None = None
        self.about: dict[str, Any] = {}
        self._reports, far_end = socket.socketpair()
        opened: list[int] = []
        try:
            opened.append(memory_file())
            opened += os.pipe()
            opened += os.pipe()
            file, taken, sink, source, answers = opened
            self._ends = taken, answers  # kept: so no write meets a broken pipe, and `end` is read
            self.channel = Channel(source, sink, file)
            files, path = (taken, answers, file, far_end.fileno()), [str(one) for one in sys.path]
            code = _CODE.format(path=path, files=files, parent=os.getpid())
            self.process = spawn(code, files)
        except BaseException:
            for one in opened:
                os.close(one)
            self._reports.close()
            raise
        finally:
            far_end.close()

    def wait(self, built: Callable[[Any], None]) -> int:
        """Wait for its end; let its log records and warnings arrive meanwhile.

        Args:
            built: Called with what it reports once X is built there, or could not be.

        Returns:
            The status with which it has ended.
        """
        waits = threading.Thread(target=self._end_reports, name="headrace-process-end", daemon=True)
        with contextlib.suppress(RuntimeError):  # no more threads: its own end of the socket tells
            waits.start()
        while self._read_report(built):
            pass
        if waits.ident is not None:
            waits.join()
        return self.process.wait()

    def _end_reports(self) -> None:
        """Once it has ended, let nobody wait for reports, though what it has started may still live."""
        self.process.wait()
        with contextlib.suppress(OSError):
            self._reports.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def end(self) -> None:
        """Let whoever waits for it see that it has ended, also where one that it has started lives on."""
        self.ended.set()
        with self._arrived:
            self._arrived.notify_all()
        os.write(self._ends[1], END)

    def close(self) -> None:
        """Give its descriptors back; nobody uses them any more."""
        self.channel.close()
        self._reports.close()
        for end in self._ends:
            os.close(end)

    def _read_report(self, built: Callable[[Any], None]) -> bool:
        """Take one report; False when there can be no more."""
        head = self._read(_LENGTH.size)
        content = self._read(*_LENGTH.unpack(head)) if head is not None else None
        if content is None:
            return False
        try:
            kind, what = pickle.loads(content)  # noqa: S301 - from our own process
            if kind == "built":
                built(what)
            elif kind == "log":
                _show(what)
            else:
                warnings.warn_explicit(*what)
        except Exception as error:  # noqa: BLE001 - a warning that is an error here, an unknown class
            _log.warning("a message of a process could not be shown: %s", error_text(error))
        with self._arrived:
            self.reported += 1
            self._arrived.notify_all()
        return True

    def wait_reported(self, count: int) -> None:
        """Wait until so many reports of it have arrived, or it has ended."""
        if self.reported < count:
            with self._arrived:
                self._arrived.wait_for(lambda: self.reported >= count or self.ended.is_set())

    def _read(self, size: int) -> bytes | None:
        got = b""
        with contextlib.suppress(OSError):
            while len(got) < size and (part := self._reports.recv(size - len(got))):
                got += part
        return got if len(got) == size else None


def _show(content: dict[str, Any]) -> None:
    """Let a log record of the process appear here."""
    record = logging.makeLogRecord(content)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


class Supervisor:
    """The thread that starts a process, sees it end, and starts the next one.

    Args:
        name: Of the thread.
        first: The first message to each new process.
        restarts: How often it is started again.
        presence: Shows while there is no process, and when there will be none any more.
        changed: Called when a process lives, or none is started any more.

    Attributes:
        current: The process in which X is built; None while there is none.
    """

    def __init__(
        self,
        name: str,
        first: dict[str, Any],
        restarts: Restarts,
        presence: Presence,
        changed: Callable[[], object],
    ) -> None:
        self._first = first
        self._restarts = restarts
        self._presence = presence
        self._notify = changed
        self._changed = threading.Condition()
        self.current: Child | None = None
        self._starting: Child | None = None
        self._given: Child | None = None
        self._closing = False
        self._built = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def lives(self) -> bool:
        """Whether there is a process in which X is built."""
        return self.current is not None

    @property
    def over(self) -> bool:
        """Whether no process is started any more."""
        return self._failure is not None or self._closing

    def start(self, cancelled: Callable[[], bool]) -> Child:
        """Start the first process, and wait until X is built there.

        Raises:
            SetupError: It could not be built, the process ended, or the build was given up.
        """
        try:
            errand(self._thread.start)
            with self._changed:
                while self.current is None and self._failure is None:
                    self._changed.wait(LOOK_S)
                    if cancelled():
                        self._failure = SetupError("the build was given up")
        except BaseException:
            self.kill()
            raise
        if self._failure is not None:
            self.close()
            raise self._failure
        return self.child()

    def child(self) -> Child:
        """Give the process that lives, once there is one; whoever gets it closes it in the end.

        Raises:
            InstanceLostError: None is started any more.
        """
        with self._changed:
            while self.current is None:
                if self.over:
                    why = self._failure or "it was closed"
                    what = f"its process has died, and no other is started: {why}"
                    raise InstanceLostError(what, hint="Pipeline.reload starts another.")
                self._changed.wait()
            self._given = self.current
            return self.current

    def close(self) -> None:
        """Let X be closed there, and the process end; one that does not is killed."""
        with self._changed:
            self._closing = True
            child, starting = self.current, self._starting
            self._changed.notify_all()
        if starting is not None:
            starting.kill()
        elif child is not None:
            child.channel.end()
            if not child.ended.wait(_CLOSE_S):
                child.kill()
        if self._thread.is_alive():
            self._thread.join()

    def kill(self) -> None:
        """End the process at once, whatever it does; none is started any more."""
        with self._changed:
            self._closing = True
            child = self.current or self._starting
            self._changed.notify_all()
        if child is not None:
            child.kill()

    # In its thread, at whose end the system ends the process, too.

    def _run(self) -> None:
        pause_s: float | None = 0.0
        while pause_s is not None:
            with self._changed:
                if self._changed.wait_for(lambda: self._closing, pause_s):
                    return
            child = None
            try:
                child = Child()
                why = self._live(child)
            except Exception as error:  # noqa: BLE001 - no process, no descriptors, no memory
                why = error
                if child is not None:
                    child.kill()
                    child.status = child.process.wait()
            pause_s = self._left(child, why)

    def _live(self, child: Child) -> Exception:
        """See a process from its start to its end; give why it has ended."""
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
        child.channel.send(self._first)
        child.status = child.wait(built)
        died = SetupError(f"the process ended {how_ended(child.status)}")
        return failure[0] if failure else died

    def _began(self, child: Child) -> None:
        """Take note that X is built in a process."""
        with self._changed:
            self._built = True
            self._starting, self.current = None, child
            self._changed.notify_all()
        self._presence.away.discard(self)
        self._presence.changed()
        self._notify()

    def _left(self, child: Child | None, why: Exception) -> float | None:
        """Take note that there is no process any more; give the pause until the next, None for no next."""
        pause_s = self._restarts.pause_s(time.monotonic()) if self._built else None
        with self._changed:
            self._starting = self.current = None
            if pause_s is None:
                self._failure = self._failure or why
            self._changed.notify_all()
            noted = self._built and not self._closing
        if noted:
            # Before the batch that ran there ends, so that its instance is not given another one.
            self._presence.away.add(self)
            if pause_s is None:
                self._presence.gone = True
            self._presence.changed()
            self._notify()
            then = "it is lost" if pause_s is None else f"another is started after {pause_s:g} s"
            _log.warning("%s: %s; %s", self._thread.name, error_text(why), then)
        if child is not None:
            child.end()
            with self._changed:
                if child is not self._given:
                    child.close()
        return pause_s


def how_ended(status: int | None) -> str:
    """Say how a process has ended: of which signal, or with which status."""
    if status is None or status >= 0:
        return f"with status {status}"
    try:
        return f"of signal {signal.Signals(-status).name}"
    except ValueError:
        return f"of signal {-status}"
