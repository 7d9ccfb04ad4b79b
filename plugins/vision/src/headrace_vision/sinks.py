"""What frames go to beside the loop: each sink has a thread and a bounded queue of its own."""

from __future__ import annotations

import itertools
import logging
import math
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_formats import back_off
from headrace_vision.clock import Clock
from headrace_vision.spool import SpoolFolder, bytes_of, read_frame, without_image

if TYPE_CHECKING:
    from headrace_vision.copying import Packets
    from headrace_vision.frames import Frame

__all__ = ["Sink", "SinkThread", "SpoolingSink"]

SPOOL_BYTES = 64 * 2**20
"""Most bytes that are kept for a sink that fails, unless it says another number."""

LEEWAY_S = 0.5
"""Seconds for giving up, when `close_s` is over."""

CLOSE_S = 5.0
"""Most seconds for which closing waits for what is kept, unless the sink says another number."""

_LOG = logging.getLogger("headrace.vision")


class Sink:
    """Base of everything that frames are written to. All methods run in the sink's own thread.

    A method that raises is called again, with the same frame, after 0.5 s, then after twice that, up to 30 s or `tick_s`, until it
    raises nothing. Frames that come meanwhile are kept, and written in their order. A frame that fails `attempts` times, with
    another error than OSError, while the next one can be written, is lost, so that it does not hold up the others.

    Attributes:
        full: What a frame does when the queue is full: ``"wait"``, so that nothing is missing. ``"drop"``, which drops the
            oldest, so that the sink holds nobody up, and counts it, or ``"keep"``, which keeps it as while the sink fails.
        queue_size: Most frames that wait while the sink works.
        needs_image: Whether frames are written with their images. Without them, more frames are kept.
        attempts: How often a frame that fails is tried, before the next one is tried in its place.
        spool_bytes: Most bytes of frames that are kept while the sink fails. Beyond that the oldest is lost, and counted.
            The newest frame is kept whatever its size.
        spool: The folder in which they are kept, and from where the next run of the program writes them. None for the memory.
            Frames with events are there before they are written, and so is each frame where `full` is ``"keep"``.
        close_s: Most seconds for which closing tries to write what is kept.
        model: The model whose results it gets: of a source with several it gets ``frame.models[model]``, of one without it
            nothing. None for all.
        needs_model: Whether it has no place for several models of a source, so that ``model`` says one.
        copies_packets: Whether it writes what `packets_of` gets, as it came. A source with privacy masks has no such sink.
        missing: How many frames that `write` took are in no file after all, because it failed. They do not count as written.
        tick_s: Seconds between two calls of `tick`, which comes also while no frame does. None for no calls.
        runner_clock, known_as, runner_names: The seconds of the machine, its name and those of all sinks, which the runner sets.
    """

    full: str = "wait"
    queue_size: int = 16
    needs_image: bool = True
    attempts: int = 3
    spool_bytes: int = SPOOL_BYTES
    spool: str | os.PathLike[str] | None = None
    close_s: float = CLOSE_S
    model: str | None = None
    needs_model: bool = False
    copies_packets: bool = False
    missing: int = 0
    tick_s: float | None = None
    runner_clock = Clock()
    known_as: str | None = None
    runner_names: Collection[str] = ()

    @property
    def name(self) -> str:
        """How the sink is called in ``status()``."""
        return type(self).__name__

    def attach(self, status: Callable[[], dict[str, Any]]) -> None:
        """Take the ``status`` of the runner, for sinks that show it; called before `open`."""

    def open(self) -> None:
        """Begin; called before the first frame."""

    def wants(self, frame: Frame) -> bool:
        """Return whether a frame is to be written; called by whoever delivers it."""
        return True

    def reduced(self, frame: Frame) -> Frame:
        """Return what is queued of a frame; called by whoever delivers it."""
        return frame if self.needs_image else without_image(frame)

    def write(self, frame: Frame) -> None:
        """Take one frame, in the order of its source.

        What it raises is logged, and the frame is written again later.
        """
        raise NotImplementedError(f"{type(self).__name__} has no write(self, frame)")

    def tick(self) -> None:
        """Do what is due by `runner_clock`, though no frame comes. What it raises is handled as of `write`."""

    def packets_of(self, source: str) -> Packets | None:
        """Return what gets the packets of a source as they are read, None for nothing. Called before the first frame.

        It is not called for a source with privacy masks.
        """
        return None

    def source_lost(self, source: str, error: str) -> None:
        """Note that a live source is lost, and why. It is tried again. Frames that were read before may follow."""

    def source_found(self, source: str) -> None:
        """Note that a source that was lost gives frames again."""

    def source_ended(self, source: str) -> None:
        """Finish what belongs to a source: no frame of it follows."""

    def close(self) -> None:
        """Finish everything; called once, and again within `close_s` if it raises."""

    def give_up(self) -> int:
        """Finish what can be finished; called last where the sink fails to the end. Return how many written frames are lost."""
        return 0

    def status(self) -> dict[str, Any]:
        """Return more entries for ``status()``, for JSON."""
        return {}


