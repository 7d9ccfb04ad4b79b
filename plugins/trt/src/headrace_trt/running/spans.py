"""Reports what a batch does on its device to probes: copies in, computation, copies out."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace_trt.running.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace_trt.libraries.cuda import Cuda
    from headrace_trt.running.grouping import Run
    from headrace_trt.running.outputs import Raw

__all__ = ["SpannedRunner", "Spans"]


class Spans:
    """Measures times by CUDA events, which are read after the batch's wait for the stream, without another wait.

    Args:
        cuda: The CUDA runtime.
        stream: The handle of the instance's stream.
        span: Called with each span: see ``context.span``.
        track: The name of the device in the trace.
        clock: Gives the time in seconds, as ``time.monotonic()``.
    """

    def __init__(
        self,
        cuda: Cuda,
        stream: int,
        span: Callable[[str, float, float, str], object],
        track: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cuda = cuda
        self._stream = stream
        self._span = span
        self._track = track
        self._clock = clock
        self._silent = False
        self._free: list[int] = []
        self._first: tuple[int, float] | None = None
        self._marks: list[tuple[str, int]] = []

    def begin(self) -> None:
        """Mark the beginning of the first span, unless it is marked already."""
        if self._first is None:
            # The clock is read before the event is recorded, so that no span begins before its batch.
            at = self._clock()
            self._first = self._recorded(), at

    def mark(self, name: str) -> None:
        """Mark the end of the span ``name``, which began at the previous mark."""
        self._marks.append((name, self._recorded()))

    def _recorded(self) -> int:
        event = self._free.pop() if self._free else self._cuda.event_create(timing=True)
        self._cuda.event_record(event, self._stream)
        return event

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Report nothing within."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def report(self) -> None:
        """Report the marked spans; the stream must have passed all marks."""
        if self._first is None:
            return
        (first, at), marks = self._first, self._marks
        self._first, self._marks = None, []
        began = at
        for name, event in () if self._silent else marks:
            ended = at + self._cuda.event_elapsed_ms(first, event) / 1000
            self._span(name, began, ended, self._track)
            began = ended
        self._free += [first, *(event for _, event in marks)]

    def close(self) -> None:
        """Give the events back."""
        events, self._free = self._free, []
        for event in events:
            self._cuda.event_destroy(event)


class SpannedRunner(Runner):
    """A runner that reports what it does on the device.

    Args:
        spans: Takes the marks. Shared by all runners of one stream.
        args, more: The arguments of `Runner`.
    """

    def __init__(self, *args: Any, spans: Spans, **more: Any) -> None:
        self._spans = spans
        super().__init__(*args, **more)
        # The first span begins when copies are queued: while the host puts rows together the device is idle.
        self._inputs.before_copies = spans.begin

    def _execute(self, run: Run, pointers: Mapping[str, int]) -> list[Raw]:
        self._spans.begin()  # marks the beginning if nothing was copied
        self._spans.mark("copy in")
        raws = super()._execute(run, pointers)
        self._spans.mark("computation")
        return raws

    def run_placed(self, run: Run, pointers: Mapping[str, int]) -> list[Any]:
        """Queue a run and the copies of its outputs, and mark their end."""
        fetched = super().run_placed(run, pointers)
        self._spans.mark("copy out")
        return fetched

    def settle(self) -> None:
        """Wait for the stream if the results are numpy arrays, and then report the spans."""
        super().settle()
        if not self._pending:
            self._spans.report()

    def finish(self) -> None:
        """End the batch, and report the spans, unless it failed."""
        try:
            super().finish()
        except BaseException:
            with self._spans.silence():
                self._spans.report()
            raise
        self._spans.report()

    def warm_up(self) -> None:
        """Run rows without reporting spans."""
        with self._spans.silence():
            super().warm_up()

    def close(self) -> None:
        """Give everything back."""
        super().close()
        self._spans.close()
