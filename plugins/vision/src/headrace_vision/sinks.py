"""What frames go to beside the loop: each sink has a thread and a bounded queue of its own."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace_vision.frames import Frame

__all__ = ["CallableSink", "Sink", "SinkThread", "SinkThreads", "as_sink"]

LAST_S = 60.0
"""Most seconds for which the end of the process waits for a sink that was closed and still writes."""


class Sink:
    """Base of everything that frames are written to. All methods run in the sink's own thread.

    Attributes:
        full: What a frame does when the queue is full: ``"wait"``, so that nothing is missing, or
            ``"drop"``, which drops the oldest, so that the sink holds nobody up. Dropped frames are counted.
        queue_size: Most frames that wait.
    """

    full: str = "wait"
    queue_size: int = 16

    @property
    def name(self) -> str:
        """How the sink is called in ``status()``."""
        return type(self).__name__

    def attach(self, status: Callable[[], dict[str, Any]]) -> None:
        """Take the ``status`` of the runner, for sinks that show it; called before `open`."""

    def open(self) -> None:
        """Begin; called before the first frame."""

    def write(self, frame: Frame) -> None:
        """Take one frame, in the order of its source.

        What it raises ends this sink alone.
        """
        raise NotImplementedError(f"{type(self).__name__} has no write(self, frame)")

    def source_ended(self, source: str) -> None:
        """Finish what belongs to a source: no frame of it follows."""

    def close(self) -> None:
        """Finish everything; called once, also after an error."""

    def status(self) -> dict[str, Any]:
        """Return more entries for ``status()``, for JSON."""
        return {}


class CallableSink(Sink):
    """Calls a function with each frame.

    Args:
        function: Gets a `headrace_vision.Frame`.
    """

    def __init__(self, function: Callable[[Frame], object]) -> None:
        self._function = function

    @property
    def name(self) -> str:
        """The name of the function."""
        return str(getattr(self._function, "__name__", type(self._function).__name__))

    def write(self, frame: Frame) -> None:
        """Call the function."""
        self._function(frame)


def as_sink(value: Any) -> Sink:
    """Return a sink for what was passed in ``sinks``.

    Raises:
        TypeError: It is neither a sink nor callable.
    """
    if isinstance(value, Sink):
        return value
    if callable(value) and not isinstance(value, type):
        return CallableSink(value)
    hint = f"; write {value.__name__}(...)" if isinstance(value, type) else ""
    raise TypeError(
        f"a sink is a headrace_vision.Sink or a function of a frame, not {value!r}{hint}"
    )


class SinkThread:
    """The thread and the queue of one sink.

    Args:
        sink: It is opened, called and closed in the thread.
    """

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self._queue: deque[Frame | str] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._error: str | None = None
        self._written = 0
        self._dropped = 0
        self._thread = threading.Thread(
            target=self._run, name=f"headrace-vision-sink-{sink.name}", daemon=True
        )
        self._thread.start()

    def put(self, frame: Frame) -> None:
        """Queue a frame; wait for room unless the sink drops, has failed, or is closed."""
        with self._changed:
            while len(self._queue) >= self.sink.queue_size and not self._is_over():
                oldest = next((one for one in self._queue if not isinstance(one, str)), None)
                if self.sink.full == "drop" and oldest is not None:
                    self._queue.remove(oldest)
                    self._dropped += 1
                    continue
                self._changed.wait()
            if self._is_over():
                self._dropped += 1
                return
            self._queue.append(frame)
            self._changed.notify_all()

    def source_ended(self, source: str) -> None:
        """Queue the end of a source; that finds room always."""
        with self._changed:
            if not self._is_over():
                self._queue.append(source)
                self._changed.notify_all()

    def _is_over(self) -> bool:
        return self._closing or self._error is not None

    def close(self) -> None:
        """Write what is queued, and then end; return at once."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; return whether it has ended."""
        self._thread.join(max(timeout_s, 0.0))
        return not self._thread.is_alive()

    def status(self) -> dict[str, Any]:
        """Return state, counts and the error as a dict that can be written as JSON."""
        with self._changed:
            state = "failed" if self._error else "open" if self._thread.is_alive() else "closed"
            return {
                "state": state,
                "written": self._written,
                "dropped": self._dropped,
                "waiting": len(self._queue),
                "error": self._error,
                **self.sink.status(),
            }

    def _run(self) -> None:
        try:
            self.sink.open()
            while True:
                with self._changed:
                    while not self._queue and not self._closing:
                        self._changed.wait()
                    if not self._queue:
                        break
                    item = self._queue.popleft()
                    self._changed.notify_all()
                if isinstance(item, str):
                    self.sink.source_ended(item)
                else:
                    self.sink.write(item)
                    self._written += 1
        except Exception as error:  # noqa: BLE001 - it ends this sink alone; status() says why
            self._fail(error)
        try:
            self.sink.close()
        except Exception as error:  # noqa: BLE001 - likewise
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self._error is None:
                self._error = f"{type(error).__name__}: {error}"
            self._dropped += sum(not isinstance(one, str) for one in self._queue)
            self._queue.clear()
            self._changed.notify_all()


class SinkThreads:
    """All sinks of a runner, each in a thread of its own.

    Args:
        sinks: They are opened at once.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._threads = [SinkThread(sink) for sink in sinks]

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return not self._threads

    def put(self, frame: Frame) -> None:
        """Queue a frame for each."""
        for one in self._threads:
            one.put(frame)

    def source_ended(self, source: str) -> None:
        """Queue the end of a source for each."""
        for one in self._threads:
            one.source_ended(source)

    def close(self, timeout_s: float) -> None:
        """Let each write what is queued and end; wait for them that many seconds in all.

        The process ends at most `LAST_S` later than one that still writes, so that its files get their end.
        """
        for one in self._threads:
            one.close()
        deadline = time.monotonic() + timeout_s
        for one in self._threads:
            if not one.join(deadline - time.monotonic()):
                atexit.register(one.join, LAST_S)

    def status(self) -> dict[str, Any]:
        """Return the status of each by its name; of equal names the later ones get a number."""
        found: dict[str, Any] = {}
        for one in self._threads:
            name, number = one.sink.name, 2
            while name in found:
                name, number = f"{one.sink.name}#{number}", number + 1
            found[name] = one.status()
        return found
