"""One source: its counts, its frames between reading and delivery, and their order."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace_vision.frames import SAID, Frame, Shot
from headrace_vision.reading.frame_maker import FrameMaker

if TYPE_CHECKING:
    from headrace_vision.clock import Clock
    from headrace_vision.options import SourceOptions
    from headrace_vision.pipelines.crop_models import Answer
    from headrace_vision.pipelines.lanes import SourceLane
    from headrace_vision.reading.packets import Packets
    from headrace_vision.reading.timing import Timeline

__all__ = ["Flight", "Part", "Source"]

_TOLD = ("delivered", "failed", "dropped")
"""Counts in the log."""

_LOG = logging.getLogger("headrace.vision")


class Part:
    """What one model does with a frame.

    Args:
        lane: The model.
        frame: It gets ``result`` or ``error``.
    """

    __slots__ = ("answers", "frame", "future", "lane", "request")

    def __init__(self, lane: SourceLane, frame: Frame) -> None:
        self.lane = lane
        self.frame = frame
        self.request = _request_of(frame)
        self.future: Future[Any] | None = None
        self.answers: list[list[Answer]] = []


class Flight:
    """A frame between reading and delivery.

    Args:
        frame: It gets its outcome.
        parts: What the models do with it.

    Attributes:
        waits: How many answers are yet to come.
        is_ordered: Whether what is in order has run on it.
        is_dropped: Whether it was cancelled.
    """

    __slots__ = ("frame", "is_dropped", "is_ordered", "parts", "waits")

    def __init__(self, frame: Frame, parts: list[Part]) -> None:
        self.frame = frame
        self.parts = parts
        self.waits = len(parts)
        self.is_ordered = False
        self.is_dropped = False

    def cancel(self) -> bool:
        """Cancel it where a model has not begun. Return whether there was one."""
        futures = [part.future for part in self.parts]
        return any([future.cancel() for future in futures if future is not None])  # noqa: C419 - each of them


class SourceState:
    """What a source does, and since when it is lost. It has no lock.

    Attributes:
        name: ``"opening"``, ``"reading"``, ``"lost"``, ``"failed"``, ``"stopped"`` or ``"ended"``.
        error: Why it was lost, or has failed.
        attempts: How often it was tried in vain since its last frame.
        due_s: When it is tried again, in seconds of the machine.
        lost_s: When it was lost.
    """

    def __init__(self) -> None:
        self.name = "opening"
        self.error: str | None = None
        self.attempts = 0
        self.due_s = self.lost_s = 0.0

    def note_lost(self, error: str, attempt: int, wait_s: float, now_s: float) -> None:
        """Note why it was lost, how often it was tried before, and when it is tried again."""
        self.name, self.error = "lost", error
        self.attempts, self.due_s = attempt + 1, now_s + wait_s
        self.lost_s = self.lost_s if attempt else now_s

    def end(self, error: BaseException | None, *, is_stopped: bool) -> None:
        """Note that it is over, and why."""
        if error is not None:
            self.name, self.error = "failed", str(error) or type(error).__name__
        elif self.name != "failed":
            self.name = "stopped" if is_stopped else "ended"


@dataclass(eq=False)
class Source:
    """The counts and the frames of one source. Safe to use from several threads.

    ``read = delivered + failed + dropped + thinned + in flight`` holds whenever `status` is called.

    Attributes:
        name: What frames of it say as ``source``.
        options: How it is read.
        live: Whether it goes on whether or not somebody reads.
        clock: The seconds that its times follow after it was lost.
        send: Submits the request of a flight, and calls `ended` when it is done.
    """

    name: str
    options: SourceOptions
    live: bool
    clock: Clock
    send: Callable[[Source, Flight], None]

    def __post_init__(self) -> None:
        self.stopping = threading.Event()
        self.flights: deque[Flight] = deque()
        self.changed = threading.Condition()
        self.busy = False
        self.reader_done = False
        self.discards = False
        self.lanes: dict[str, SourceLane] = {}
        self.packets: list[Packets] = []
        self.tell: Callable[..., None] = lambda *_: None
        self._hang_up: Callable[[], None] | None = None
        self._maker = FrameMaker(self.name, self.options, live=self.live)
        self._state = SourceState()
        outcomes = ("read", "delivered", "failed", "dropped", "thinned")
        self._counts = dict.fromkeys((*outcomes, "damaged_packets", "reconnects"), 0)
        self._held = 0

    @property
    def latest(self) -> bool:
        """Whether frames that nobody began give way to newer ones."""
        if self.options.frames is not None:
            return self.options.frames == "latest"
        return self.live or self.options.realtime

    @property
    def in_flight(self) -> int:
        """Most frames between reading and delivery."""
        return self.options.in_flight or (3 if self.latest else 4)

    @property
    def timeline(self) -> Timeline:
        """The times of its frames."""
        return self._maker.timeline

    def push(self, shot: Shot) -> bool:
        """Send a picture that was read. Wait until there is room, if every frame counts.

        Returns:
            Whether reading goes on. False once the source is to stop.
        """
        frame = self._maker.next_frame(shot)
        self._state.name = "reading"
        for receiver in self.packets:
            receiver.note(shot.stream_s, frame.timestamp)
        if not self._maker.keeps(frame):
            with self.changed:
                self._counts["read"] += 1
                self._counts["thinned"] += 1
            return not self.stopping.is_set()
        if not self._take_place():
            return not self.stopping.is_set()
        self._maker.add_image(frame, shot)
        self.send(self, self._flight_of(frame))
        return True

    def name_events(self, frame: Frame) -> None:
        """Give each event of a frame the time of the frame, and an id that no other event has, of no run."""
        self._maker.name_events(frame)

    def _flight_of(self, frame: Frame) -> Flight:
        if self.options.models is None or frame.error is not None:
            return Flight(frame, [Part(next(iter(self.lanes.values())), frame)])
        frame.models = {name: replace(frame) for name in self.lanes}
        pairs = zip(self.lanes.values(), frame.models.values(), strict=True)
        return Flight(frame, [Part(lane, answer) for lane, answer in pairs])

    def _take_place(self) -> bool:
        """Count a frame as read and in flight; False if it is dropped, or the source stops."""
        while True:
            with self.changed:
                if self.stopping.is_set():
                    return False
                if self._held < self.in_flight:
                    self._counts["read"] += 1
                    self._held += 1
                    return True
                if not self.latest:
                    self.changed.wait()
                    continue
                newest = list(reversed(self.flights))
            # Outside of the lock: cancelling calls back, and that takes the lock.
            if not any(flight.cancel() for flight in newest):
                with self.changed:
                    if self._held < self.in_flight:
                        continue
                    self._counts["read"] += 1
                    self._counts["dropped"] += 1
                    return False

    def begin(self, flight: Flight) -> None:
        """Put a flight at the end of the order."""
        with self.changed:
            self.flights.append(flight)

    def ended(self, flight: Flight, *, cancelled: bool = False) -> None:
        """Note that one of the answers to a flight is there. A flight with one that was cancelled is dropped at once."""
        with self.changed:
            flight.waits -= 1
            if cancelled and not flight.is_dropped:
                flight.is_dropped = True
                self.flights.remove(flight)
                self._leave("dropped")

    def ordered(self, flight: Flight, waits: int) -> None:
        """Note that what is in order has run on a flight, and how many answers it waits for now."""
        with self.changed:
            flight.is_ordered = True
            flight.waits = waits

    def _due(self) -> Flight | None:
        """Return the oldest flight if it is done, else the oldest that what is in order has not seen, if that may run on it."""
        if self.flights and self.flights[0].is_ordered and not self.flights[0].waits:
            return self.flights[0]
        first = next((flight for flight in self.flights if not flight.is_ordered), None)
        return None if first is None or first.waits else first

    def next_due(self) -> Flight | None:
        """Return a flight to work on, which is taken out if it is done. None, and no longer busy, if there is none."""
        with self.changed:
            flight = self._due()
            if flight is None:
                self.busy = False
                self.changed.notify_all()
            elif flight.is_ordered:
                self.flights.popleft()
            return flight

    def start_drain(self) -> bool:
        """Return whether there is a flight to work on, and nobody else does; then this thread does."""
        with self.changed:
            if self.busy or self._due() is None:
                return False
            self.busy = True
            return True

    def release(self, frame: Frame, *, dropped: bool = False) -> None:
        """Count a frame as delivered, failed or dropped, and make room for another one."""
        with self.changed:
            self._leave("dropped" if dropped else "failed" if frame.error else "delivered")

    def _leave(self, outcome: str) -> None:
        self._counts[outcome] += 1
        self._held -= 1
        self.changed.notify_all()

    def damaged(self) -> None:
        """Count a packet that could not be decoded."""
        with self.changed:
            self._counts["damaged_packets"] += 1

    def lost(self, error: str, attempt: int, wait_s: float) -> None:
        """Note why the source was lost, and log it, once until it is found again.

        Args:
            error: The reason.
            attempt: How often it was tried in vain before, since its last frame.
            wait_s: Seconds until it is tried again.
        """
        with self.changed:
            self._state.note_lost(error, attempt, wait_s, self.clock.now())
            self._counts["reconnects"] += 1
            counts = ", ".join(f"{self._counts[outcome]} {outcome}" for outcome in _TOLD)
        if not attempt:
            text = "source %s is lost, and tried again (%s): %s"
            _LOG.warning(text, self.name, counts, error)
            self.tell("source_lost", error)

    def found(self) -> None:
        """Note, and log, that the source answers again."""
        with self.changed:
            attempts, away_s = self._state.attempts, self.clock.now() - self._state.lost_s
            self._state.attempts, self._state.error = 0, None
        _LOG.warning("source %s is found after %d attempts, %.1f s", self.name, attempts, away_s)
        self.tell("source_found")

    def finish(self, error: BaseException | None = None) -> None:
        """Note that the reader has ended."""
        with self.changed:
            self._state.end(error, is_stopped=self.stopping.is_set())
            if error is not None and self.live:
                text = "source %s has failed, and is over: %s"
                _LOG.warning(text, self.name, self._state.error)
            self.reader_done = True
            self.changed.notify_all()

    def hang_up_with(self, function: Callable[[], None] | None) -> None:
        """Note what ends a connection that is read, so that a stop does not wait while it is silent; None once it is closed."""
        with self.changed:
            self._hang_up = function
        if function is not None and self.stopping.is_set():
            function()

    def stop(self, *, discard: bool = False) -> None:
        """Read no more, and cancel the frames that nobody began; with ``discard`` deliver none."""
        self.stopping.set()
        with self.changed:
            if self._hang_up is not None:
                self._hang_up()
            self.discards = self.discards or discard
            waiting = list(self.flights)
            self.changed.notify_all()
        for flight in waiting:
            flight.cancel()

    @property
    def is_over(self) -> bool:
        """Whether the reader has ended and no frame is in flight."""
        with self.changed:
            return self.reader_done and not self.flights and not self._held and not self.busy

    def status(self) -> dict[str, Any]:
        """Return state and counts as a dict that can be written as JSON."""
        with self.changed:
            state = self._state
            is_lost = state.name == "lost"
            return {
                "state": state.name,
                "live": self.live,
                "models": list(self.lanes),
                **self._counts,
                "gated": sum(lane.gated for lane in self.lanes.values()),
                "in_flight": self._held,
                "attempts": state.attempts,
                "retry_in_s": max(state.due_s - self.clock.now(), 0.0) if is_lost else None,
                "error": state.error,
            }


def _request_of(frame: Frame) -> dict[str, Any]:
    context = {name: getattr(frame, name) for name in SAID}
    return {"data": frame.image, "image": frame.image, "color": "bgr", "context": context}
