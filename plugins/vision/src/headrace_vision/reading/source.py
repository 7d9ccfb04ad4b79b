"""One source: its counts, its frames between reading and delivery, and their order."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace_vision.clock import utc
from headrace_vision.frames import SAID, Frame, Shot
from headrace_vision.privacy import PrivacyMasks
from headrace_vision.reading.timing import Thinning, Timeline

if TYPE_CHECKING:
    from headrace_vision.clock import Clock
    from headrace_vision.options import SourceOptions
    from headrace_vision.pipelines.crop_models import Answer
    from headrace_vision.pipelines.lanes import SourceLane
    from headrace_vision.reading.packets import Packets

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
        self.state = "opening"
        self.error: str | None = None
        self.flights: deque[Flight] = deque()
        self.changed = threading.Condition()
        self.busy = False
        self.reader_done = False
        self.discards = False
        self.lanes: dict[str, SourceLane] = {}
        self.packets: list[Packets] = []
        self.tell: Callable[..., None] = lambda *_: None
        self._hang_up: Callable[[], None] | None = None
        self.timeline = Timeline(1.0 / self.options.image_fps)
        self._thinning = Thinning(self.options)
        self._masks = PrivacyMasks((self.options.privacy_masks or {}).values())
        self._run, self._events = secrets.token_hex(4), itertools.count(1)
        outcomes = ("read", "delivered", "failed", "dropped", "thinned")
        self._counts = dict.fromkeys((*outcomes, "damaged_packets", "reconnects"), 0)
        self._has_wrong_clock = False
        self._number = self._held = self._attempts = 0
        self._due_s = self._lost_s = 0.0

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

    def push(self, shot: Shot) -> bool:
        """Send a picture that was read. Wait until there is room, if every frame counts.

        Returns:
            Whether reading goes on. False once the source is to stop.
        """
        number = self._number
        self._number += 1
        stamp = self.timeline.stamp(shot.time_s)
        when, said_by = self._capture_time(shot)
        self.state = "reading"
        for receiver in self.packets:
            receiver.note(shot.stream_s, stamp)
        if shot.error is None and not self._thinning.keeps(number, stamp):
            with self.changed:
                self._counts["read"] += 1
                self._counts["thinned"] += 1
            return not self.stopping.is_set()
        if not self._take_place():
            return not self.stopping.is_set()
        frame = Frame(self.name, number, stamp, gap=shot.gap, path=shot.path, error=shot.error)
        frame.damaged, frame.live = shot.damaged, self.live
        frame.aspect, frame.color = shot.aspect, shot.color
        frame.time, frame.time_from = when, said_by
        if shot.error is None:
            try:
                frame.image = self._masks.covered(shot.convert())
            except Exception as error:  # noqa: BLE001 - the outcome of this frame
                frame.error = error
        self.send(self, self._flight_of(frame))
        return True

    def _capture_time(self, shot: Shot) -> tuple[float, str]:
        """Return when a picture was captured, and who says so: not a camera whose clock is wrong, which is logged once."""
        came = utc() if shot.came is None else shot.came
        if shot.told is None:
            return came, "arrival"
        off_s, is_wrong = shot.told - came, self._has_wrong_clock
        self._has_wrong_clock = abs(off_s) > self.options.clock_tolerance_s
        if self._has_wrong_clock and not is_wrong:
            text = (
                "the clock of source %s is %+.0f s off: its frames have the time of their arrival"
            )
            _LOG.warning(text, self.name, off_s)
        elif is_wrong and not self._has_wrong_clock:
            _LOG.warning("the clock of source %s is right again", self.name)
        return (came, "arrival") if self._has_wrong_clock else (shot.told, "camera")

    def name_events(self, frame: Frame) -> None:
        """Give each event of a frame the time of the frame, and an id that no other event has, of no run."""
        events = frame.request.get("events")
        if isinstance(events, (list, tuple)):
            frame.request["events"] = [
                {"id": f"{self.name}:{self._run}:{next(self._events)}", "time": frame.time, **event}
                if isinstance(event, Mapping)
                else event
                for event in events
            ]

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
            self.state, self.error = "lost", error
            self._counts["reconnects"] += 1
            self._attempts = attempt + 1
            self._due_s = self.clock.now() + wait_s
            if not attempt:
                self._lost_s = self.clock.now()
            counts = ", ".join(f"{self._counts[outcome]} {outcome}" for outcome in _TOLD)
        if not attempt:
            text = "source %s is lost, and tried again (%s): %s"
            _LOG.warning(text, self.name, counts, self.error)
            self.tell("source_lost", error)

    def found(self) -> None:
        """Note, and log, that the source answers again."""
        with self.changed:
            attempts, self._attempts, self.error = self._attempts, 0, None
            away_s = self.clock.now() - self._lost_s
        _LOG.warning("source %s is found after %d attempts, %.1f s", self.name, attempts, away_s)
        self.tell("source_found")

    def finish(self, error: BaseException | None = None) -> None:
        """Note that the reader has ended."""
        with self.changed:
            if error is not None:
                self.state, self.error = "failed", str(error) or type(error).__name__
                if self.live:
                    _LOG.warning("source %s has failed, and is over: %s", self.name, self.error)
            elif self.state != "failed":
                self.state = "stopped" if self.stopping.is_set() else "ended"
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
            is_lost = self.state == "lost"
            return {
                "state": self.state,
                "live": self.live,
                "models": list(self.lanes),
                **self._counts,
                "gated": sum(lane.gated for lane in self.lanes.values()),
                "in_flight": self._held,
                "attempts": self._attempts,
                "retry_in_s": max(self._due_s - self.clock.now(), 0.0) if is_lost else None,
                "error": self.error,
            }


def _request_of(frame: Frame) -> dict[str, Any]:
    context = {name: getattr(frame, name) for name in SAID}
    return {"data": frame.image, "image": frame.image, "color": "bgr", "context": context}
