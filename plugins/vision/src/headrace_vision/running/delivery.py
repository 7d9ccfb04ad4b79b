"""The way of a frame: to the pipeline, into its order, to the sinks and to who loops over the frames."""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_vision.pipelines.lanes import Lane, lanes_of
from headrace_vision.reading.source import Flight, Part, Source
from headrace_vision.running.group import KEPT, Group

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from headrace_vision.clock import Clock
    from headrace_vision.frames import Frame
    from headrace_vision.pipelines.crop_models import Answer
    from headrace_vision.sinks.threads import SinkThreads

__all__ = ["Delivery"]

_LOG = logging.getLogger("headrace.vision")


class Delivery:
    """Sends the frames of sources through a pipeline, and delivers each once, in the order of its source.

    Args:
        lanes: The models by name.
        sinks: They get every frame.
        clock: The time that live sources follow.

    Attributes:
        lanes: The models by name, as they are built.
    """

    def __init__(self, lanes: dict[str, Lane], sinks: SinkThreads, clock: Clock) -> None:
        self.lanes = lanes
        self._sinks = sinks
        self._clock = clock
        self._lock = threading.RLock()
        self._sources: dict[str, Source] = {}
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._groups: dict[Source, Group] = {}
        self._lobby: list[tuple[Source, Frame]] = []
        self._closed = False
        count = min(8, (os.cpu_count() or 1) + 2)
        self._workers = ThreadPoolExecutor(count, "headrace-vision-ordered")

    def _make_source(self, group: Group, name: str, live: bool) -> Source:
        with self._lock:
            unique, number = name, 2
            while unique in self._sources:
                unique, number = f"{name}#{number}", number + 1
            source = Source(unique, group.options, live=live, clock=self._clock, send=self._send)
            source.lanes = lanes_of(self.lanes, group.options)
            source.tell = partial(self._tell, source)
            if not group.options.privacy_masks:
                source.packets = self._sinks.packets_of(unique, group.options.sinks)
            self._sources[unique] = source
            self._groups[source] = group
            if group.loop is not None:
                group.loop.join()
            if self._closed or group.stopping.is_set():
                source.stop(discard=True)
        return source

    def _tell(self, source: Source, method: str, *details: str) -> None:
        self._sinks.tell(method, source.name, *details, names=source.options.sinks)

    def _send(self, source: Source, flight: Flight) -> None:
        source.begin(flight)
        if flight.frame.error is not None:
            self._advance(source, flight)
            return
        for part in flight.parts:
            try:
                part.future = future = part.lane.pipe.submit(part.request)
            except Exception as error:  # noqa: BLE001 - the outcome of this frame
                part.frame.error = error
                self._advance(source, flight)
            else:
                future.add_done_callback(partial(self._answered, source, flight, part))

    def _answered(
        self, source: Source, flight: Flight, part: Part, future: Future[dict[str, Any]]
    ) -> None:
        is_cancelled = future.cancelled()
        if is_cancelled:
            flight.cancel()  # at the other models too
        else:
            try:
                part.frame.error = future.exception()
                if part.frame.error is None:
                    part.frame.result = part.request["result"]
            except Exception as error:  # noqa: BLE001 - what answers is no pipeline of ours
                _fail(part.frame, error)
            part.frame.request = part.request
        # It has this call, and so the frame: without a cycle the picture goes at once.
        part.future = None
        self._advance(source, flight, cancelled=is_cancelled)

    def _advance(self, source: Source, flight: Flight, *, cancelled: bool = False) -> None:
        source.ended(flight, cancelled=cancelled)
        if not source.start_drain():
            self._check_over(source)
        elif self._sinks.is_empty and all(lane.is_empty for lane in source.lanes.values()):
            self._drain(source)
        else:
            try:
                self._workers.submit(self._drain, source).add_done_callback(_report)
            except RuntimeError:  # the runner is closed: nobody waits for frames
                source.discards = True
                self._drain(source)

    def _drain(self, source: Source) -> None:
        while True:
            while (flight := source.next_due()) is not None:
                (self._deliver if flight.is_ordered else self._run_in_order)(source, flight)
            # One may have ended between the look and the end of this drain.
            if not source.start_drain():
                break
        self._check_over(source)

    def _run_in_order(self, source: Source, flight: Flight) -> None:
        waits: list[Answer] = []
        for part in flight.parts if not source.discards else ():
            try:
                part.answers = part.lane.run_in_order(part.frame)
            except Exception as error:  # noqa: BLE001 - the outcome of this frame
                _fail(part.frame, error)
            waits += [due for answers in part.answers for due in answers if not due.is_done]
        source.ordered(flight, len(waits))
        for answer in waits:
            answer.then(partial(self._advance, source, flight))

    def _deliver(self, source: Source, flight: Flight) -> None:
        frame = flight.frame
        if source.discards:
            source.release(frame, dropped=True)
            return
        try:
            for part in flight.parts:
                part.lane.write(part.frame, part.answers)
                source.name_events(part.frame)
            if frame.models:
                frame.join()
        except Exception as error:  # noqa: BLE001 - the outcome of this frame
            _fail(frame, error)
        self._sinks.put(frame, source.options.sinks, source.lanes)
        with self._lock:
            loop = self._groups[source].loop
            waits = loop is None and self._sinks.is_empty
            if waits and not self._closed:
                self._lobby.append((source, frame))
                return
        if loop is None:
            source.release(frame, dropped=waits)  # after the close nobody comes for it
        elif not loop.put(source, frame):
            source.release(frame, dropped=True)

    def _released(self, source: Source, frame: Frame) -> None:
        source.release(frame)
        self._check_over(source)

    def _give_back(self, taking: asyncio.Future[tuple[Source, Frame] | None]) -> None:
        taken = None if taking.cancelled() else taking.result()
        if taken is not None:
            source, frame = taken
            source.release(frame, dropped=True)
            self._check_over(source)

    def _check_over(self, source: Source) -> None:
        """Finish a source, once, when all of it was delivered."""
        if not source.reader_done or not source.is_over:
            return
        with self._lock:
            if self._sources.get(source.name) is not source:
                return
            del self._sources[source.name]
            group = self._groups.pop(source)
            loop = group.loop
            self._ended[source.name] = source.status()
            while len(self._ended) > KEPT:
                self._ended.popitem(last=False)
        try:
            for lane in source.lanes.values():
                lane.ordered.close()
        except Exception:  # noqa: BLE001 - the source is over all the same
            _LOG.exception(
                "source %s has ended, and what is in order cannot be closed", source.name
            )
        self._tell(source, "source_ended")
        group.forget(source)
        if loop is not None:
            loop.leave()


def _fail(frame: Frame, error: Exception) -> None:
    """Give a frame the error of what delivers it, and log where that is: it is a fault of a program."""
    frame.result, frame.error = None, error
    text = "source %s: frame %d fails while it is delivered"
    _LOG.error(text, frame.source, frame.frame, exc_info=error)


def _report(future: Future[None]) -> None:
    """Log what a thread that delivers frames has ended with."""
    if not future.cancelled() and (error := future.exception()) is not None:
        _LOG.critical("frames of a source are delivered no more", exc_info=error)
