"""What a batch does on its device, for who listens: copies in, computation, copies out."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace_trt.runner import Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace_trt.cuda import Cuda
    from headrace_trt.grouping import Run
    from headrace_trt.outputs import Raw

__all__ = ["SpannedRunner", "Spans"]


class Spans:
    """Times by CUDA events, which are read after the wait for the stream that is there anyway.

    Args:
        cuda: The CUDA runtime.
        stream: The stream of the instance.
        span: Told of each: see ``context.span``.
        track: What the device is called.
        clock: Seconds, as ``time.monotonic()``.
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
        """Mark the beginning, unless it is marked."""
        if self._first is None:
            # Before the event: what is reported lies within the batch.
            at = self._clock()
            self._first = self._recorded(), at

    def mark(self, name: str) -> None:
        """Mark the end of what is called ``name``; it began at the mark before."""
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
        """Report what was marked, all of which has happened."""
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
        spans: Where it is marked; of all runners of one stream.
        args, more: As of `Runner`.
    """

    def __init__(self, *args: Any, spans: Spans, **more: Any) -> None:
        self._spans = spans
        super().__init__(*args, **more)
        # What the host gathers before is no time of the device.
        self._inputs.before_copies = spans.begin

    def _execute(self, run: Run, pointers: Mapping[str, int]) -> list[Raw]:
        self._spans.begin()  # where nothing was copied
        self._spans.mark("copy in")
        raws = super()._execute(run, pointers)
        self._spans.mark("computation")
        return raws

    def run_placed(self, run: Run, pointers: Mapping[str, int]) -> list[Any]:
        """Queue a run, and what brings its outputs to where they belong."""
        fetched = super().run_placed(run, pointers)
        self._spans.mark("copy out")
        return fetched

    def settle_for_host(self) -> None:
        """Wait, where results are to be read by the CPU."""
        super().settle_for_host()
        if not self._pending:
            self._spans.report()

    def finish(self) -> None:
        """End the batch."""
        try:
            super().finish()
        except BaseException:
            with self._spans.silence():
                self._spans.report()
            raise
        self._spans.report()

    def warm_up(self) -> None:
        """Run zeros, of which nothing is reported."""
        with self._spans.silence():
            super().warm_up()

    def close(self) -> None:
        """Give everything back."""
        super().close()
        self._spans.close()
