"""The progress of a build: shows the phases that the builder reports, and ends the build if it is cancelled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from headrace_trt.libraries.tensorrt import Library

__all__ = ["BuildProgress", "make_monitor"]


class BuildProgress:
    """The phases of one build.

    The builder reports from several threads, and a phase may end before its last step. A phase
    is shown as a bar by ``progress(total, unit)``, as `headrace.InitContext.progress` is.

    Attributes:
        cancelled: Called at every step. True ends the build at that step.
        stopped: Whether the build is to end, or has ended, at a step.
        steps: The number of steps so far.
        error: What ``cancelled`` or ``progress`` raised. The build ends at that step, and raises it.
    """

    def __init__(
        self,
        cancelled: Callable[[], bool],
        progress: Callable[[int | None, str], AbstractContextManager[Any]] | None = None,
    ) -> None:
        self.cancelled = cancelled
        self.stopped = False
        self.steps = 0
        self.error: BaseException | None = None
        self._progress = progress
        self._lock = threading.Lock()
        self._open: dict[str, tuple[AbstractContextManager[Any], Any, int]] = {}

    def report(self, report: Callable[..., Any], *values: Any) -> bool:
        """Call one of the methods below for the builder, which no error may reach; return whether to go on."""
        try:
            report(*values)
        except BaseException as error:  # noqa: BLE001 - raised again once the builder has ended
            self.error, self.stopped = self.error or error, True
        return not self.stopped

    def start(self, name: str, parent: str | None, total: int) -> None:
        """Show a phase that begins."""
        if self._progress is None:
            return
        with self._lock:
            if name not in self._open:
                bar = self._progress(total, name)
                self._open[name] = (bar, bar.__enter__(), 0)

    def step(self, name: str, step: int) -> None:
        """Note that step ``step`` of a phase is done."""
        with self._lock:
            self.steps += 1
            if name in self._open:
                bar, advance, done = self._open[name]
                if step + 1 > done:
                    advance(step + 1 - done)
                    self._open[name] = (bar, advance, step + 1)
        if self.stopped or self.cancelled():
            self.stopped = True

    def finish(self, name: str) -> None:
        """Remove the bar of a phase."""
        with self._lock:
            phase = self._open.pop(name, None)
            if phase is not None:
                phase[0].__exit__(None, None, None)

    def close(self) -> None:
        """Remove all bars, since a build that fails does not finish its phases."""
        for name in list(self._open):
            self.finish(name)


def make_monitor(library: Library, progress: BuildProgress) -> Any:
    """Make TensorRT's ``IProgressMonitor`` that reports to ``progress``."""
    base: Any = library.trt.IProgressMonitor

    class Monitor(base):  # type: ignore[misc]
        """Passes every report on; it must not raise, since an error in native code would end the process."""

        def __init__(self) -> None:
            base.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            """Begin a phase."""
            progress.report(progress.start, phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """End a step."""
            return progress.report(progress.step, phase_name, step)

        def phase_finish(self, phase_name: str) -> None:
            """End a phase."""
            progress.report(progress.finish, phase_name)

    return Monitor()