@dataclass(eq=False, repr=False, kw_only=True)
class SpoolingSink(Sink):
    """A sink whose arguments say what is kept while it fails. See `Sink`.

    Raises:
        ValueError: A number is negative.
    """

    spool_bytes: int = SPOOL_BYTES
    spool: str | os.PathLike[str] | None = None
    close_s: float = CLOSE_S

    def __post_init__(self) -> None:
        for name in ("spool_bytes", "close_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is at least 0, not {getattr(self, name)!r}")
        if self.spool is not None and not os.fspath(self.spool):
            raise ValueError("spool is a folder, not an empty text")


@dataclass(eq=False)
class _Entry:
    """What waits for a sink: a frame, in memory or in a file or in both, or a method and its arguments, about a source."""

    item: Frame | tuple[str, ...] | None
    size_bytes: int
    number: int = 0
    path: Path | None = None
    is_exact: bool = True
    counted: str = "lost"
    """As what it counts where it is removed while it is written, until that is done."""
    is_removed: bool = False

    @property
    def is_frame(self) -> bool:
        return not isinstance(self.item, tuple)


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error of a user, whose text raises another one
        return type(error).__name__


class SinkThread:
    """The thread and the queue of one sink. While the sink fails, the queue is its spool.

    Args:
        name: Its name, in ``status()`` and logs.
        sink: It is opened, called and closed in the thread.
        clock: The time that passes between attempts.

    Raises:
        OSError: The folder of the spool cannot be made.
    """

    def __init__(self, name: str, sink: Sink, clock: Clock) -> None:
        self.name = name
        self.sink = sink
        self._clock = sink.runner_clock = clock
        sink.known_as = name
        self._queue: deque[_Entry] = deque()
        self._frames = self._bytes = 0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._never = threading.Event()
        self._woken = threading.Event()
        self._tick_at_s = -math.inf
        self._close_at_s = 0.0
        self._state = "open"
        self._error: str | None = None
        self._attempts = 0
        self._due_s = 0.0
        self._counts = dict.fromkeys(("written", "dropped", "lost"), 0)
        self._lost_before = 0
        self._is_refusing = self._is_unsaved = False
        self._folder = None if sink.spool is None else SpoolFolder(sink.spool)
        for path in self._folder.found if self._folder else ():
            self._add(_Entry(None, path.stat().st_size, path=path))
        self._trim()
        self._numbers = itertools.count(self._folder.next_number if self._folder else 0)
        self._thread = threading.Thread(
            target=self._run_to_the_end, name=f"headrace-vision-sink-{self.name}", daemon=True
        )

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    # What delivers frames calls these.

    def put(self, frame: Frame) -> None:
        """Queue a frame; wait for room, unless the sink drops or keeps it, fails, or is closed."""
        try:
            if not self.sink.wants(frame):
                return
            frame = self.sink.reduced(frame)
            entry = _Entry(frame, bytes_of(frame))
        except Exception as error:  # noqa: BLE001 - of this frame and this sink, others go on
            self._refuse(error)
            return
        with self._changed:
            while not self._has_room():
                if self.sink.full == "drop":
                    self._counts["dropped"] += 1
                    oldest = next(queued for queued in self._queue if queued.is_frame)
                    oldest.counted = "dropped"
                    self._remove(oldest)
                else:
                    self._changed.wait()
            if self._closing.is_set():
                self._counts["dropped"] += 1
                return
            self._is_refusing = False
            entry.number = next(self._numbers)
            # What is told of an event is on the disk before it is sent.
            is_event = self.sink.full == "keep" or bool(frame.request.get("events"))
            saves = self._folder is not None and (self._attempts > 0 or is_event)
            if not saves:
                self._append(entry)
        if saves:  # not under the lock: the disk may be slow
            self._save(entry)
            with self._changed:
                self._append(entry)

    def _refuse(self, error: Exception) -> None:
        """Lose a frame that cannot be queued. Log the first of those in a row."""
        with self._changed:
            self._counts["lost"] += 1
            is_first, self._is_refusing = not self._is_refusing, True
        if is_first:
            _LOG.warning("sink %s: a frame cannot be queued: lost", self.name, exc_info=error)

    def tell(self, method: str, source: str, *given: str) -> None:
        """Queue what became of a source; that finds room always. Of the same kind only the last one waits."""
        with self._changed:
            if not self._closing.is_set():
                for waiting in [*self._queue]:
                    if isinstance(waiting.item, tuple) and waiting.item[:2] == (method, source):
                        self._remove(waiting)
                self._append(_Entry((method, source, *given), 0))

    def close(self) -> None:
        """Write what is queued, and then end; return at once."""
        with self._changed:
            if not self._closing.is_set():
                self._close_at_s = self._clock.now() + self.sink.close_s
                self._closing.set()
            self._woken.set()
            self._changed.notify_all()

    def join(self, timeout_s: float, last_s: float = 0.0) -> bool:
        """Wait for the end of the thread, longer where it merely finishes its files; return whether it has ended."""
        self._thread.join(max(timeout_s, 0.0))
        if self._state == "closed":
            self._thread.join(last_s)
        return not self._thread.is_alive()

    def longest_close_s(self, timeout_s: float) -> float:
        """Return for how many seconds closing waits: `close_s`, and ``timeout_s`` at least while the sink works."""
        return max(self.sink.close_s + LEEWAY_S, 0.0 if self._attempts else timeout_s)

    def status(self) -> dict[str, Any]:
        """Return state, counts and the error as a dict that can be written as JSON."""
        with self._changed:
            is_failing = self._attempts and self._state == "open"
            return {
                "state": "failed" if self._attempts else self._state,
                **self._counts,
                "written": self._counts["written"] - self.sink.missing,
                "waiting": self._frames,
                "waiting_bytes": self._bytes,
                "attempts": self._attempts,
                "retry_in_s": max(self._due_s - self._clock.now(), 0.0) if is_failing else None,
                "error": self._error,
                **self.sink.status(),
            }

    # The queue; all but `_save` are called with the lock held.

    @property
    def _keeps(self) -> bool:
        """Whether the bound is that of the spool, and not the size of the queue."""
        return bool(self._attempts) or self.sink.full == "keep"

    def _has_room(self) -> bool:
        size = max(self.sink.queue_size, 1)
        return self._keeps or self._closing.is_set() or self._frames < size

    def _add(self, entry: _Entry) -> None:
        self._queue.append(entry)
        self._frames += entry.is_frame
        self._bytes += entry.size_bytes

    def _append(self, entry: _Entry) -> None:
        self._add(entry)
        if self._keeps:
            self._trim()
        if self._state == "closed":  # a frame that was on its way when the thread ended
            self._leave_behind()
        self._woken.set()
        self._changed.notify_all()

    def _remove(self, entry: _Entry) -> bool:
        """Remove an entry, and its file; return whether it was there."""
        if entry not in self._queue:
            return False
        entry.is_removed = True
        self._queue.remove(entry)
        self._frames -= entry.is_frame
        self._bytes -= entry.size_bytes
        if entry.path is not None:
            with suppress(OSError):
                entry.path.unlink(missing_ok=True)
        return True

    def _trim(self) -> None:
        """Lose the oldest frames beyond the bound; the newest stays."""
        while self._bytes > self.sink.spool_bytes and self._frames > 1:
            self._remove(next(entry for entry in self._queue if entry.is_frame))
            self._counts["lost"] += 1

    def _leave_behind(self) -> None:
        """Lose what is in memory: nobody comes for it. What is in the folder stays there."""
        for entry in [queued for queued in self._queue if queued.path is None]:
            self._remove(entry)
            self._counts["lost"] += entry.is_frame

    def _save(self, entry: _Entry) -> None:
        """Write a frame into the folder; where that fails, it stays in memory. While many wait, it is in the file alone."""
        frame = entry.item
        if self._folder is None or frame is None or isinstance(frame, tuple):
            return
        if entry.size_bytes > self.sink.spool_bytes:
            return
        try:
            if entry.path is None:
                path, entry.is_exact = self._folder.save(frame, entry.number)
                entry.path = path
            size_bytes = entry.path.stat().st_size
        except Exception as error:  # noqa: BLE001 - the disk, or what the frame holds
            if not self._is_unsaved:
                text = "sink %s: a frame cannot be kept in %s, and stays in memory: %s"
                _LOG.warning(text, self.name, self._folder.folder, _said(error))
            self._is_unsaved = True
            return
        with self._changed:
            self._is_unsaved = False
            if entry.is_removed:  # while it was written
                entry.path.unlink(missing_ok=True)
            if not entry.is_exact or not (self._attempts or self._frames >= self.sink.queue_size):
                return
            if entry in self._queue:
                self._bytes += size_bytes - entry.size_bytes
            entry.item, entry.size_bytes = None, size_bytes

    # The thread.

    def _run_to_the_end(self) -> None:
        try:
            self._run()
        except BaseException:  # noqa: BLE001 - a thread has nobody above it
            with self._changed:
                self._closing.set()  # nobody waits for room
                self._attempts = self._attempts or 1
                self._error = "its thread has ended: see the log"
                self._changed.notify_all()
            _LOG.exception("sink %s: its thread has ended, and it gets no more frames", self.name)
            self._give_up(is_closed=True)

    def _run(self) -> None:
        is_open = False
        while True:
            entry = self._oldest() if is_open else None
            is_last = is_open and entry is None
            is_written = True
            try:
                if entry is not None:
                    is_written = self._write(entry)
                elif is_last:
                    self.sink.close()
                else:
                    self.sink.open()
                    is_open = True
            except Exception as error:  # noqa: BLE001 - it is tried again; log and status() say why
                if not self._tries_again(error, entry):
                    break
                continue
            self._done(entry, is_written=is_written)
            if is_last:
                self._state = "closed"
                return
        self._give_up(is_closed=is_last)

    def _oldest(self) -> _Entry | None:
        """Wait for something to write, or until a tick is due; None at the end."""
        while True:
            with self._changed:
                self._woken.clear()
                now_s, tick_s = self._clock.now(), self.sink.tick_s
                is_closing = self._closing.is_set()
                is_again = self._attempts and self._queue  # what failed comes first
                if tick_s is not None and now_s >= self._tick_at_s and not (is_closing or is_again):
                    self._tick_at_s = now_s + tick_s
                    return _Entry(("tick",), 0)
                if self._queue or is_closing:
                    return self._queue[0] if self._queue else None
            self._woken.wait(None if tick_s is None else self._tick_at_s - now_s)

    def _write(self, entry: _Entry) -> bool:
        """Hand something over to the sink; return whether there was something."""
        item = entry.item
        if isinstance(item, tuple):
            getattr(self.sink, item[0])(*item[1:])
            return True
        if item is None:
            path = entry.path or Path()
            try:
                item = read_frame(path)
            except Exception as error:  # noqa: BLE001 - whatever is in a damaged file
                if path.exists():  # else it was lost, or another program has written it
                    text = "sink %s: %s is damaged, and left out: %r"
                    _LOG.warning(text, self.name, path, _said(error))
                return False
        self.sink.write(item)
        return True

    def _done(self, entry: _Entry | None, *, is_written: bool = True) -> None:
        """Count what was handed over, and note that the sink works."""
        with self._changed:
            if entry is not None:
                is_there = self._remove(entry)
                if is_written and entry.is_frame:
                    self._counts["written"] += 1
                    # It was thought so while it was written.
                    self._counts[entry.counted] -= not is_there
                elif entry.is_frame:
                    self._counts["lost"] += is_there
            attempts = self._attempts if is_written else 0
            kept, lost = self._frames, self._counts["lost"] - self._lost_before
            if attempts:
                self._attempts, self._error = 0, None
            self._changed.notify_all()
        if attempts:
            text = "sink %s works again after %d attempts: %d frames were kept, %d were lost"
            kept += entry is not None and entry.is_frame
            _LOG.warning(text, self.name, attempts, kept, lost)

    def _tries_again(self, error: Exception, entry: _Entry | None) -> bool:
        """Note why the sink fails, and wait until it is tried again; False if that is too late."""
        with self._changed:
            is_first = not self._attempts
            self._attempts += 1
            self._error = _said(error)
            if is_first:
                self._lost_before = self._counts["lost"]
            waiting = list(self._queue) if is_first else []
            counts = f"{self._counts['written']} frames written, {self._frames} waiting"
            self._changed.notify_all()
        if is_first:
            text = "sink %s fails, and is tried again (%s): %r"
            _LOG.warning(text, self.name, counts, self._error)
            for held in waiting:
                self._save(held)
            with self._changed:
                self._trim()
        if entry is not None and self._passes_by(error, entry):
            return True
        is_closing = self._closing.is_set()
        wait_s = back_off(0 if is_closing else self._attempts - 1, chance=random.random)
        wait_s = min(wait_s, self.sink.tick_s or wait_s)
        self._due_s = self._clock.now() + wait_s
        if is_closing and self._due_s > self._close_at_s:
            return False
        self._clock.wait(self._never if is_closing else self._closing, wait_s)
        return True

    def _passes_by(self, error: Exception, entry: _Entry) -> bool:
        """Lose an entry that cannot be written, while the next frame can; return whether that is so."""
        # An OSError comes from outside, and passes; the bound of the spool is the limit there.
        is_outside = isinstance(error, OSError) and entry.is_frame
        if is_outside or self._attempts < self.sink.attempts:
            return False
        with self._changed:
            after = [other for other in self._queue if other.is_frame and other is not entry]
        if not after:
            return False
        try:
            is_written = self._write(after[0])
        except Exception:  # noqa: BLE001 - the sink fails, whatever it gets
            return False
        try:
            self._write(entry)  # the sink may have come back between the two
        except Exception as again:  # noqa: BLE001 - so it is this entry alone
            _LOG.debug("sink %s: one frame is lost: %r", self.name, _said(again))
            with self._changed:
                self._counts["lost"] += self._remove(entry) and entry.is_frame
        else:
            self._done(entry)
        self._done(after[0], is_written=is_written)
        return True

    def _give_up(self, *, is_closed: bool) -> None:
        """End without having written all."""
        for entry in list(self._queue):
            self._save(entry)
        with self._changed:
            before = self._counts["lost"]
            self._state = "closed"
            self._leave_behind()
            lost, kept = self._counts["lost"] - before, self._frames
        text = (
            "sink %s is closed, and still fails: %d frames are lost, %d are kept for the next run"
        )
        _LOG.warning(text, self.name, lost, kept)
        lost = 0
        for end in (self.sink.give_up,) if is_closed else (self.sink.close, self.sink.give_up):
            try:
                lost = end() or 0
            except Exception as error:  # noqa: BLE001 - the first error tells more
                _LOG.debug("sink %s cannot be closed: %r", self.name, _said(error))
        if lost:
            with self._changed:
                self._counts["written"] -= lost
                self._counts["lost"] += lost
            text = "sink %s is closed: %d frames that were written are in no file, and are lost"
            _LOG.warning(text, self.name, lost)
