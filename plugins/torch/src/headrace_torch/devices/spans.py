"""Measures for probes how long elements keep a CUDA device busy, with events that are read after the batch."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace import InitContext
    from headrace_torch.devices.place import Place

__all__ = ["DeviceSpans", "spans_of"]


class DeviceSpans:
    """The spans of one instance on one stream.

    The first event of a batch is taken to happen when it is recorded. The others are placed by their distance
    from it, as the device measures it. So work that was queued while the device was busy is reported at the time at
    which it ran.

    Args:
        stream: The stream.
        track: The name of the device in the trace.
        event: Makes an event that measures time.
        clock: Gives the time in seconds, as ``time.monotonic()``.
    """

    def __init__(
        self,
        stream: Any,
        track: str,
        event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._track = track
        self._event = event
        self._clock = clock
        self._base: tuple[Any, float] | None = None
        self._marks: list[tuple[Callable[..., object], str, Any, Any]] = []

    def around(
        self, run: Callable[..., Any], span: Callable[[str, float, float, str], object], name: str
    ) -> Callable[..., Any]:
        """Return a function that calls ``run`` between two events on the stream.

        Args:
            run: A function that queues work on the stream.
            span: Called with the span at the end of the batch: see ``context.span``.
            name: The name of the span.
        """

        def marked(*args: Any) -> Any:
            at = self._clock()
            first = self._recorded()
            if self._base is None:
                self._base = first, at
            try:
                return run(*args)
            finally:
                self._marks.append((span, name, first, self._recorded()))

        return marked

    def _recorded(self) -> Any:
        event = self._event()
        event.record(self._stream)
        return event

    def report(self) -> None:
        """Report the spans of the batch, once the stream is synchronised; a span that has not ended is left out."""
        base, self._base = self._base, None
        marks, self._marks = self._marks, []
        if base is None:
            return
        zero, at = base
        for span, name, first, last in marks:
            if last.query():
                began, ended = (zero.elapsed_time(event) / 1000 for event in (first, last))
                span(name, at + began, at + ended, self._track)


def spans_of(context: InitContext, place: Place) -> DeviceSpans | None:
    """Return the spans of the instance that is being built. None without a CUDA device or a probe.

    They are reported at the end of the batch, after the place of the instance has waited for the stream.
    """
    if context.span is None or place.stream is None:
        return None

    def make() -> DeviceSpans:
        spans = DeviceSpans(place.stream, str(place.device))
        context.batch.at_end(spans.report)
        return spans

    key = ("headrace_torch.spans", str(place.device), threading.get_ident())
    spans: DeviceSpans = context.store.instance.get_or_create(key, make)
    return spans
