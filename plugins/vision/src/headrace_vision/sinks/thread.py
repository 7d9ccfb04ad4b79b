"""The thread of one sink: it writes what waits, and tries again while the sink fails."""

from __future__ import annotations

import logging
import math
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace_formats import back_off
from headrace_vision.sinks.queue import Entry, SinkQueue, Spool, text_of
from headrace_vision.sinks.spool import bytes_of, read_frame

if TYPE_CHECKING:
    from headrace_vision.clock import Clock
    from headrace_vision.frames import Frame
    from headrace_vision.sinks.sink import Sink

__all__ = ["SinkThread"]

LEEWAY_S = 0.5
"""Seconds for giving up, when `close_s` is over."""

_LOG = logging.getLogger("headrace.vision")


class Outage:
    """The attempts in a row that failed. There are none while the sink works.

    Attributes:
        attempts: How many.
        error: Why the last one did.
        due_s: When the next one is due, by the clock of the sink.
        lost_before: How many frames were lost before the first one.
    """

    def __init__(self) -> None:
        self.attempts = self.lost_before = 0
        self.error: str | None = None
        self.due_s = 0.0

    def note(self, error: Exception, lost: int) -> bool:
        """Count an attempt that failed, when so many frames are lost. Return whether it is the first one."""
        self.lost_before = self.lost_before if self.attempts else lost
        self.attempts += 1
        self.error = text_of(error)
        return self.attempts == 1

    def end(self) -> None:
        """Note that the sink works again."""
        self.attempts, self.error = 0, None


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
        self._queue = SinkQueue()
        self._outage = Outage()
        self._spool = Spool(name, sink.spool)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._never = threading.Event()
        self._woken = threading.Event()
        self._tick_at_s = -math.inf
        self._close_at_s = 0.0
        self._state = "open"
        self._counts = dict.fromkeys(("written", "dropped", "lost"), 0)
        self._is_refusing = False
        for entry in self._spool.entries():
            self._queue.add(entry)
        self._trim()
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
            entry = Entry(frame, bytes_of(frame))
        except Exception as error:  # noqa: BLE001 - of this frame and this sink, others go on
            self._refuse(error)
            return
        with self._changed:
            while not self._has_room():
                if self.sink.full == "drop":
                    self._counts["dropped"] += 1
                    oldest = self._queue.oldest_frame
                    oldest.counted = "dropped"
                    self._queue.remove(oldest)
                else:
                    self._changed.wait()
            if self._closing.is_set():
                self._counts["dropped"] += 1
                return
            self._is_refusing = False
            entry.number = self._spool.next_number()
            # What is told of an event is on the disk before it is sent.
            is_event = self.sink.full == "keep" or bool(frame.request.get("events"))
            saves = self._spool.has_folder and (self._outage.attempts > 0 or is_event)
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

    def tell(self, method: str, source: str, *details: str) -> None:
        """Queue what became of a source; that finds room always. Of the same kind only the last one waits."""
        with self._changed:
            if not self._closing.is_set():
                for waiting in [*self._queue]:
                    if isinstance(waiting.item, tuple) and waiting.item[:2] == (method, source):
                        self._queue.remove(waiting)
                self._append(Entry((method, source, *details), 0))

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
        return max(self.sink.close_s + LEEWAY_S, 0.0 if self._outage.attempts else timeout_s)

    def status(self) -> dict[str, Any]:
        """Return state, counts and the error as a dict that can be written as JSON."""
        with self._changed:
            outage = self._outage
            is_failing = outage.attempts and self._state == "open"
            return {
                "state": "failed" if outage.attempts else self._state,
                **self._counts,
                "written": self._counts["written"] - self.sink.missing,
                "waiting": self._queue.frames,
                "waiting_bytes": self._queue.size_bytes,
                "attempts": outage.attempts,
                "retry_in_s": max(outage.due_s - self._clock.now(), 0.0) if is_failing else None,
                "error": outage.error,
                **self.sink.status(),
            }

    # The queue; all but `_save` are called with the lock held.

    @property
    def _keeps(self) -> bool:
        """Whether the bound is that of the spool, and not the size of the queue."""
        return bool(self._outage.attempts) or self.sink.full == "keep"

    def _has_room(self) -> bool:
        size = max(self.sink.queue_size, 1)
        return self._keeps or self._closing.is_set() or self._queue.frames < size

    def _append(self, entry: Entry) -> None:
        self._queue.add(entry)
        if self._keeps:
            self._trim()
        if self._state == "closed":  # a frame that was on its way when the thread ended
            self._leave_behind()
        self._woken.set()
        self._changed.notify_all()

    def _trim(self) -> None:
        """Lose the oldest frames beyond the bound; the newest stays."""
        self._counts["lost"] += self._queue.trim(self.sink.spool_bytes)

    def _leave_behind(self) -> None:
        """Lose what is in memory: nobody comes for it. What is in the folder stays there."""
        self._counts["lost"] += self._queue.remove_unsaved()

    def _save(self, entry: Entry) -> None:
        """Write a frame into the folder; where that fails, it stays in memory. While many wait, it is in the file alone."""
        size_bytes = self._spool.save(entry, self.sink.spool_bytes)
        if size_bytes is None or entry.path is None:
            return
        with self._changed:
            if entry.is_removed:  # while it was written
                entry.path.unlink(missing_ok=True)
            are_many = self._outage.attempts or self._queue.frames >= self.sink.queue_size
            if entry.is_exact and are_many:
                self._queue.leave_to_file(entry, size_bytes)

    # The thread.

    def _run_to_the_end(self) -> None:
        try:
            self._run()
        except BaseException:  # noqa: BLE001 - a thread has nobody above it
            with self._changed:
                self._closing.set()  # nobody waits for room
                self._outage.attempts = self._outage.attempts or 1
                self._outage.error = "its thread has ended: see the log"
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

    def _oldest(self) -> Entry | None:
        """Wait for something to write, or until a tick is due; None at the end."""
        while True:
            with self._changed:
                self._woken.clear()
                now_s, tick_s = self._clock.now(), self.sink.tick_s
                is_closing = self._closing.is_set()
                is_again = self._outage.attempts and self._queue  # what failed comes first
                if tick_s is not None and now_s >= self._tick_at_s and not (is_closing or is_again):
                    self._tick_at_s = now_s + tick_s
                    return Entry(("tick",), 0)
                if self._queue or is_closing:
                    return self._queue.oldest
            self._woken.wait(None if tick_s is None else self._tick_at_s - now_s)

    def _write(self, entry: Entry) -> bool:
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
                    _LOG.warning(text, self.name, path, text_of(error))
                return False
        self.sink.write(item)
        return True

    def _done(self, entry: Entry | None, *, is_written: bool = True) -> None:
        """Count what was handed over, and note that the sink works."""
        with self._changed:
            if entry is not None:
                is_there = self._queue.remove(entry)
                if is_written and entry.is_frame:
                    self._counts["written"] += 1
                    # It was thought so while it was written.
                    self._counts[entry.counted] -= not is_there
                elif entry.is_frame:
                    self._counts["lost"] += is_there
            attempts = self._outage.attempts if is_written else 0
            waiting, lost = self._queue.frames, self._counts["lost"] - self._outage.lost_before
            if attempts:
                self._outage.end()
            self._changed.notify_all()
        if attempts:
            text = "sink %s works again after %d attempts: %d frames were kept, %d were lost"
            waiting += entry is not None and entry.is_frame
            _LOG.warning(text, self.name, attempts, waiting, lost)

    def _tries_again(self, error: Exception, entry: Entry | None) -> bool:
        """Note why the sink fails, and wait until it is tried again; False if that is too late."""
        with self._changed:
            is_first = self._outage.note(error, self._counts["lost"])
            waiting = list(self._queue) if is_first else []
            counts = f"{self._counts['written']} frames written, {self._queue.frames} waiting"
            self._changed.notify_all()
        if is_first:
            text = "sink %s fails, and is tried again (%s): %r"
            _LOG.warning(text, self.name, counts, self._outage.error)
            for frame in waiting:
                self._save(frame)
            with self._changed:
                self._trim()
        if entry is not None and self._passes_by(error, entry):
            return True
        is_closing = self._closing.is_set()
        wait_s = back_off(0 if is_closing else self._outage.attempts - 1, chance=random.random)
        wait_s = min(wait_s, self.sink.tick_s or wait_s)
        self._outage.due_s = self._clock.now() + wait_s
        if is_closing and self._outage.due_s > self._close_at_s:
            return False
        self._clock.wait(self._never if is_closing else self._closing, wait_s)
        return True

    def _passes_by(self, error: Exception, entry: Entry) -> bool:
        """Lose an entry that cannot be written, while the next frame can; return whether that is so."""
        # An OSError comes from outside, and passes; the bound of the spool is the limit there.
        is_outside = isinstance(error, OSError) and entry.is_frame
        if is_outside or self._outage.attempts < self.sink.attempts:
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
            _LOG.debug("sink %s: one frame is lost: %r", self.name, text_of(again))
            with self._changed:
                self._counts["lost"] += self._queue.remove(entry) and entry.is_frame
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
            lost, waiting = self._counts["lost"] - before, self._queue.frames
        text = (
            "sink %s is closed, and still fails: %d frames are lost, %d are kept for the next run"
        )
        _LOG.warning(text, self.name, lost, waiting)
        lost = 0
        for end in (self.sink.give_up,) if is_closed else (self.sink.close, self.sink.give_up):
            try:
                lost = end() or 0
            except Exception as error:  # noqa: BLE001 - the first error tells more
                _LOG.debug("sink %s cannot be closed: %r", self.name, text_of(error))
        if lost:
            with self._changed:
                self._counts["written"] -= lost
                self._counts["lost"] += lost
            text = "sink %s is closed: %d frames that were written are in no file, and are lost"
            _LOG.warning(text, self.name, lost)
